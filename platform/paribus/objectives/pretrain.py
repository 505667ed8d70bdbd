"""The pretrain stage: train an encoder on packed rows, resuming from the newest good checkpoint.

stage folder: encoder.safetensors, heads.safetensors, curve.jsonl; generator.safetensors of replaced-token detection
"""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
from paribus.train.watch import Diverged, Watch

MICRO_TOKENS = 65536
OBJECTIVE: Mapping[type[spec_of.Objective], Callable[[Pretraining, int, int], Pretrained]] = {
    spec_of.Mlm: Mlm,
    spec_of.Rtd: Rtd,
}


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
) -> dict[str, object]:
    """Train, write the stage's files into `work.out`. Returns what its record says besides: outcome, cost, device."""
    rows = load(pack, "train")
    budget = spec.budget
    where = device(runtime)
    micro_rows = runtime.micro_batch_rows or max(1, MICRO_TOKENS // rows.tokens.shape[1])
    steps = Steps(rows, spec, vocabulary, seed, micro_rows)
    module = build_objective(spec, vocabulary, seed)
    found = newest(work)
    checkpoint, steps.first = found or (None, 0)
    steps.workers = runtime.loader_workers
    watch = Watch(work.scratch, budget.steps, budget.batch_tokens, module.guess, steps.first)
    callbacks = [watch, Checkpoints(work, runtime.checkpoint_seconds)]
    outcome: dict[str, Any] = {"outcome": "done"}
    try:
        fit(module, steps, budget.steps, spec.precision, runtime, callbacks, checkpoint)
    except Diverged as error:
        outcome = {"outcome": "diverged", "diverged_step": error.step}
    else:
        for name, weights in module.files().items():
            save_file(weights, work.out / f"{name}.safetensors")
    shutil.copy(work.scratch / "curve.jsonl", work.out / "curve.jsonl")
    updates = outcome.get("diverged_step", budget.steps)
    work.row("updates", updates)
    work.row("tokens", updates * budget.batch_tokens)
    work.row("epochs", steps.epochs)
    work.row("masks_a_row", steps.duplicates or math.ceil(steps.epochs))
    work.row("parameters", sum(p.numel() for p in module.parameters()))
    return {
        **outcome,
        "seconds": watch.seconds,
        "tokens_per_second": watch.done / max(watch.seconds, 1e-9),
        "resumed_at": steps.first,
        "threads": runtime.threads,
        "micro_batch_rows": micro_rows,
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
    }
