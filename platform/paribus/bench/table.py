"""A table of many runs, in a process of its own, beside MLflow's `search_runs` over as many runs and metrics."""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from unittest.mock import patch

from paribus.bench.cli import timed
from paribus.plan.plan import Plan, plan
from paribus.plan.stages import Stage, TaskTuning
from paribus.project import find
from paribus.store.store import Store

EXPERIMENT, SCALE = "masking", "debug"
REPEATS = 3

# MLflow gets a run's metrics in one batch, and gives all of them back as a frame.
LOG = """
import sys, json, mlflow
from mlflow.entities import Metric
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.create_experiment("bench")
for line in sys.stdin:
    metrics = [Metric(name, value, 0, 0) for name, value in json.loads(line).items()]
    client.log_batch(client.create_run(experiment).info.run_id, metrics)
"""
SEARCH = """
import sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
assert len(mlflow.search_runs(experiment_names=["bench"], max_results=50_000)) == int(sys.argv[2])
"""


def measure(runs: int, peer: bool) -> None:
    """Print the seconds of `paribus table` over `runs` runs and, with `peer`, of `search_runs`, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "store")
        planned = plan(find(), EXPERIMENT, SCALE, seeds=-(-runs // 2))
        metrics = fill(store, planned)
        print(f"{planned.name}: {len(planned.runs)} runs x {len(metrics[0])} metrics, {len(store.keys())} stages")
        there = {"PARIBUS_STORE": str(store.root)}
        argv = ["-m", "paribus", "table", EXPERIMENT, "--scale", SCALE, "--seeds", str(planned.seeds)]
        _report("paribus table, nothing read before", [timed(argv, **there)])
        ours = _report("paribus table", [timed(argv, **there) for _ in range(REPEATS)])
        if peer:
            uri = f"sqlite:///{folder}/mlflow.db"
            lines = "".join(json.dumps(each) + "\n" for each in metrics)
            subprocess.run([sys.executable, "-c", LOG, uri], input=lines, text=True, check=True, capture_output=True)
            search = ["-c", SEARCH, uri, str(len(metrics))]
            theirs = _report("mlflow search_runs", [timed(search) for _ in range(REPEATS)])
            print(f"paribus table takes {ours / theirs:.2f} times as long as search_runs")


def _report(what: str, seconds: Sequence[tuple[float, float]]) -> float:
    cpu, wall = median(each[0] for each in seconds), median(each[1] for each in seconds)
    print(f"{wall:6.2f} s wall  {cpu:6.2f} s CPU  (median of {len(seconds)})  {what}")
    return wall


def fill(store: Store, planned: Plan) -> list[dict[str, float]]:
    """Finish every stage of a plan with made-up numbers; those of each run, by name."""
    store.prepare()
    provenance = store.record_provenance({"code": "bench", "commit": "bench", "packages": {}, "python": "3"})
    draws, metrics = random.Random(0), list[dict[str, float]]()
    with patch("os.fsync"):  # nobody will miss this store after a power cut
        for run in planned.runs:
            metrics.append({})
            for index, stage in enumerate(run.stages):
                if store.has(stage.key):
                    continue
                work = store.claim(stage)
                assert work
                with work:
                    for name, split, task in _measured(stage):
                        work.row(name, draws.random(), split=split, n=100, **({"task": task} if task else {}))
                        if stage.kind in ("pretrain", "evaluate", "finetune"):
                            metrics[-1][f"{index}.{task}.{name}.{split}"] = work.rows[-1]["value"]
                    work.commit(provenance, device="cpu", seconds=1.0, peak_memory_mb=100)
    return metrics


def _measured(stage: Stage) -> list[tuple[str, str | None, str | None]]:
    """Metric, split and task of what a stage of this kind measures."""
    if stage.kind == "pretrain":
        return [(name, None, None) for name in ("updates", "tokens", "epochs", "masks_a_row", "parameters")]
    if stage.kind == "evaluate":
        tokens, words = ("loss", "loss_error", "perplexity", "accuracy"), ("bits_per_byte", "word_accuracy")
        named = [*((name, "mlm") for name in tokens), *((name, "words") for name in words)]
        return [(name, split, task) for split in ("validation", "test") for name, task in named]
    if isinstance(stage.spec, TaskTuning):
        return [(name, split, None) for split in {stage.spec.choose_on, "dev"} for name in stage.spec.task.metrics]
    if stage.kind == "pack":
        return [("unigram_loss", "test", None), ("unigram_bits_per_byte", "test", None)]
    return []
