"""The benchmark of tables: it times what a user would run, over as many runs as it says."""

import pytest

from paribus.bench import table


def test_it_makes_the_runs_it_says_and_prints_the_ratio_to_mlflow(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "REPEATS", 1)
    table.measure(4, peer=True)
    out, _ = capfd.readouterr()
    assert "masking@debug: 4 runs x 25 metrics" in out
    assert "paribus table, nothing read before" in out and "times as long as search_runs" in out
