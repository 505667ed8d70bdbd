"""The store as one tidy frame: a row a measurement of a plan. Statistics are in stats, layout in table."""

import math
from collections.abc import Collection, Sequence
from statistics import fmean
from typing import Any

import polars as pl

from paribus.plan.choice import best_point, over_restarts
from paribus.plan.plan import Plan
from paribus.plan.stages import PairTest, Stage, TaskTuning
from paribus.spec.finetuning import Point
from paribus.spec.task import Task
from paribus.store.index import Finished

SCHEMA = {
    "arm": pl.String,
    "baseline": pl.Boolean,
    "seed": pl.Int64,
    "run": pl.String,
    "stage": pl.String,
    "key": pl.String,
    "task": pl.String,
    "lr": pl.Float64,
    "batch_items": pl.Int64,
    "epochs": pl.Int64,
    "warmup": pl.Float64,
    "dropout": pl.Float64,
    "restart": pl.Int64,
    "metric": pl.String,
    "split": pl.String,
    "value": pl.Float64,
    "n": pl.Int64,
}


def frame(plan: Plan, finished: Finished) -> pl.DataFrame:
    """Everything measured for `plan`, a row a measurement, with the columns of SCHEMA.

    `stage` is the stage's kind, `run` and `key` are content keys, `n` is the number of items measured. `task` is 'mlm'
    for the held-out loss ('generator' and 'rtd' after replaced-token detection), the task's name for its baseline,
    fine-tunings and minimal pairs, else null. Losses are in nats, scores of
    tasks are fractions. A stage that several runs share appears in each. A fine-tuning that diverged has a score that
    is no number, which no choice of a rate takes.
    """
    of_run = {
        "arm": [run.arm.label for run in plan.runs for _ in run.stages],
        "baseline": [run.arm.baseline for run in plan.runs for _ in run.stages],
        "seed": [run.seed for run in plan.runs for _ in run.stages],
        "run": [run.key for run in plan.runs for _ in run.stages],
        "key": [stage.key for run in plan.runs for stage in run.stages],
    }
    stages = {stage.key: stage for run in plan.runs for stage in run.stages if stage.key in finished.records}
    told = [(stage.kind, key, *_recipe(stage)) for key, stage in stages.items()]
    of_stage = {name: SCHEMA[name] for name in ("stage", "key", "task", *Point._fields, "restart")}
    empty = stages.keys() - set(finished.rows["key"])
    lost = [(key, *row) for key in sorted(empty) for row in _diverged(stages[key])]
    measured = pl.concat([finished.rows, pl.DataFrame(lost, finished.rows.schema, orient="row")])
    return (
        pl.DataFrame(of_run, {name: SCHEMA[name] for name in of_run})
        .join(pl.DataFrame(told, of_stage, orient="row"), on="key", maintain_order="left")
        .join(measured, on="key", maintain_order="left_right", suffix="_measured")
        .with_columns(pl.coalesce("task_measured", "task").alias("task"))
        .select(SCHEMA.keys())
    )


def _diverged(stage: Stage) -> list[tuple[Any, ...]]:
    """What a fine-tuning that measured nothing counts as: it diverged."""
    if not isinstance(stage.spec, TaskTuning):
        return []
    splits = sorted({stage.spec.choose_on, "dev"})
    return [(None, stage.spec.task.metrics[0], split, math.nan, None) for split in splits]


def _recipe(stage: Stage) -> tuple[str | float | None, ...]:
    """task, point of its grid and restart of a stage."""
    if isinstance(stage.spec, TaskTuning):
        return stage.spec.task.name, *stage.spec.point, stage.spec.restart
    task = "mlm" if stage.kind == "evaluate" else None
    if isinstance(stage.spec, Task | PairTest):
        task = (stage.spec.task if isinstance(stage.spec, PairTest) else stage.spec).name
    return task, *[None] * len(Point._fields), None


def states(plan: Plan, finished: Finished, failed: Collection[str] = ()) -> dict[tuple[str, int], str]:
    """Each run (arm, seed) as done, diverged, failed, missing, or untuned: known when the tuning of its arm is done.

    `failed` are the runs' keys the queue gave up on.
    """
    found = {(arm.label, seed): "untuned" for arm in plan.untuned for seed in range(plan.seeds)}
    for run in plan.runs:
        if finished.records.get(run.pretrained.key, {}).get("outcome") == "diverged":
            state = "diverged"
        elif all(stage.key in finished.records for stage in run.stages):
            state = "done"
        else:
            state = "failed" if run.key in failed else "missing"
        found[run.arm.label, run.seed] = state
    return found


def chosen(plan: Plan, frame: pl.DataFrame) -> pl.DataFrame:
    """Each run's scores on each task at the chosen point of the grid: arm, seed, run, task, the point, metric, value.

    The point is the best on the split that chooses (`select`, held out of train, unless the protocol says `dev`) by the
    task's first metric; the value is that of `dev` there, both summed up over restarts. Restarts are nested in the run:
    they share its pretrained encoder, so they are never counted as replicates. A task whose grid is not finished has no
    score.
    """
    tasks = {task.name: task for task in plan.baseline.run.evaluation.tasks}
    recipes = {(arm.label, name): arm.run.finetuning.of(task) for arm in plan.arms for name, task in tasks.items()}
    scores: dict[tuple[Any, ...], dict[tuple[str, str], dict[Point, list[float]]]] = {}
    rows = frame.filter(pl.col("stage") == "finetune").sort(*Point._fields, "restart")
    for row in rows.select("arm", "seed", "run", "task", "metric", "split", *Point._fields, "value").iter_rows():
        of = scores.setdefault(row[:4], {}).setdefault(row[4:6], {})
        of.setdefault(Point._make(row[6:-1]), []).append(row[-1])
    found = []
    for (arm, seed, run, task), measured in sorted(scores.items()):
        recipe, first = recipes[arm, task], tasks[task].metrics[0]
        asked = measured.get((first, recipe.choose_on), {})
        if sum(map(len, asked.values())) < len(recipe.points) * recipe.seeds:
            continue
        point = best_point({point: over_restarts(values, recipe.aggregate) for point, values in asked.items()})
        if point is None:
            continue
        for (metric, split), of in measured.items():
            if split == "dev" and metric in tasks[task].metrics:
                found.append((arm, seed, run, task, *point, metric, over_restarts(of[point], recipe.aggregate)))
    names = ("arm", "seed", "run", "task", *Point._fields, "metric", "value")
    return pl.DataFrame(found, schema={name: SCHEMA[name] for name in names}, orient="row")


def averages(scores: pl.DataFrame, columns: Sequence[Sequence[str]]) -> pl.DataFrame:
    """Each run's mean over `columns`, each the mean of the metrics it names (task.metric), of what `chosen` gave: arm,
    seed, value. A run that lacks one of them has none.
    """
    measured: dict[tuple[str, int], dict[str, float]] = {}
    for arm, seed, task, metric, value in scores.select("arm", "seed", "task", "metric", "value").iter_rows():
        measured.setdefault((arm, seed), {})[f"{task}.{metric}"] = value
    found = [
        (arm, seed, fmean(fmean(of[name] for name in names) for names in columns))
        for (arm, seed), of in measured.items()
        if all(name in of for names in columns for name in names)
    ]
    return pl.DataFrame(found, schema={name: SCHEMA[name] for name in ("arm", "seed", "value")}, orient="row")
