"""The pretrain stage: train an encoder on packed rows, resuming from the newest good checkpoint.

stage folder: encoder.safetensors, heads.safetensors, curve.jsonl; generator.safetensors of replaced-token detection
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paribus.data.packing import Rows, load
from paribus.errors import ParibusError
from paribus.objectives.loader import Steps
from paribus.objectives.mlm import Mlm
from paribus.objectives.module import Pretrained
from paribus.objectives.rtd import Rtd
from paribus.plan.stages import Pretraining
from paribus.project import find
from paribus.spec import objective as spec_of
from paribus.spec.load import build
from paribus.spec.run import Runtime
from paribus.store.store import Work
from paribus.train.checkpoint import Checkpoints, newest
from paribus.train.fit import device, fit
from paribus.train.lightning import pl
from paribus.train.ranks import Ranks, joined
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
    for name, weights in module.ranks.whole("files", module.files()).items():
        save_file(weights, folder / f"{name}.safetensors")
    try:
        return judge.measure(folder)
    finally:
        shutil.rmtree(folder)


def build_objective(spec: Pretraining, vocabulary: int, seed: int) -> Pretrained:
    """The module of a pretraining's objective, with its first values."""
    return OBJECTIVE[type(spec.objective)](spec, vocabulary, seed)


def prepare(
    spec: Pretraining, seed: int, rows: Rows, vocabulary: int, runtime: Runtime, ranks: Ranks
) -> tuple[Steps, Pretrained]:
    """The steps and the module of one rank."""
    micro_rows = runtime.micro_batch_rows or max(1, MICRO_TOKENS // rows.tokens.shape[1])
    module = build_objective(spec, vocabulary, seed)
    module.micro_rows, module.ranks = micro_rows, ranks
    fixed = False
    if runtime.compile != "off":
        if runtime.strategy == "fsdp":
            print(f"--compile {runtime.compile}: not with --strategy fsdp; as written", file=sys.stderr)
        else:
            module.passes.how, fixed = runtime.compile, True
    pinned = device(runtime).type == "cuda"
    return Steps(rows, spec, vocabulary, seed, micro_rows, ranks, fixed, pinned), module


def pretrain(
    spec: Pretraining,
    seed: int,
    pack: Path,
    vocabulary: int,
    work: Work,
    runtime: Runtime,
    seat: Callable[[float], int] = lambda peak_mb: 0,
    judge: Judge | None = None,
) -> dict[str, object]:
    """Train, write the stage's files into `work.out`. Returns what its record says besides: outcome, cost, how it ran.

    `seat` is told the memory taken and answers how many other runs share the device. With a `judge` it tells its
    validation loss on the way, and ends as `pruned` where that says so.
    """
    rows = load(pack, "train")
    budget = spec.budget
    where = device(runtime)
    if budget.batch_tokens // rows.tokens.shape[1] < runtime.devices:
        most = budget.batch_tokens // rows.tokens.shape[1]
        raise ParibusError(f"--devices {runtime.devices}: a step has {most} rows, and each device needs one of them")
    if runtime.strategy == "fsdp" and not isinstance(spec.objective, spec_of.Mlm):
        raise ParibusError(f"--strategy fsdp: expected objective.kind mlm, found {spec.objective.kind}; ddp takes it")
    ranks = Ranks(0, runtime.devices)
    steps, module = prepare(spec, seed, rows, vocabulary, runtime, ranks)
    found = newest(work)
    checkpoint, steps.first = found or (None, 0)
    steps.workers = runtime.loader_workers
    watch = Watch(work.scratch, budget.steps, budget.batch_tokens, module.guess, steps.first, seat=seat)
    callbacks: list[pl.Callback] = [watch, Checkpoints(work, runtime.checkpoint_seconds)]
    told: Mapping[str, object] = {}
    if judge:
        measure = partial(_measured, work.scratch / "reported", judge)
        reports = Reports(work.scratch, budget.steps, judge.count, measure, judge.prune, steps.first)
        callbacks.insert(0, reports)
        told = {"reports": reports.told}
    outcome: dict[str, Any] = {"outcome": "done"}
    asked = {
        "spec": spec.model_dump(mode="json", include=set(Pretraining.model_fields)),
        "seed": seed,
        "pack": str(pack),
        "vocabulary": vocabulary,
        "runtime": runtime.model_dump(mode="json"),
        "checkpoint": found and [str(checkpoint), steps.first],
    }
    try:
        with _others(asked, runtime.devices, where), _spread(module, runtime.strategy, where):
            fit(module, steps, budget.steps, spec.precision, runtime, callbacks, checkpoint)
            files = module.ranks.whole("files", module.files())
    except Diverged as error:
        outcome = {"outcome": "diverged", "diverged_step": error.step}
    except Pruned as error:
        outcome = {"outcome": "pruned", "pruned_step": error.step}
    else:
        for name, weights in files.items():
            save_file(weights, work.out / f"{name}.safetensors")
    finally:
        module.passes.forget()  # the card is wanted by what comes next, however this ended
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
        "micro_batch_rows": module.micro_rows,
        "out_of_memory": module.out_of_memory,
        "devices": runtime.devices,
        "strategy": runtime.strategy,
        "compile": "off, in fixed shapes" if module.passes.how == "off" and steps.fixed else module.passes.how,
        "sdpa": runtime.sdpa,
        "shared_with": watch.shared_with,
    }


