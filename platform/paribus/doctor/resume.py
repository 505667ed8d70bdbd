"""Proof that a run resumes to the same bits on this machine: pretrained undisturbed, and killed at a checkpoint.

Masked language modelling and replaced-token detection, with dropout, at scale debug. `python -m paribus.doctor.resume`
is the process that trains and is killed.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from paribus.errors import ParibusError
from paribus.plan.plan import plan
from paribus.plan.stages import Stage, Stages
from paribus.project import find
from paribus.spec.load import build
from paribus.spec.run import Evaluation, Run, Runtime
from paribus.store.store import Store

# The experiments whose baselines are trained, by the name of their objective.
EXPERIMENTS = {"mlm": "masking", "rtd": "electra-controls"}
UPDATES = 128
CHECKPOINT_SECONDS = 0.2


def prove(device: str) -> Iterator[tuple[str, str | None]]:
    """For each objective its name, and the first difference that resuming made, or None."""
    runtime = Runtime(device=device, checkpoint_seconds=CHECKPOINT_SECONDS)
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        runs = [debug_run(Path(folder), experiment) for experiment in EXPERIMENTS.values()]
        undisturbed, killed = Path(folder) / "undisturbed", Path(folder) / "killed"
        _finish(_start(undisturbed, runs, runtime))
        keys = [pretraining(run)[-1].key for run in runs]
        shutil.copytree(undisturbed / "stages", killed / "stages", ignore=lambda _, names: set(names) & set(keys))
        for key in keys:
            _kill_at_checkpoint(_start(killed, runs, runtime), killed, key)
        _finish(_start(killed, runs, runtime))
        for objective, key in zip(EXPERIMENTS, keys, strict=True):
            resumed = Store(killed).record(key)["resumed_at"]
            if resumed == 0:
                raise ParibusError(f"doctor resume: {objective} began anew, its checkpoint was not found good")
            difference = first_difference(undisturbed / "stages" / key, killed / "stages" / key)
            yield f"{objective}, resumed at update {resumed} of {UPDATES}", difference


def debug_run(folder: Path, experiment: str) -> Run:
    """The baseline of a shipped experiment, as small as tests have it, with nothing to fine-tune."""
    tokens = UPDATES * 1024
    planned = plan(find(folder), experiment, "debug", 1, {"budget.train_tokens": tokens, "budget.batch_tokens": 1024})
    return planned.baseline.run.model_copy(update={"evaluation": Evaluation()})


def pretraining(run: Run) -> list[Stage]:
    """The stages of a run up to its pretraining."""
    stages = Stages(run).at(run.seed)
    return stages[: [stage.kind for stage in stages].index("pretrain") + 1]


def _start(root: Path, runs: Sequence[Run], runtime: Runtime) -> "subprocess.Popen[str]":
    asked = {
        "store": str(root),
        "runs": [run.model_dump(mode="json") for run in runs],
        "runtime": runtime.model_dump(mode="json"),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "paribus.doctor.resume"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root.parent,
    )
    assert child.stdin
    child.stdin.write(json.dumps(asked))
    child.stdin.close()
    child.stdin = None  # or communicate() would flush it
    return child


def _finish(child: "subprocess.Popen[str]") -> None:
    try:
        assert child.stderr
        said = child.stderr.read()
        if child.wait() != 0:
            raise ParibusError(f"doctor resume: a run failed: {said.strip().splitlines()[-1]}")
    finally:
        child.kill()


def _kill_at_checkpoint(child: "subprocess.Popen[str]", root: Path, key: str) -> None:
    checkpoints = root / "doing" / key / "scratch" / "checkpoints"
    try:
        while not any(int(path.stem.partition("-")[0]) >= UPDATES // 4 for path in checkpoints.glob("*.ckpt")):
            if child.poll() is not None:
                _finish(child)
                raise ParibusError(f"doctor resume: {key} ended before it was killed")
            time.sleep(0.002)
    finally:
        child.kill()
        child.communicate()


def first_difference(one: Path, other: Path) -> str | None:
    """The first row or tensor in which two finished stages differ, or None."""
    from safetensors.numpy import load_file

    rows = [(folder / "rows.jsonl").read_text().splitlines() for folder in (one, other)]
    for here, there in zip(*rows, strict=True):
        if here != there:
            return f"rows.jsonl: {here} undisturbed, {there} resumed"
    for path in sorted(one.glob("*.safetensors")):
        resumed = load_file(other / path.name)
        for name, tensor in load_file(path).items():
            differ = tensor.view("uint8") != resumed[name].view("uint8")
            if differ.any():
                largest = abs(tensor - resumed[name]).max()
                return f"{path.name}: {name} differs by up to {largest:.3g}"
    return None


def _child() -> int:
    """Pretrain the runs that standard input describes."""
    from paribus.execute import Context, execute

    asked = json.load(sys.stdin)
    store = Store(Path(asked["store"]))
    store.prepare()
    runtime = Runtime.model_validate(asked["runtime"])
    for told in asked["runs"]:
        run = build(Run, told, "run")
        try:
            execute(Context(find(), store, runtime, run), pretraining(run))
        except ParibusError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(_child())
