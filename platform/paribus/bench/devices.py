"""Tokens a second of a scale's pretraining with one and more devices, on rows of random tokens: no corpus is needed."""

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from paribus.data.packing import Rows, save
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, SEP
from paribus.errors import Stopped
from paribus.objectives.pretrain import pretrain
from paribus.plan.arms import arms
from paribus.plan.stages import Pretraining, make
from paribus.project import find
from paribus.spec.optim import Budget
from paribus.spec.run import Run, Runtime
from paribus.store.store import Store, read_jsonl
from paribus.train.fit import device

ROWS = 4096
WARM_UP = 10
"""Steps before those that are timed."""


def random_rows(length: int, vocabulary: int) -> Rows:
    """Rows of independent tokens, the k-th of them with probability about 1/k, as words are."""
    rng = np.random.default_rng(0)
    words = vocabulary - FIRST_ORDINARY
    drawn = np.floor(np.exp(rng.random((ROWS, length)) * math.log(words))).astype(np.int64) - 1
    tokens = (drawn + FIRST_ORDINARY).astype(np.uint32)
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    none = np.zeros(ROWS, dtype=np.int32)
    return Rows(tokens, np.zeros_like(tokens, dtype=np.uint8), none + length, none, none.astype(np.int8))


class Clock:
    """Asked at the end of each step whether to stop: after `steps` timed ones. Waits for the device twice only."""

    def __init__(self, steps: int) -> None:
        self._last, self._done = WARM_UP + steps, 0
        self.times: list[float] = []

    def __call__(self) -> bool:
        self._done += 1
        if self._done in (WARM_UP, self._last):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.times.append(time.perf_counter())
        return self._done == self._last


def pretraining(run: Run, budget: Budget) -> Pretraining:
    """The pretraining of `run` with another budget."""
    given = {name: getattr(run, name) for name in Pretraining.model_fields}
    return Pretraining(**{**given, "budget": budget})


def train(run: Run, budget: Budget, runtime: Runtime, stop: Callable[[], bool] = lambda: False) -> list[float]:
    """Pretrain `run` with another budget in a store that is thrown away; the losses it recorded. Raises Stopped."""
    spec, size = pretraining(run, budget), run.tokenizer.vocabulary_size
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "pack"
        pack.mkdir()
        save([random_rows(run.packing.length, size)], pack, "train", size)
        store = Store(Path(folder) / "store")
        store.prepare()
        work = store.claim(make("pretrain", spec, {}, 0), stop)
        assert work
        with work:
            pretrain(spec, 0, pack, size, work, runtime)
            return [point["train/loss"] for point in read_jsonl(work.out / "curve.jsonl")]


def measure(scale: str, counts: Sequence[int], steps: int, runtime: Runtime) -> None:
    """With each number of devices, the same batches; the first is what the others are compared with.

    Timed in a long training, where losses are read as seldom as in a real one; then trained anew for `steps` steps and
    their losses.
    """
    run = arms(find(), "masking", scale)[-1].run  # dynamic masks: static ones need several passes over the rows
    batch = run.budget.batch_tokens
    where = device(runtime)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu"
    print(
        f"masking@{scale} on {name}: {steps} steps of {batch:,} tokens, rows of {run.packing.length}, {run.precision}"
    )
    first: tuple[int, float, list[float]] | None = None
    for count in counts:
        strategy = runtime.strategy if count > 1 else "ddp"
        asked = runtime.model_copy(update={"devices": count, "strategy": strategy, "checkpoint_seconds": 1e9})
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        clock = Clock(steps)
        long = Budget(train_tokens=1000 * (WARM_UP + steps) * batch, batch_tokens=batch)
        with suppress(Stopped):
            train(run, long, asked, clock)
        rate = steps * batch / (clock.times[1] - clock.times[0])
        # Before the end, where files are gathered.
        peak = torch.cuda.max_memory_allocated(where) / 2**30 if where.type == "cuda" else None
        losses = train(run, Budget(train_tokens=steps * batch, batch_tokens=batch), asked)
        how = f"{count} x {strategy}" if count > 1 else "1 x"
        told = f"{how}: {rate:,.0f} tokens/s, loss {losses[0]:.3f} to {losses[-1]:.3f}"
        if first is None:
            first = count, rate, losses
        else:
            speedup = rate / first[1]
            apart = max(abs(one - other) for one, other in zip(first[2], losses, strict=True))
            told += f"; {speedup:.2f} times {first[0]}, {speedup * first[0] / count:.0%} of linear"
            told += f"; losses at most {apart:.4f} nats apart"
        if peak is not None:
            told += f"; at most {peak:.2f} GiB of tensors on the first card"
        print(told, flush=True)
