from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Stage
from paribus.project import Project, find
from paribus.spec.experiment import GLUE_AVERAGES
from paribus.spec.finetuning import Point
from paribus.store.index import Finished
from paribus.store.store import Store
from paribus.tables.experiment import experiment_table
from paribus.tables.frame import SCHEMA, averages, chosen, frame, states

Fill = Callable[..., None]


@pytest.fixture
def planned(project: Project) -> Plan:
    return plan(project, "masks", "mini")


def stages(run: PlannedRun, kind: str) -> list[Stage]:
    return [stage for stage in run.stages if stage.kind == kind]


def last_of(planned: Plan, label: str) -> PlannedRun:
    return [run for run in planned.runs if run.arm.label == label][-1]


def test_an_empty_store_is_an_empty_frame_of_the_same_columns(planned: Plan, store: Store) -> None:
    found = frame(planned, Finished(store, planned.runs))
    assert (found.height, found.schema) == (0, pl.Schema(SCHEMA))


def test_every_measurement_is_a_row(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned)
    found = frame(planned, Finished(store, planned.runs))
    # A run: vocabulary 3, pack 2, pretrain 2, evaluate 5, majority 2 + 1;
    # tunings 2 rates x 2 restarts x (2 + 1) metrics x 2 splits.
    assert found.height == 6 * (3 + 2 + 2 + 5 + 3 + 24)
    assert found.filter(pl.struct(pl.all()).is_duplicated()).is_empty()
    evaluate = found.filter(stage="evaluate", arm="dynamic", seed=1, metric="loss", split="test")
    row = evaluate.row(0, named=True)
    run = next(run for run in planned.runs if (run.arm.label, run.seed) == ("dynamic", 1))
    assert row == {
        "arm": "dynamic", "baseline": False, "seed": 1, "run": run.key, "stage": "evaluate",
        "key": stages(run, "evaluate")[0].key, "task": "mlm", "lr": None,
        "batch_items": None, "epochs": None, "warmup": None, "dropout": None, "restart": None, "metric": "loss",
        "split": "test", "value": pytest.approx(4.42), "n": 100,
    }  # fmt: skip
    assert set(found.filter(stage="finetune")["lr"]) == {1e-3, 3e-3}
    assert set(found.filter(stage="finetune")["restart"]) == {0, 1}
    assert found.filter(stage="pack")["task"].null_count() == 12


def test_the_rate_is_chosen_on_select_and_reported_on_dev(planned: Plan, store: Store, fill: Fill) -> None:
    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        if stage.kind != "finetune" or stage.spec.task.name != "grammar":
            return []
        better = stage.spec.point.lr == 3e-3  # on select; on dev it is the worse one
        return [
            ("mcc", "select", 0.6 if better else 0.5),
            ("mcc", "dev", (0.3 if better else 0.9) + 0.02 * stage.spec.restart),
            ("accuracy", "select", 0.0 if better else 1.0),
            ("accuracy", "dev", 0.0),
        ]

    fill(store, planned, measure)
    found = chosen(planned, frame(planned, Finished(store, planned.runs)))
    assert found.columns == ["arm", "seed", "run", "task", *Point._fields, "metric", "value"]
    assert found.height == 6 * 2  # two metrics; restarts are averaged, not counted
    assert found["lr"].to_list() == [3e-3] * 12
    assert found.filter(metric="mcc")["value"].to_list() == pytest.approx([0.31] * 6)
    assert found.filter(metric="accuracy")["value"].to_list() == [0.0] * 6


def test_a_tie_goes_to_the_smaller_rate(planned: Plan, store: Store, fill: Fill) -> None:
    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        return [("mcc", split, 0.5) for split in ("select", "dev")] if stage.kind == "finetune" else []

    fill(store, planned, measure)
    assert set(chosen(planned, frame(planned, Finished(store, planned.runs)))["lr"]) == {1e-3}


def test_a_finetuning_that_diverged_loses_the_choice_and_takes_no_score_away(
    planned: Plan, store: Store, fill: Fill
) -> None:
    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        diverged = stage.kind == "finetune" and stage.spec.point.lr == 1e-3
        if diverged or stage.kind != "finetune":
            return []
        return [(stage.spec.task.metrics[0], split, 0.1) for split in ("select", "dev")]

    fill(store, planned, measure)
    found = chosen(planned, frame(planned, Finished(store, planned.runs)))
    assert set(found["lr"]) == {3e-3}
    first = found.filter(pl.col("metric").is_in(["mcc", "f1"]))
    assert len(first) == len(planned.runs) * 2, "a score for each run and task"
    notes = experiment_table(planned, store).notes
    lost = next(note for note in notes if note.startswith("Fine-tunings that diverged"))
    assert "static, grammar: 6" in lost and "dynamic, casing: 6" in lost  # three seeds, two restarts


