"""Checkpoints of a training in progress: whole or not there, checksummed, the newest good one is used.

scratch/checkpoints/STEP.ckpt and STEP.sha256
"""

import os
import time
from pathlib import Path

import pytorch_lightning as pl

from paribus.files import sha256, write_atomically

KEPT = 2


class Checkpoints(pl.Callback):
    """Saves every `seconds` at the end of a step, and keeps the newest two."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._last = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        if time.monotonic() - self._last >= self._seconds and trainer.global_step < trainer.max_steps:
            self.save(trainer)
            self._last = time.monotonic()

    def save(self, trainer: pl.Trainer) -> None:
        """Write a checkpoint of the current step under its own name once all of it is on the disk."""
        path = self._folder / f"{trainer.global_step:012d}.ckpt"
        temporary = path.with_suffix(".partial")
        trainer.save_checkpoint(temporary)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        write_atomically(path.with_suffix(".sha256"), sha256(temporary))
        temporary.replace(path)
        for old in sorted(self._folder.glob("*.ckpt"))[:-KEPT]:
            old.unlink()
            old.with_suffix(".sha256").unlink(missing_ok=True)


def newest(folder: Path) -> tuple[Path, int] | None:
    """The newest checkpoint that matches its checksum, and its step. Damaged ones are removed."""
    for path in sorted(folder.glob("*.ckpt"), reverse=True):
        try:
            if path.with_suffix(".sha256").read_text() == sha256(path):
                return path, int(path.stem)
        except OSError:
            pass
        path.unlink(missing_ok=True)
    return None
