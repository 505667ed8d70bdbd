"""The pretrain stage: train an encoder on packed rows, resuming from the newest good checkpoint.

stage folder: encoder.safetensors, heads.safetensors, curve.jsonl
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paribus.data.packing import load
from paribus.objectives.loader import Steps
from paribus.objectives.mlm import Mlm
from paribus.plan.stages import Pretraining
from paribus.spec.run import Runtime
from paribus.store.store import Work
from paribus.train.checkpoint import Checkpoints, newest
from paribus.train.fit import device, fit
from paribus.train.watch import Diverged, Watch

MICRO_TOKENS = 65536


def pretrain(
    spec: Pretraining,
    seed: int,
    pack: Path,
    vocabulary: int,
    work: Work,
    runtime: Runtime,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, object]:
    """Train, write the stage's files into `work.out`. Returns what its record says besides: outcome, cost, device."""
    rows = load(pack, "train")
    budget = spec.budget
    where = device(runtime)
    micro_rows = runtime.micro_batch_rows or max(1, MICRO_TOKENS // rows.tokens.shape[1])
    steps = Steps(rows, spec, vocabulary, seed, micro_rows)
    module = Mlm(spec, vocabulary, seed)
    folder = work.scratch / "checkpoints"
    found = newest(folder)
    checkpoint, steps.first = found or (None, 0)
    watch = Watch(work.scratch, budget.steps, budget.batch_tokens, math.log(vocabulary), steps.first, stop=stop)
    callbacks = [watch, Checkpoints(folder, runtime.checkpoint_seconds)]
    outcome: dict[str, Any] = {"outcome": "done"}
    try:
        fit(module, steps, budget.steps, spec.precision, runtime, callbacks, checkpoint)
    except Diverged as error:
        outcome = {"outcome": "diverged", "diverged_step": error.step}
    else:
        save_file(module.encoder.state_dict(), work.out / "encoder.safetensors")
        heads = {f"head.{name}": tensor for name, tensor in module.head.state_dict().items()}
        if module.sentence_head is not None:
            heads |= {f"sentence_head.{name}": t for name, t in module.sentence_head.state_dict().items()}
        save_file(heads, work.out / "heads.safetensors")
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
