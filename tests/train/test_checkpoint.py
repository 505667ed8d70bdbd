"""Checkpoints: whole or not there, and the newest good one is used."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paribus.train.checkpoint import KEPT, Checkpoints, newest


class Trainer(SimpleNamespace):
    """As much of a Trainer as a checkpoint needs."""

    def save_checkpoint(self, path: Path) -> None:
        path.write_text(f"state after {self.global_step}")


def saved(folder: Path, steps: int, seconds: float = 0.0) -> None:
    checkpoints: Any = Checkpoints(folder, seconds)
    for step in range(1, steps + 1):
        checkpoints.on_train_batch_end(Trainer(global_step=step, max_steps=100), None)


def test_the_newest_two_are_kept_and_the_newest_is_used(tmp_path: Path) -> None:
    saved(tmp_path, 12)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{step:012d}.{ending}" for step in (11, 12) for ending in ("ckpt", "sha256")
    ]
    found = newest(tmp_path)
    assert KEPT == 2 and found and found[1] == 12 and found[0].read_text() == "state after 12"


@pytest.mark.parametrize("damage", ["cut", "changed", "no checksum"])
def test_a_damaged_one_is_removed_and_the_one_before_it_used(tmp_path: Path, damage: str) -> None:
    saved(tmp_path, 5)
    path = tmp_path / f"{5:012d}.ckpt"
    if damage == "no checksum":
        path.with_suffix(".sha256").unlink()
    else:
        path.write_text("state after" if damage == "cut" else "state after 6")
    found = newest(tmp_path)
    assert found and found[1] == 4 and not path.exists()


def test_a_writer_that_was_killed_leaves_the_one_before_it(tmp_path: Path) -> None:
    saved(tmp_path, 3)
    (tmp_path / f"{4:012d}.partial").write_text("state af")
    (tmp_path / f"{4:012d}.sha256").write_text("0" * 64)
    found = newest(tmp_path)
    assert found and found[1] == 3


def test_there_may_be_none(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    saved(tmp_path / "folder", 5, seconds=3600.0)
    assert newest(tmp_path / "folder") is None


def test_nothing_is_saved_at_the_last_step_whose_result_is_written_anyway(tmp_path: Path) -> None:
    checkpoints: Any = Checkpoints(tmp_path, 0.0)
    checkpoints.on_train_batch_end(Trainer(global_step=100, max_steps=100), None)
    assert newest(tmp_path) is None