def test_an_unfinished_grid_has_no_score(planned: Plan, store: Store, fill: Fill) -> None:
    run = last_of(planned, "dynamic")
    fill(store, planned, missing=[stages(run, "finetune")[0].key])
    found = chosen(planned, frame(planned, Finished(store, planned.runs)))
    mine = found.filter(pl.col("metric") != "accuracy", arm="dynamic")
    seeds = {task: sorted(rows["seed"]) for (task,), rows in mine.group_by("task")}
    assert seeds == {"grammar": [0, 1], "casing": [0, 1, 2]}


def test_runs_are_done_diverged_failed_or_missing(planned: Plan, store: Store, fill: Fill) -> None:
    runs = {(run.arm.label, run.seed): run for run in planned.runs}
    fill(
        store,
        planned,
        missing=[stages(runs["static", 1], "evaluate")[0].key, stages(runs["dynamic", 2], "pretrain")[0].key],
        diverged=[stages(runs["dynamic", 0], "pretrain")[0].key],
    )
    assert states(planned, Finished(store, planned.runs), failed={runs["dynamic", 2].key, runs["static", 0].key}) == {
        ("static", 0): "done",  # it was tried again since
        ("static", 1): "missing",
        ("static", 2): "done",
        ("dynamic", 0): "diverged",
        ("dynamic", 1): "done",
        ("dynamic", 2): "failed",
    }


def test_a_protocol_that_chooses_on_dev_chooses_by_dev_and_its_columns_are_marked(
    project: Project, store: Store, fill: Fill
) -> None:
    own = {"finetuning.choose_on": "dev", "finetuning.aggregate": "median"}
    planned = plan(project, "masks", "mini", 1, {**own, "finetuning.seeds": 3})

    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        if stage.kind != "finetune":
            return []
        at = stage.spec.point.lr == 3e-3
        return [(stage.spec.task.metrics[0], "dev", (0.6 if at else 0.5) + (0, 0.01, 0.5)[stage.spec.restart])]

    fill(store, planned, measure)
    found = chosen(planned, frame(planned, Finished(store, planned.runs)))
    assert set(found["lr"]) == {3e-3} and found["value"].to_list() == pytest.approx([0.61] * 4)  # the median
    table = experiment_table(planned, store)
    assert [column.label for column in table.columns if "†" in column.label] == ["grammar mcc †", "casing f1 †"]
    (note,) = (note for note in table.notes if note.startswith("†"))
    assert "Chosen on dev, the items that are reported" in note
    held_out = experiment_table(plan(project, "masks", "mini", 1), store)
    assert not any("†" in column.label for column in held_out.columns)
    told = next(note for note in table.notes if note.startswith("Task scores"))
    assert "held out of train" not in told and "median of 3 restarts" in told


PRINTED = {"glue-bert": "bert-glue", "glue-leaderboard": "t5-glue", "glue-electra": "electra-glue"}


@pytest.mark.parametrize("name", PRINTED)
def test_glue_averages_are_those_that_papers_print(name: str) -> None:
    table = find(Path(__file__).parents[2]).tables.get(PRINTED[name])
    checked = 0
    for row in table.rows:
        printed = {
            f"{column.task.replace('_', '-')}.{column.metric.replace('acc', 'accuracy')}": row.values[column.key]
            for column in table.columns
            if column.task and "_v1" not in column.key
        }
        rows = [("a", 0, *key.split("."), value) for key, value in printed.items() if value is not None]
        names = ("arm", "seed", "task", "metric", "value")
        scores = pl.DataFrame(rows, schema={name: SCHEMA[name] for name in names}, orient="row")
        (value,) = averages(scores, GLUE_AVERAGES[name])["value"].to_list()
        assert value == pytest.approx(row.values["glue_avg"], abs=0.1), row.key  # printed to one digit, of rounded ones
        checked += 1
    assert checked >= 5
    assert averages(scores.filter(pl.col("task") != "rte"), GLUE_AVERAGES[name]).is_empty()
