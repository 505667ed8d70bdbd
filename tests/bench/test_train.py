"""The benchmark of training measures our module and transformers' in processes of their own."""

import json
from pathlib import Path

import pytest

from paribus.bench.train import measure, sized
from paribus.errors import ParibusError
from paribus.nn.count import cost
from paribus.spec.objective import Rtd
from paribus.spec.run import Runtime


def test_ours_and_the_peer_are_measured_beside_a_ceiling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    run, out = sized("bert", "debug", {"encoder.dropout": 0.0}, "8x16"), tmp_path / "train.json"
    assert (run.packing.length, run.budget.batch_tokens) == (16, 128)
    measure(run, ["compile off", "transformers"], 2, 1, Runtime(device="cpu"), "bert@debug", out)
    head, ceiling, _, ours, peer = capsys.readouterr().out.splitlines()
    assert head.startswith("bert@debug, 8 x 16 tokens, fp32, dropout 0.0, ") and "bf16 products" in ceiling
    assert ours.startswith("compile off ") and peer.startswith("transformers ") and "BertForMaskedLM sdpa" in peer
    told = json.loads(out.read_text())
    first, second = told["rows"]
    assert told["failed"] == {} and second["ratio"] == 1
    assert first["ratio"] == pytest.approx(first["tokens_per_second"] / second["tokens_per_second"])
    for row in told["rows"]:
        (process,) = told["processes"][row["contender"]]
        assert len(process["step_ms"]) == 2
        assert row["tokens_per_second"] == pytest.approx(1e3 * 128 / (sum(process["step_ms"]) / 2))
        assert row["share"] == pytest.approx(row["tokens_per_second"] * told["flops_a_token"] / told["card"]["flops"])
        assert row["peak_mb"] > 100 and row["start_seconds"] > 0
    ours, peer = (told["processes"][name][0]["parameters"] for name in ("compile off", "transformers"))
    assert ours == peer


@pytest.mark.parametrize(
    "base, batch, said",
    [
        ("bert", "64", "--batch 64: expected rows x tokens, as 64x512"),
        ("bert", "0x16", "--batch 0x16: expected rows x tokens, as 64x512"),
        ("bert", "8x64", "packing.length must be at most encoder.position.max_length, found 64 and 32"),
        ("bort", None, "--base: no base is called 'bort'"),
    ],
)
def test_what_cannot_be_timed_is_one_line(base: str, batch: str | None, said: str) -> None:
    with pytest.raises(ParibusError) as error:
        sized(base, "debug", {}, batch)
    assert said in str(error.value)


def test_a_sentence_objective_is_not_timed() -> None:
    pairs = {"objective.sentence": "sop", "packing.kind": "segment-pairs", "packing.negatives": "swapped"}
    with pytest.raises(ParibusError, match="--base bert: expected objective.sentence none, found sop"):
        sized("bert", "debug", pairs, None)


def test_replaced_token_detection_is_timed_alone_and_counted_as_both_networks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = sized("electra", "debug", {}, "8x16"), tmp_path / "train.json"
    with pytest.raises(ParibusError, match="--peer: transformers trains no replaced-token detection; expected a base"):
        measure(run, ["compile off", "transformers"], 2, 1, Runtime(device="cpu"), "electra@debug", out)
    measure(run, ["compile off"], 2, 1, Runtime(device="cpu"), "electra@debug", out)
    assert "generator and encoder" in capsys.readouterr().out.splitlines()[0]
    told = json.loads(out.read_text())
    assert told["failed"] == {} and told["rows"][0]["tokens_per_second"] > 0
    size = run.tokenizer.vocabulary_size
    alone = cost(run.encoder, size, 16, run.objective.rate).train_flops_a_token
    assert isinstance(run.objective, Rtd)
    both = cost(run.encoder, size, 16, run.objective.rate, run.objective).train_flops_a_token
    assert told["flops_a_token"] == both != alone
