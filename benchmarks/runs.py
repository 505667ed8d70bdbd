"""Whole runs an hour on one device: python benchmarks/runs.py FILE [--ways off:1 graphs:1 graphs:4]

Static and dynamic masking of the base `bert`: a pretraining, its evaluation and eight fine-tunings of two tasks a run.
A way is how steps are computed (`--compile`) and how many workers share the device. Corpus and tasks are prepared
before; each way has a copy of the store they are in, a command of its own, and two runs a worker. The first ones load
and compile: what is counted is from the end of as many runs as there are workers to the end of the last, when they are
about as far as each other. Also told: when the curve of each pretraining had its first reading, of a 200th of its
steps.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paribus.bench.train import head, name_of, refuse_unwritable
from paribus.errors import ParibusError, in_one_line
from paribus.execute import Context, execute
from paribus.plan.arms import arms
from paribus.plan.plan import plan
from paribus.plan.stages import Stages
from paribus.project import PACKAGE, find
from paribus.spec.run import Runtime
from paribus.store.store import Store
from paribus.train.fit import device

NAME = "hour"
EXPERIMENT = """\
question: How many runs an hour?
expect: nothing
base: bert
factors: [masking]
seeds: 1
tasks: {tasks}
sesoi: {{nats: 0.02, points: 1}}
"""
TIMED = ("pretrain", "features", "evaluate", "finetune")


def prepare(home: Path, scale: str, tasks: Sequence[str]) -> None:
    """A project with what all runs share in its store."""
    (home / "paribus.toml").touch()
    (home / "experiments").mkdir()
    (home / "experiments" / f"{NAME}.yaml").write_text(EXPERIMENT.format(tasks=json.dumps(list(tasks))))
    project, store = find(home), Store(home / "results")
    store.prepare()
    for arm in arms(project, NAME, scale):
        stages = Stages(arm.run)
        execute(Context(project, store, Runtime(device="cpu"), arm.run), [*stages.data, *stages.tasks])


def measure(home: Path, scale: str, how: str, workers: int, where: str) -> dict[str, Any]:
    """What two runs a worker take."""
    placed = ["--gpus", "0", "--per-gpu"] if where == "cuda" else ["--device", "cpu", "--workers"]
    asked = ["--scale", scale, "--seeds", str(workers), "--compile", how, *placed, str(workers)]
    # The store of this way, whatever the user's is, and this very code.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PARIBUS_")}
    env["PYTHONPATH"] = os.pathsep.join([str(PACKAGE.parent), env.get("PYTHONPATH", "")])
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "paribus", "run", NAME, *asked],
        cwd=home,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        raise ParibusError(f"paribus run {NAME} {' '.join(asked)}: {done.stderr.strip()}")
    store = Store(home / "results")
    runs = [[store.record(stage.key) for stage in run.stages] for run in plan(find(home), NAME, scale, workers).runs]
    ends = sorted(max(record["finished"] for record in records) - began for records in runs)
    made = {record["key"]: record for records in runs for record in records if record["kind"] in TIMED}
    kept = ("key", "kind", "started", "finished", "seconds", "compile", "shared_with")
    trained = [key for key, record in made.items() if record["kind"] == "pretrain"]
    return {
        "compile": how,
        "workers": workers,
        "began": began,
        "first_readings": sorted(store.curve(key)[0]["time"] - began for key in trained),
        "ends": ends,
        "seconds_a_run": (ends[-1] - ends[workers - 1]) / (len(ends) - workers),
        "stages": [{name: record[name] for name in kept if name in record} for record in made.values()],
    }


def main(file: Path, scale: str, tasks: Sequence[str], ways: Sequence[tuple[str, int]], runtime: Runtime) -> None:
    refuse_unwritable("FILE", file)
    where = device(runtime)
    rows: list[dict[str, Any]] = []
    found = {**head(f"whole runs, bert@{scale}"), "device": name_of(where), "tasks": list(tasks), "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        (home := Path(folder) / "home").mkdir()
        prepare(home, scale, tasks)
        for how, workers in dict.fromkeys(ways):
            shutil.copytree(home, there := Path(folder) / f"{how}-{workers}")
            row = measure(there, scale, how, workers, where.type)
            row["ratio"] = (rows[0] if rows else row)["seconds_a_run"] / row["seconds_a_run"]
            rows.append(row)
            file.write_text(json.dumps(found) + "\n")
            print(
                f"--compile {how:6} {workers:2} at once: {row['seconds_a_run']:7.1f} s a run, "
                f"{3600 / row['seconds_a_run']:7.1f} an hour, {row['ratio']:5.2f}; "
                f"the first {workers} after {row['ends'][workers - 1]:.1f} s, "
                f"their first readings after {row['first_readings'][workers - 1]:.1f}",
                flush=True,
            )


def way(asked: str) -> tuple[str, int]:
    """`graphs:4` as ("graphs", 4)."""
    how, _, workers = asked.partition(":")
    if how not in ("off", "on", "graphs") or not workers.isdecimal() or not int(workers):
        raise argparse.ArgumentTypeError(f"{asked}: expected off, on or graphs, and workers, as graphs:4")
    return how, int(workers)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path)
    options.add_argument("--scale", default="small")
    options.add_argument("--ways", type=way, nargs="+", default=[("off", 1), ("graphs", 1), ("graphs", 4)])
    given = options.parse_args()
    with in_one_line():
        main(given.file, given.scale, ["acceptability", "truecasing"], given.ways, Runtime())
