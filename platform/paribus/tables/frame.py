"""The store as one tidy frame: a row a measurement of a plan. Statistics are in stats, layout in table."""

import math
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import polars as pl

from paribus.plan.choice import best_rate
from paribus.plan.plan import Plan
from paribus.plan.stages import PairTest, Stage, TaskTuning
from paribus.spec.task import Task
from paribus.store.store import Store

SCHEMA = {
    "arm": pl.String,
    "baseline": pl.Boolean,
    "seed": pl.Int64,
    "run": pl.String,
    "stage": pl.String,
    "key": pl.String,
    "task": pl.String,
    "lr": pl.Float64,
    "restart": pl.Int64,
    "metric": pl.String,
    "split": pl.String,
    "value": pl.Float64,
    "n": pl.Int64,
}


def frame(plan: Plan, store: Store) -> pl.DataFrame:
    """Everything measured for `plan`, a row a measurement, with the columns of SCHEMA.

    `stage` is the stage's kind, `run` and `key` are content keys, `n` is the number of items measured. `task` is 'mlm'
    for the held-out loss ('generator' and 'rtd' after replaced-token detection), the task's name for its baseline,
    fine-tunings and minimal pairs, else null. Losses are in nats, scores of
    tasks are fractions. A stage that several runs share appears in each.
    """
    finished = store.keys()
    measured: dict[str, list[dict[str, Any]]] = {}
    columns: dict[str, list[Any]] = {name: [] for name in SCHEMA}
    appends = [column.append for column in columns.values()]
    for run in plan.runs:
        for stage in run.stages:
            if stage.key not in finished:
                continue
            if stage.key not in measured:
                measured[stage.key] = store.rows(stage.key) or _diverged(stage)
            start = (run.arm.label, run.arm.baseline, run.seed, run.key, stage.kind, stage.key)
            task, lr, restart = _recipe(stage)
            for row in measured[stage.key]:
                values = (
                    *start,
                    row.get("task", task),
                    lr,
                    restart,
                    row["metric"],
                    row["split"],
                    row["value"],
                    row["n"],
                )
                for append, value in zip(appends, values, strict=True):
                    append(value)
    return pl.DataFrame(columns, schema=SCHEMA)


def _diverged(stage: Stage) -> list[dict[str, Any]]:
    """What a fine-tuning that diverged counts as: a score that is no number, which no choice of a rate takes."""
    if not isinstance(stage.spec, TaskTuning):
        return []
    lost = {"metric": stage.spec.task.metrics[0], "value": math.nan, "n": None}
    return [{**lost, "split": split} for split in ("select", "dev")]


def _recipe(stage: Stage) -> tuple[str | None, float | None, int | None]:
    """task, lr and restart of a stage."""
    if isinstance(stage.spec, TaskTuning):
        return stage.spec.task.name, stage.spec.lr, stage.spec.restart
    if isinstance(stage.spec, Task | PairTest):
        return (stage.spec.task if isinstance(stage.spec, PairTest) else stage.spec).name, None, None
    return "mlm" if stage.kind == "evaluate" else None, None, None


def states(plan: Plan, store: Store, failed: Collection[str] = ()) -> dict[tuple[str, int], str]:
    """Each run (arm, seed) as done, diverged, failed, missing, or untuned: known when the tuning of its arm is done.

    `failed` are the runs' keys the queue gave up on.
    """
    finished = store.keys()
    outcomes: dict[str, str] = {}
    found = {(arm.label, seed): "untuned" for arm in plan.untuned for seed in range(plan.seeds)}
    for run in plan.runs:
        pretrain = next(stage.key for stage in run.stages if stage.kind == "pretrain")
        if pretrain in finished and pretrain not in outcomes:
            outcomes[pretrain] = store.record(pretrain)["outcome"]
        if outcomes.get(pretrain) == "diverged":
            state = "diverged"
        elif all(stage.key in finished for stage in run.stages):
            state = "done"
        else:
            state = "failed" if run.key in failed else "missing"
        found[run.arm.label, run.seed] = state
    return found


def chosen(plan: Plan, frame: pl.DataFrame) -> pl.DataFrame:
    """Each run's score on each task's first metric: arm, seed, run, task, lr, value.

    The learning rate is the one with the best mean over restarts on `select` (the smaller one in a tie); the value is
    the mean over restarts on `dev` at that rate. Restarts are nested in the run: they share its pretrained encoder, so
    they are averaged, never counted as replicates. A task whose grid is not finished yet has no score.
    """
    first = {task.name: task.metrics[0] for task in plan.baseline.run.evaluation.tasks}
    grid = {arm.label: len(arm.run.finetuning.learning_rates) * arm.run.finetuning.seeds for arm in plan.arms}
    run = ["arm", "seed", "run", "task"]
    scores = frame.filter(
        pl.col("stage") == "finetune",
        pl.col("metric") == pl.col("task").replace_strict(first, default=None, return_dtype=pl.String),
    )
    means = (
        scores.filter(pl.col("split") == "select")
        .filter(pl.len().over(run) == pl.col("arm").replace_strict(grid, return_dtype=pl.UInt32))
        .group_by(*run, "lr")
        .agg(pl.col("value").mean())
    )
    rates: dict[tuple[Any, ...], dict[float, float]] = defaultdict(dict)
    for *which, lr, value in means.select(*run, "lr", "value").iter_rows():
        rates[tuple(which)][lr] = value
    choices = [(*which, rate) for which, of in rates.items() if (rate := best_rate(of)) is not None]
    best = pl.DataFrame(choices, schema={name: means.schema[name] for name in [*run, "lr"]}, orient="row")
    return (
        scores.filter(pl.col("split") == "dev")
        .join(best, on=[*run, "lr"])
        .group_by(*run, "lr")
        .agg(pl.col("value").mean())
        .sort(*run)
    )
