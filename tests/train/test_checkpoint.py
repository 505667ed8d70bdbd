"""Checkpoints: whole or not there, and the newest good one is used."""

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paribus.errors import Stopped, StoreError
from paribus.spec.data import Sotu
from paribus.store.store import Work
from paribus.train.checkpoint import KEPT, Checkpoints, newest

Begin = Callable[..., Work]


class Trainer(SimpleNamespace):
    """As much of a Trainer as a checkpoint needs."""

    max_steps = 100
    should_stop = False
    lightning_module = torch.nn.Linear(2, 2)

    def save_checkpoint(self, path: Path) -> None:
        path.write_text(f"state after {self.global_step}")


@pytest.fixture
def work(begin: Begin) -> Work:
    """A stage in progress."""
    found = begin("corpus", Sotu())
    found.scratch.mkdir(parents=True)
    return found


def saved(work: Work, steps: int, seconds: float = 0.0) -> None:
    checkpoints: Any = Checkpoints(work, seconds)
    for step in range(1, steps + 1):
        checkpoints.on_train_batch_end(Trainer(global_step=step), None)


def files(work: Work) -> list[Path]:
    return sorted((work.scratch / "checkpoints").iterdir())


def test_the_newest_two_are_kept_and_the_newest_is_used(work: Work) -> None:
    saved(work, 12)
    assert [int(path.stem.partition("-")[0]) for path in files(work)] == [11, 12]
    found = newest(work)
    assert KEPT == 2 and found and found[1] == 12 and found[0].read_text() == "state after 12"


@pytest.mark.parametrize("damage", ["state after", "state after 6", ""])
def test_a_damaged_one_is_removed_and_the_one_before_it_used(work: Work, damage: str) -> None:
    saved(work, 5)
    path = files(work)[-1]
    path.write_text(damage)
    found = newest(work)
    assert found and found[1] == 4 and not path.exists()


def test_a_writer_that_was_killed_leaves_the_one_before_it_and_the_next_one_clears_up(work: Work) -> None:
    saved(work, 3)
    (work.scratch / "checkpoints" / "4711.partial").write_text("state af")
    found = newest(work)
    assert found and found[1] == 3
    saved(work, 0)
    assert [path.suffix for path in files(work)] == [".ckpt", ".ckpt"]


def test_there_may_be_none(work: Work) -> None:
    assert newest(work) is None
    saved(work, 5, seconds=3600.0)
    assert newest(work) is None


@pytest.mark.parametrize("told", [{"global_step": 100}, {"global_step": 7, "should_stop": True}])
def test_nothing_is_saved_after_the_last_step_whose_result_is_written_anyway(work: Work, told: dict[str, Any]) -> None:
    work._stop = lambda: True
    checkpoints: Any = Checkpoints(work, 0.0)
    checkpoints.on_train_batch_end(Trainer(**told), None)
    assert newest(work) is None


def test_a_wish_to_stop_is_heard_at_the_end_of_the_step_which_is_saved(work: Work) -> None:
    asked = iter([False, False, True])
    work._stop = lambda: next(asked)
    with pytest.raises(Stopped):
        saved(work, 5, seconds=3600.0)
    found = newest(work)
    assert found and found[1] == 3 and len(files(work)) == 1


def test_a_disk_that_fills_up_leaves_no_half_checkpoint(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(work, 2)

    def full(trainer: Trainer, path: Path) -> None:
        path.write_text("state")
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Trainer, "save_checkpoint", full)
    with pytest.raises(StoreError, match="no space left"):
        saved(work, 3)
    assert [path.suffix for path in files(work)] == [".ckpt", ".ckpt"]
