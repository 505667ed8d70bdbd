"""Tokens a second of a scale's pretraining with one and more devices, on rows of random tokens: no corpus is needed."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paribus.data.packing import Rows, save
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, SEP
from paribus.objectives.pretrain import pretrain
from paribus.plan.arms import arms
from paribus.plan.stages import Pretraining, make
from paribus.project import find
from paribus.spec.optim import Budget
from paribus.spec.run import Run, Runtime
from paribus.store.store import Store, read_jsonl

ROWS = 4096
WARM_UP = 0.2
"""Share of the steps that are not timed."""


@dataclass(frozen=True)
class Measured:
    """A pretraining: its speed after warming up, its loss at each reading, and what its record says."""

    tokens_per_second: float
    losses: list[float]
    record: dict[str, object]


def random_rows(length: int, vocabulary: int) -> Rows:
    """Rows of independent tokens, the k-th of them with probability about 1/k, as words are."""
    rng = np.random.default_rng(0)
    words = vocabulary - FIRST_ORDINARY
    drawn = np.floor(np.exp(rng.random((ROWS, length)) * math.log(words))).astype(np.int64) - 1
    tokens = (drawn + FIRST_ORDINARY).astype(np.uint32)
    tokens[:, 0], tokens[:, -1] = CLS, SEP
    none = np.zeros(ROWS, dtype=np.int32)
    return Rows(tokens, np.zeros_like(tokens, dtype=np.uint8), none + length, none, none.astype(np.int8))


def train(run: Run, steps: int, runtime: Runtime) -> Measured:
    """Pretrain `run` for `steps` steps in a store that is thrown away."""
    names = set(Pretraining.model_fields) - {"budget"}
    batch = run.budget.batch_tokens
    budget = Budget(train_tokens=steps * batch, batch_tokens=batch)
    spec = Pretraining(**{name: getattr(run, name) for name in names}, budget=budget)
    with tempfile.TemporaryDirectory() as folder:
        pack = Path(folder) / "pack"
        pack.mkdir()
        save(random_rows(run.packing.length, run.tokenizer.vocabulary_size), pack, "train")
        store = Store(Path(folder) / "store")
        store.prepare()
        work = store.claim(make("pretrain", spec, {}, 0))
        assert work
        with work:
            record = pretrain(spec, 0, pack, run.tokenizer.vocabulary_size, work, runtime)
            curve = read_jsonl(work.out / "curve.jsonl")
    begin, end = curve[int(WARM_UP * len(curve))], curve[-1]
    rate = (end["train/tokens"] - begin["train/tokens"]) / (end["time"] - begin["time"])
    return Measured(rate, [point["train/loss"] for point in curve], record)


def measure(scale: str, counts: Sequence[int], steps: int, runtime: Runtime) -> None:
    """With each number of devices, the same batches; the first is what the others are compared with."""
    run = arms(find(), "masking", scale)[-1].run  # dynamic masks: static ones need several passes over the rows
    print(
        f"masking@{scale}: batches of {run.budget.batch_tokens:,} tokens, rows of {run.packing.length}, "
        f"{run.precision}, {steps} steps, the first {WARM_UP:.0%} not timed"
    )
    first: Measured | None = None
    for count in counts:
        found = train(run, steps, runtime.model_copy(update={"devices": count, "checkpoint_seconds": 1e9}))
        told = f"{count} x {found.record['device']}: {found.tokens_per_second:,.0f} tokens/s"
        told += (
            f", {found.record['micro_batch_rows']} rows at once, loss {found.losses[0]:.3f} to {found.losses[-1]:.3f}"
        )
        if first is None:
            first, base = found, count
        else:
            speedup = found.tokens_per_second / first.tokens_per_second
            apart = max(abs(one - other) for one, other in zip(first.losses, found.losses, strict=True))
            told += f"; {speedup:.2f} times {base}, {speedup * base / count:.0%} of linear"
            told += f"; losses at most {apart:.4f} nats apart"
        print(told, flush=True)
