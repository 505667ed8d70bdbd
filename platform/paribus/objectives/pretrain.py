"""The pretrain stage: train an encoder on packed rows, resuming from the newest good checkpoint.

stage folder: encoder.safetensors, heads.safetensors, curve.jsonl; generator.safetensors of replaced-token detection
"""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from safetensors.torch import save_file

from paribus.data.packing import load
from paribus.objectives.loader import Steps
from paribus.objectives.mlm import Mlm
from paribus.objectives.module import Pretrained
from paribus.objectives.rtd import Rtd
from paribus.plan.stages import Pretraining
from paribus.spec import objective as spec_of
from paribus.spec.run import Runtime
from paribus.store.store import Work
from paribus.train.checkpoint import Checkpoints, newest
from paribus.train.fit import device, fit
from paribus.train.reports import Pruned, Reports
from paribus.train.watch import Diverged, Watch

MICRO_TOKENS = 65536
OBJECTIVE: Mapping[type[spec_of.Objective], Callable[[Pretraining, int, int], Pretrained]] = {
    spec_of.Mlm: Mlm,
    spec_of.Rtd: Rtd,
}


@dataclass(frozen=True)
class Judge:
    """What may end a pretraining before its budget does."""

    count: int
    """The loss is told at each 1/count of the budget."""
    measure: Callable[[Path], float]
    """The validation loss of the weights in a folder, files as a finished pretraining has them."""
    prune: Callable[[Mapping[int, float]], bool]
    """Whether what was told (report: loss) is the end of it."""


def _measured(folder: Path, judge: Judge, module: pl.LightningModule) -> float:
    assert isinstance(module, Pretrained)
    folder.mkdir(exist_ok=True)
    for name, weights in module.files().items():
        save_file(weights, folder / f"{name}.safetensors")
    try:
        return judge.measure(folder)
    finally:
        shutil.rmtree(folder)


def build_objective(spec: Pretraining, vocabulary: int, seed: int) -> Pretrained:
    """The module of a pretraining's objective, with its first values."""
    return OBJECTIVE[type(spec.objective)](spec, vocabulary, seed)


def pretrain(
    spec: Pretraining,
    seed: int,
    pack: Path,
    vocabulary: int,
    work: Work,
    runtime: Runtime,
    stop: Callable[[], bool] = lambda: False,
    judge: Judge | None = None,
) -> dict[str, object]:
    """Train, write the stage's files into `work.out`. Returns what its record says besides: outcome, cost, device.

    With a `judge` it tells its validation loss on the way, and ends as `pruned` where that says so.
    """
    rows = load(pack, "train")
    budget = spec.budget
    where = device(runtime)
    micro_rows = runtime.micro_batch_rows or max(1, MICRO_TOKENS // rows.tokens.shape[1])
    steps = Steps(rows, spec, vocabulary, seed, micro_rows)
    module = build_objective(spec, vocabulary, seed)
    folder = work.scratch / "checkpoints"
    found = newest(folder)
    checkpoint, steps.first = found or (None, 0)
    watch = Watch(work.scratch, budget.steps, budget.batch_tokens, module.guess, steps.first, stop=stop)
    callbacks: list[pl.Callback] = [watch, Checkpoints(folder, runtime.checkpoint_seconds)]
    told: Mapping[str, object] = {}
    if judge:
        measure = partial(_measured, work.scratch / "reported", judge)
        reports = Reports(work.scratch, budget.steps, judge.count, measure, judge.prune, steps.first)
        callbacks.insert(0, reports)
        told = {"reports": reports.told}
    outcome: dict[str, Any] = {"outcome": "done"}
    try:
        fit(module, steps, budget.steps, spec.precision, runtime, callbacks, checkpoint)
    except Diverged as error:
        outcome = {"outcome": "diverged", "diverged_step": error.step}
    except Pruned as error:
        outcome = {"outcome": "pruned", "pruned_step": error.step}
    else:
        for name, weights in module.files().items():
            save_file(weights, work.out / f"{name}.safetensors")
    shutil.copy(work.scratch / "curve.jsonl", work.out / "curve.jsonl")
    updates = outcome.get(f"{outcome['outcome']}_step", budget.steps)
    work.row("updates", updates)
    work.row("tokens", updates * budget.batch_tokens)
    work.row("epochs", steps.epochs)
    work.row("masks_a_row", steps.duplicates or math.ceil(steps.epochs))
    work.row("parameters", sum(p.numel() for p in module.parameters()))
    return {
        **outcome,
        **told,
        "seconds": watch.seconds,
        "tokens_per_second": watch.done / max(watch.seconds, 1e-9),
        "resumed_at": steps.first,
        "threads": runtime.threads,
        "micro_batch_rows": micro_rows,
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
    }
