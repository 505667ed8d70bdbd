"""What a training says of itself while it runs: a curve, progress for whoever looks, and an end when it diverges."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from paribus.files import write_atomically
from paribus.store.store import read_jsonl
from paribus.train.lightning import pl
from paribus.train.memory import peak_mb

MEASURED_STEPS = 3
"""Steps after which the memory of a training is known: optimizer state is made in the first."""

TELL_SECONDS = 0.5


class Diverged(Exception):
    """The loss left the numbers, or is worse than guessing by far. A result, not a crash."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"diverged at step {step}: loss {loss}")
        self.step, self.loss = step, loss


class Watch(pl.Callback):
    """Reads `module.last` (a dict of tensors) every `every` steps only, so the device is not made to wait each step.

    curve.jsonl: one object a reading, {"step", "time", "train/loss" (mean since the last), "train/lr", ...}.
    Diverged: a loss that is no number, or a reading half as high again as both `worst_loss` (nats, what guessing costs)
    and the first reading.

    progress.json: step, steps, rate (units a second), unit, loss, seconds_left.
    """

    def __init__(
        self,
        scratch: Path,
        steps: int,
        step_size: int,
        worst_loss: float,
        resumed_at: int = 0,
        unit: Literal["tokens", "items"] = "tokens",
        seat: Callable[[float], int] = lambda peak_mb: 0,
    ) -> None:
        self._curve = scratch / "curve.jsonl"
        self._progress = scratch / "progress.json"
        self._steps, self._step_size, self._worst = steps, step_size, worst_loss
        self._unit, self._seat = unit, seat
        self.shared_with = 0
        """The most other runs that `seat`, told the memory taken so far, said share the device."""
        self._measured_at = resumed_at + MEASURED_STEPS
        self._every = max(1, steps // 200)
        self._losses: list[torch.Tensor] = []
        self._first: float | None = None
        self._process = psutil.Process()
        self._process.cpu_percent()
        # After a resume the steps past the checkpoint are run, and written, once more.
        points = read_jsonl(self._curve) if self._curve.is_file() else []
        points = [point for point in points if point["step"] <= resumed_at]
        write_atomically(self._curve, "".join(json.dumps(point) + "\n" for point in points))
        self._since, self._since_step = time.monotonic(), resumed_at
        self._told = -math.inf
        self.seconds, self.done = 0.0, 0
        """What the steps took that led to what is kept, before a resume too; and the units (tokens, items) in them."""
        for before, point in zip([0, *(point["step"] for point in points)], points, strict=False):
            units = (point["step"] - before) * step_size
            self.done += units
            self.seconds += units / point[f"system/{unit}_per_second"]

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        step = trainer.global_step
        last: dict[str, torch.Tensor] = module.last  # type: ignore[assignment]
        self._losses.append(last["loss"])
        if step == self._measured_at or step % self._every == 0:
            self.shared_with = max(self.shared_with, self._seat(peak_mb()))
        if step % self._every and step != self._steps:
            return
        losses = torch.stack([loss.to(last["loss"].device) for loss in self._losses]).tolist()
        for offset, loss in enumerate(losses):
            if not math.isfinite(loss):
                raise Diverged(step - len(losses) + 1 + offset, loss)
        mean = sum(losses) / len(losses)
        self._first = mean if self._first is None else self._first
        if mean > 1.5 * max(self._worst, self._first):
            raise Diverged(step, mean)
        self._losses = []
        others = {f"train/{name}": float(value) for name, value in last.items() if name != "loss"}
        self._write(step, {"train/loss": mean, **others})

    def state_dict(self) -> dict[str, Any]:
        return {"losses": self._losses, "first": self._first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses, self._first = state["losses"], state["first"]

    def _write(self, step: int, values: dict[str, float]) -> None:
        now = time.monotonic()
        seconds, steps = now - self._since, step - self._since_step
        self._since, self._since_step = now, step
        self.seconds += seconds
        self.done += steps * self._step_size
        rate = steps * self._step_size / max(seconds, 1e-9)
        point: dict[str, Any] = {
            "step": step,
            "time": time.time(),
            f"train/{self._unit}": step * self._step_size,
            **values,
        }
        point |= {f"system/{self._unit}_per_second": rate, **self._system()}
        with self._curve.open("a") as stream:
            stream.write(json.dumps(point) + "\n")
        if now - self._told < TELL_SECONDS and step != self._steps:
            return
        self._told = now
        left = (self._steps - step) * self._step_size / max(rate, 1e-9)
        progress = {"step": step, "steps": self._steps, "rate": rate, "unit": self._unit, "loss": values["train/loss"]}
        # Whoever looks wants it whole; after a power cut nobody does, so the disk is not waited for.
        temporary = self._progress.with_suffix(".new")
        temporary.write_text(json.dumps({**progress, "seconds_left": left}))
        temporary.replace(self._progress)

    def _system(self) -> dict[str, float]:
        found = {
            "system/cpu_percent": self._process.cpu_percent(),
            "system/memory_mb": self._process.memory_info().rss / 2**20,
        }
        if torch.cuda.is_available():
            found["system/gpu_memory_mb"] = torch.cuda.max_memory_allocated() / 2**20
        return found
