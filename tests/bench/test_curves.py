"""Curves of fast and of plain steps, beside each other."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paribus.bench.curves import apart
from paribus.cli import app
from paribus.errors import ParibusError
from paribus.train import passes


def test_ways_and_seeds_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "BACKEND", "aot_eager")
    told = tmp_path / "curves.json"
    asked = ["--scale", "debug", "--steps", "4", "--seeds", "2"]
    for small in ("objective.masking={kind: dynamic}", "encoder.layers=1", "corpus.documents=20"):
        asked += ["--set", small]
    asked += ["--compile", "off", "--compile", "on", "--device", "cpu"]
    files = ["--json", str(told), "--plot", f"{tmp_path}/a.svg"]
    result = CliRunner().invoke(app, ["bench", "curves", *asked, *files])
    assert result.exit_code == 0, result.output
    assert "compile off" in result.output and "two seeds of one way are at most" in result.output
    found = json.loads(told.read_text())["found"]
    assert [one["how"] for one in found["compile on"]] == ["on", "on"]
    first, second = found["compile off"]
    assert len(first["curve"]) == 4 and first["curve"] != second["curve"] and first["how"] == "off"
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def test_how_far_curves_lie_apart_is_counted_after_the_first_tenth() -> None:
    def one(*losses: float) -> dict[str, object]:
        return {"curve": list(enumerate(losses))}

    fell, same = [9.0, *[4.0] * 9], [9.5, *[4.0] * 9]
    found = {"off": [one(*fell), one(*same)], "on": [one(*fell), one(5.0, *[4.5] * 9)]}
    assert apart(found) == pytest.approx((0.25, 0.5))


def test_a_file_that_cannot_be_drawn_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "curves", "--scale", "debug", "--plot", str(tmp_path / "a.gif")])
    assert isinstance(result.exception, ParibusError) and "gif" in str(result.exception)
    assert "compile" not in result.output and not (tmp_path / "a.gif").exists()
