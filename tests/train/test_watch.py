"""What a training says of itself, and when it is stopped."""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paribus.store.store import read_jsonl
from paribus.train.watch import Diverged, Watch


def watched(watch: Any, losses: list[float], first: int = 0) -> None:
    for step, loss in enumerate(losses, first + 1):
        last = {"loss": torch.tensor(loss), "grad_norm": torch.tensor(2.0)}
        watch.on_train_batch_end(SimpleNamespace(global_step=step), SimpleNamespace(last=last))


def curve(folder: Path) -> list[tuple[int, float]]:
    return [(point["step"], point["train/loss"]) for point in read_jsonl(folder / "curve.jsonl")]


def test_a_point_is_the_mean_since_the_last_one_and_the_last_step_has_one(tmp_path: Path) -> None:
    watched(Watch(tmp_path, 401, 10, math.inf), [1.0, 3.0] * 200 + [5.0])
    found = curve(tmp_path)
    assert (
        len(found) == 201 and set(found[:-1]) == {(step, 2.0) for step in range(2, 401, 2)} and found[-1] == (401, 5.0)
    )
    point = read_jsonl(tmp_path / "curve.jsonl")[0]
    assert point["train/tokens"] == 20 and point["train/grad_norm"] == 2.0 and point["system/memory_mb"] > 0


def test_progress_is_that_of_the_last_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paribus.train.watch.TELL_SECONDS", 0.0)
    watched(Watch(tmp_path, 10, 10, math.inf), [2.0] * 4)
    progress = json.loads((tmp_path / "progress.json").read_text())
    assert (progress["step"], progress["steps"], progress["loss"]) == (4, 10, 2.0)
    assert progress["seconds_left"] == pytest.approx(6 * 10 / progress["rate"])


def test_after_a_resume_the_points_past_it_are_written_once_more(tmp_path: Path) -> None:
    watched(Watch(tmp_path, 10, 10, math.inf), [1.0] * 6)
    with (tmp_path / "curve.jsonl").open("a") as stream:
        stream.write('{"step": 7, "train')
    watched(Watch(tmp_path, 10, 10, math.inf, resumed_at=4), [2.0] * 6, first=4)
    assert curve(tmp_path) == [(step, 1.0) for step in range(1, 5)] + [(step, 2.0) for step in range(5, 11)]


def test_what_the_steps_took_before_a_resume_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 5))
    now = SimpleNamespace(monotonic=lambda: float(next(clock)), time=time.time)
    monkeypatch.setattr("paribus.train.watch.time", now)
    watched(Watch(tmp_path, 10, 10, math.inf), [1.0] * 6)
    watch = Watch(tmp_path, 10, 10, math.inf, resumed_at=4)
    assert (watch.seconds, watch.done) == (pytest.approx(20.0), 40)
    watched(watch, [1.0] * 6, first=4)
    assert (watch.seconds, watch.done) == (pytest.approx(50.0), 100)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_it_at_the_step_it_came(tmp_path: Path, bad: float) -> None:
    losses = [1.0] * 1000
    losses[502] = bad
    with pytest.raises(Diverged) as error:
        watched(Watch(tmp_path, 1000, 10, math.inf), losses)
    assert error.value.step == 503
    assert all(math.isfinite(loss) for _, loss in curve(tmp_path))


def test_a_loss_far_above_guessing_ends_it(tmp_path: Path) -> None:
    with pytest.raises(Diverged) as error:
        watched(Watch(tmp_path, 10, 10, 9.0), [6.0, 13.4, 13.6, 6.0])
    assert (error.value.step, error.value.loss) == (3, pytest.approx(13.6))


def test_a_high_start_is_no_divergence(tmp_path: Path) -> None:
    watched(Watch(tmp_path, 10, 10, 9.0), [20.0, 25.0, 12.0, 6.0])


def test_a_point_whose_steps_an_interruption_cut_in_two_is_the_mean_of_all_of_them(tmp_path: Path) -> None:
    before = Watch(tmp_path, 800, 10, math.inf)
    watched(before, [1.0, 2.0, 3.0, 4.0, 1.0, 2.0])
    after = Watch(tmp_path, 800, 10, math.inf, resumed_at=6)
    after.load_state_dict(before.state_dict())
    watched(after, [3.0, 6.0], first=6)
    assert curve(tmp_path) == [(4, 2.5), (8, 3.0)]