def _spread(module: Pretrained, strategy: str, where: torch.device) -> AbstractContextManager[None]:
    """Spread the module over the ranks, if it is to be."""
    if strategy == "ddp":
        return nullcontext()
    from paribus.train.shards import sharded  # takes its time, and is seldom asked for

    assert isinstance(module, Mlm)
    return sharded(module, module.encoder.blocks, "losses", module.files, where)


@contextmanager
def _others(asked: dict[str, Any], world: int, where: torch.device) -> Iterator[None]:
    """The other ranks of a pretraining, as processes, while this one trains as the first. They keep no files and decide
    nothing: when this one ends early, for whatever reason, they are killed."""
    if world == 1:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        others = {}
        try:
            for rank in range(1, world):
                command = [sys.executable, "-m", "paribus.objectives.pretrain"]
                others[rank] = subprocess.Popen(command, stdin=subprocess.PIPE)
                theirs = f"cuda:{where.index + rank}" if where.type == "cuda" else "cpu"
                told = {**asked, "folder": folder, "rank": rank, "device": theirs}
                stream = others[rank].stdin
                assert stream
                stream.write(json.dumps(told).encode())
                stream.close()
            while not all((Path(folder) / str(rank)).exists() for rank in others):
                _refuse_dead(others)
                time.sleep(0.05)
            with joined(Path(folder) / "meeting", 0, world, where):
                try:
                    yield
                except BaseException as error:
                    if isinstance(error, RuntimeError):  # what is heard of a rank that is gone
                        time.sleep(1.0)
                        _refuse_dead(others)
                    _kill(others)  # before it is noticed there that this one leaves
                    raise
            for other in others.values():
                other.wait(60)
        finally:
            _kill(others)


def _refuse_dead(others: Mapping[int, "subprocess.Popen[bytes]"]) -> None:
    for rank, other in others.items():
        if other.poll():
            raise RuntimeError(f"process {rank} of {len(others) + 1} ended with code {other.returncode}")


def _kill(others: Mapping[int, "subprocess.Popen[bytes]"]) -> None:
    for other in others.values():
        other.kill()
        other.wait()


def _follow() -> None:
    """Train as a rank but the first, as standard input says."""
    asked = json.load(sys.stdin)
    find()  # a user's own variants are part of the vocabulary
    runtime = Runtime.model_validate({**asked["runtime"], "devices": 1, "device": asked["device"]})
    ranks = Ranks(asked["rank"], asked["runtime"]["devices"])
    spec = build(Pretraining, asked["spec"], "pretraining")
    rows = load(Path(asked["pack"]), "train")
    steps, module = prepare(spec, asked["seed"], rows, asked["vocabulary"], runtime, ranks)
    checkpoint, steps.first = asked["checkpoint"] or (None, 0)
    folder = Path(asked["folder"])
    (folder / str(ranks.rank)).touch()
    where = device(runtime)
    with joined(folder / "meeting", ranks.rank, ranks.world, where), _spread(module, runtime.strategy, where):
        fit(module, steps, spec.budget.steps, spec.precision, runtime, checkpoint=checkpoint and Path(checkpoint))


if __name__ == "__main__":
    _follow()
    # It has nothing left to do, and gloo's threads are known to abort a process whose interpreter is ending.
    os._exit(0)
