"""Steps of fine-tuning: tensors that are ready before they are needed, and replayed as CUDA graphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.evaluate.test_finetune import FINDS, LABELS, SIZE, recipe
from tests.replay import Replay, stand_in
from tests.train.test_card import Losses

from paribus.evaluate.batch import Batch
from paribus.evaluate.features import IGNORED, Feature
from paribus.evaluate.finetune import Epochs, Steps, Tuned, units_of
from paribus.nn.build import build_encoder
from paribus.nn.init import initialise
from paribus.spec import model as spec
from paribus.spec.run import Runtime
from paribus.train.fit import device, fit

Make = Callable[..., spec.Encoder]
LENGTH, ITEMS, PASSES = 32, 64, 4


def drawn(kind: str, unlabelled: int = 0) -> list[Feature]:
    """Random features of a kind, of three lengths; the first `unlabelled` of tagging have no label."""
    rng, made = np.random.default_rng(0), []
    for item in range(ITEMS):
        for option in range(rng.integers(2, 5) if kind == "multiple-choice" else 1):
            length = int(rng.choice([6, 13, 22]))
            ids, second = rng.integers(5, SIZE, length).tolist(), int(rng.integers(2, 4))
            target: Any = {
                "regression": float(rng.normal()),
                "multiple-choice": 1,
                "tagging": [IGNORED, *rng.integers(0, len(LABELS["tagging"]), length - 2).tolist(), IGNORED],
                "span-qa": (4, 5),
            }.get(kind, int(rng.integers(0, 2)))
            made.append(Feature(ids, item, second, [IGNORED] * length if item < unlabelled else target, option))
    return made


def trained(
    encoder: Make,
    kind: str,
    how: str,
    runtime: Runtime,
    precision: str = "fp32",
    unlabelled: int = 0,
    **changes: Any,
) -> tuple[Tuned, list[float]]:
    small = encoder(width=32, heads=2)
    made = build_encoder(small, SIZE)
    initialise(made, 0, 0.1)
    units = units_of(drawn(kind, unlabelled))
    asked = recipe(kind, epochs=PASSES, precision=precision, **changes)
    batches = Epochs(units, [len(unit[0].ids) for unit in units], asked.batch_items, asked.epochs, 0)
    module = Tuned(made, 32, asked, batches.steps, 0, 0.1)
    if how == "graphs":
        module.replay()
    losses = Losses()
    where = device(runtime)
    try:
        fit(module, Steps(batches, module, where), batches.steps, asked.precision, runtime, [losses])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return module, torch.stack(losses.found).tolist()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", FINDS)
def test_replayed_it_trains_as_written(
    encoder: Make, monkeypatch: pytest.MonkeyPatch, kind: str, frozen: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    told: Any = {"frozen": {"layers": "last", "lstm_width": 0}} if frozen else {}
    _, plain = trained(encoder, kind, "off", Runtime(device="cpu"), **told)
    stand_in(monkeypatch)
    module, losses = trained(encoder, kind, "graphs", Runtime(device="cpu"), **told)
    assert module.passes.how == "graphs" and Replay.made > (kind != "multiple-choice")
    assert losses == pytest.approx(plain, abs=1e-5) and np.mean(losses[-8:]) < np.mean(losses[:8])


def test_where_no_graph_can_be_captured_it_is_said_once_and_trained_as_written(
    encoder: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    _, plain = trained(encoder, "sentence", "off", Runtime(device="cpu"))
    stand_in(monkeypatch)

    def refuse(*_: object) -> None:
        raise RuntimeError("no graph")

    monkeypatch.setattr("paribus.train.passes.Graph", refuse)
    monkeypatch.setattr("paribus.train.passes._leave_capture", lambda state: None)
    module, losses = trained(encoder, "sentence", "graphs", Runtime(device="cpu"))
    assert module.passes.how == "off" and losses == pytest.approx(plain, abs=1e-5)
    assert capsys.readouterr().err == "--compile graphs: no graph; from here on as written\n"


def test_a_step_without_a_labelled_word_moves_nothing(encoder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    optimizer = {"kind": "adamw", "lr": 1e-2, "weight_decay": 0.1}
    told: Any = {"optimizer": optimizer, "batch_items": 2, "unlabelled": 40}
    module, plain = trained(encoder, "tagging", "off", Runtime(device="cpu"), **told)
    stand_in(monkeypatch)
    other, losses = trained(encoder, "tagging", "graphs", Runtime(device="cpu"), **told)
    assert plain.count(0.0) >= 1 and losses == pytest.approx(plain, abs=1e-5) and Replay.made
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-4)


def test_a_reader_that_counts_on_the_cpu_is_not_replayed(encoder: Make) -> None:
    asked = recipe("tagging", frozen={"layers": "last", "lstm_width": 4})
    module = Tuned(build_encoder(encoder(), SIZE), 16, asked, 1, 0, 0.1)
    module.replay()
    assert module.passes.how == "off" and module.unpadded


def test_rows_of_graphs_keep_their_padding_and_others_need_not(encoder: Make) -> None:
    module = Tuned(build_encoder(encoder(), SIZE), 16, recipe("sentence"), 1, 0, 0.1)
    features = drawn("sentence")
    assert module.step(features).batches[0].kept_N is not None
    module.replay()
    (batch,) = module.step(features).batches
    assert batch.kept_N is None and batch.unseen is batch.padding_BT


def test_the_options_of_a_question_are_the_features_that_it_has() -> None:
    features = drawn("multiple-choice")
    batch = Batch.of(features, LENGTH, recipe("multiple-choice").task)
    assert batch.options_QO is not None and batch.targets is not None
    assert len(batch.options_QO) == len(batch.targets) == ITEMS
    for question, rows in enumerate(batch.options_QO.tolist()):
        there = [row for row in rows if row >= 0]
        assert [(features[row].item, features[row].option) for row in there] == [
            (question, option) for option in range(len(there))
        ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-3), ("bf16", 3e-2)])
@pytest.mark.parametrize("kind", FINDS)
def test_on_a_gpu_graphs_train_as_written_and_no_step_waits(
    encoder: Make, kind: str, precision: str, tolerance: float, frozen: bool
) -> None:
    told: Any = {"frozen": {"layers": "last", "lstm_width": 0}} if frozen else {}
    plain, replayed = (
        trained(encoder, kind, how, Runtime(device="cuda"), precision, **told) for how in ("off", "graphs")
    )
    assert plain[0].passes.how == "off" and replayed[0].passes.how == "graphs" and replayed[0].passes._graphs
    assert replayed[1] == pytest.approx(plain[1], abs=tolerance)
