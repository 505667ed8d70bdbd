"""Checkpoints of a training in progress: whole or not there, checksummed, the newest good one is used.

scratch/checkpoints/STEP-SHA256.ckpt
"""

import os
import time
from pathlib import Path

from paribus.errors import Stopped
from paribus.files import sha256, sync_to_disk
from paribus.store.store import Work, writing
from paribus.train.lightning import pl

KEPT = 2


class Checkpoints(pl.Callback):
    """Saves every `seconds` at the end of a step, and keeps the newest two. Saves and ends when `work` is to stop.

    The last of callbacks, so that what the others keep is that of the same step. Nothing is saved after the last step,
    since it would go on with one more.
    """

    def __init__(self, work: Work, seconds: float) -> None:
        self._work, self._seconds = work, seconds
        self._last = time.monotonic()
        self._folder = _folder(work)
        for torn in self._folder.glob("*.partial"):
            torn.unlink(missing_ok=True)

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        if trainer.global_step >= trainer.max_steps or trainer.should_stop:
            return
        stopping = self._work.stopping
        if stopping or time.monotonic() - self._last >= self._seconds:
            self.save(trainer)
            self._last = time.monotonic()
        if stopping:
            raise Stopped

    def save(self, trainer: pl.Trainer) -> None:
        """Write a checkpoint of the current step; it gets its name once all of it is on the disk."""
        while self._work.store.pauses(self._size(trainer)):
            self._work.may_stop()
        temporary = self._folder / f"{os.getpid()}.partial"
        try:
            with writing(self._work.store.root):
                self._folder.mkdir(exist_ok=True)
                trainer.save_checkpoint(temporary)
                sync_to_disk(temporary)
                temporary.replace(self._folder / f"{trainer.global_step:012d}-{sha256(temporary)}.ckpt")
                sync_to_disk(self._folder)
        finally:
            temporary.unlink(missing_ok=True)
        for old in sorted(self._folder.glob("*.ckpt"))[:-KEPT]:
            old.unlink(missing_ok=True)

    def _size(self, trainer: pl.Trainer) -> int:
        """The bytes it will take: those of the last one, or of weights and of two moments of each."""
        last = [path.stat().st_size for path in sorted(self._folder.glob("*.ckpt"))[-1:]]
        return last[0] if last else 3 * sum(p.nbytes for p in trainer.lightning_module.parameters())


def _folder(work: Work) -> Path:
    return work.scratch / "checkpoints"


def newest(work: Work) -> tuple[Path, int] | None:
    """The newest checkpoint that matches its checksum, and its step. Damaged ones are removed."""
    for path in sorted(_folder(work).glob("*.ckpt"), reverse=True):
        step, _, wanted = path.stem.partition("-")
        try:
            if sha256(path) == wanted:
                return path, int(step)
        except OSError:
            pass
        path.unlink(missing_ok=True)
    return None
