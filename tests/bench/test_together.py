"""The benchmark of runs at once times all of them over the same window, and tells of one that fails in a line."""

import json
import sys
from pathlib import Path

import pytest
import torch

from paribus.bench.together import at_once, measure
from paribus.bench.train import sized
from paribus.cli import main
from paribus.errors import ParibusError
from paribus.spec.run import Runtime


def test_runs_at_once_are_timed_over_one_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = sized("bert", "debug", {}, "8x16"), tmp_path / "together.json"
    measure(run, [1, 2], ["off"], 0.5, Runtime(device="cpu"), "bert@debug", out)
    head, _, one, two = capsys.readouterr().out.splitlines()
    assert head.startswith("bert@debug, 8 x 16 tokens, fp32, dropout 0.1, ")
    assert one.split()[:2] == ["off", "1"] and two.split()[:2] == ["off", "2"]
    told = json.loads(out.read_text())
    alone, both = told["rows"]
    assert told["failed"] == {} and (len(alone["processes"]), len(both["processes"])) == (1, 2)
    first, second = both["processes"]
    assert first["began"] == second["began"] > alone["processes"][0]["began"]
    for row in told["rows"]:
        rates = [128 * process["steps"] / process["seconds"] for process in row["processes"]]
        assert row["tokens_per_second"] == pytest.approx(sum(rates)) and min(rates) > 0
        assert (row["slowest"], row["fastest"]) == pytest.approx((min(rates), max(rates)))
        assert row["ratio"] == pytest.approx(row["tokens_per_second"] / alone["tokens_per_second"])
        assert row["device_mb"] == pytest.approx(sum(process["peak_mb"] for process in row["processes"]))
        for process in row["processes"]:
            assert process["seconds"] >= 0.5 and process["peak_mb"] > 100


def test_a_run_that_fails_is_one_line() -> None:
    run = sized("bert", "debug", {}, "8x16").model_dump(mode="json")
    asked = {"run": {**run, "precision": "fp7"}, "seconds": 0.1, "runtime": Runtime(device="cpu").model_dump()}
    said = at_once(asked, 1)
    assert isinstance(said, str) and said.startswith("error: ") and "fp7" in said


@pytest.mark.parametrize("counts", ["0,2", "one", "1;2", ""])
def test_counts_that_are_none_are_refused(
    counts: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["paribus", "bench", "together", "--counts", counts])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: --counts {counts}: expected numbers from 1, as 1,2,4\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_device_that_is_not_there_is_refused_before_anything_is_started() -> None:
    with pytest.raises(ParibusError, match="--device cuda: no GPU is visible here"):
        measure(sized("bert", "debug", {}, None), [1], ["off"], 1.0, Runtime(device="cuda"), "bert@debug")
