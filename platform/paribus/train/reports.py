"""A training that tells its held-out loss on the way, and may be ended for it."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from paribus.files import write_atomically
from paribus.train.lightning import pl


class Pruned(Exception):
    """The training was ended for what it told. A result, not a crash."""

    def __init__(self, step: int) -> None:
        super().__init__(f"pruned at step {step}")
        self.step = step


class Reports(pl.Callback):
    """Asks `measure` for the loss at `count` - 1 equal parts of `steps`, and `prune` whether that is the end.

    The end itself is the evaluation's. Goes before the callback that saves checkpoints, so that none is saved of a step
    whose report is missing; those of steps past the checkpoint are told once more, and are the same.

    reports.json: {report: loss}
    """

    def __init__(
        self,
        scratch: Path,
        steps: int,
        count: int,
        measure: Callable[[pl.LightningModule], float],
        prune: Callable[[Mapping[int, float]], bool],
        resumed_at: int,
    ) -> None:
        self._path = scratch / "reports.json"
        self._at = {math.ceil(steps * report / count): report for report in range(1, count)}
        self._measure, self._prune = measure, prune
        known = json.loads(self._path.read_text()) if self._path.is_file() else {}
        past = {report for step, report in self._at.items() if step > resumed_at}
        self.told: dict[int, float] = {int(k): loss for k, loss in known.items() if int(k) not in past}

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        report = self._at.get(trainer.global_step)
        if report is None or trainer.global_step == trainer.max_steps:
            return
        loss = self._measure(module)
        module.train()
        if not math.isfinite(loss):
            return  # the next reading of the training loss ends it as diverged
        self.told[report] = loss
        write_atomically(self._path, json.dumps(self.told))
        if self._prune(self.told):
            raise Pruned(trainer.global_step)
