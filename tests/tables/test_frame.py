from collections.abc import Callable

import polars as pl
import pytest

from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Stage
from paribus.project import Project
from paribus.store.store import Store
from paribus.tables.frame import SCHEMA, chosen, frame, states
from paribus.tables.table import experiment_table

Fill = Callable[..., None]


@pytest.fixture
def planned(project: Project) -> Plan:
    return plan(project, "masks", "mini")


def stages(run: PlannedRun, kind: str) -> list[Stage]:
    return [stage for stage in run.stages if stage.kind == kind]


def last_of(planned: Plan, label: str) -> PlannedRun:
    return [run for run in planned.runs if run.arm.label == label][-1]


def test_an_empty_store_is_an_empty_frame_of_the_same_columns(planned: Plan, store: Store) -> None:
    found = frame(planned, store)
    assert (found.height, found.schema) == (0, pl.Schema(SCHEMA))


def test_every_measurement_is_a_row(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned)
    found = frame(planned, store)
    # A run: vocabulary 3, pack 2, pretrain 2, evaluate 5, majority 2 + 1;
    # tunings 2 rates x 2 restarts x (2 + 1) metrics x 2 splits.
    assert found.height == 6 * (3 + 2 + 2 + 5 + 3 + 24)
    assert found.filter(pl.struct(pl.all()).is_duplicated()).is_empty()
    evaluate = found.filter(stage="evaluate", arm="dynamic", seed=1, metric="loss", split="test")
    row = evaluate.row(0, named=True)
    run = next(run for run in planned.runs if (run.arm.label, run.seed) == ("dynamic", 1))
    assert row == {
        "arm": "dynamic", "baseline": False, "seed": 1, "run": run.key, "stage": "evaluate",
        "key": stages(run, "evaluate")[0].key, "task": "mlm", "lr": None, "restart": None, "metric": "loss",
        "split": "test", "value": pytest.approx(4.42), "n": 100,
    }  # fmt: skip
    assert set(found.filter(stage="finetune")["lr"]) == {1e-3, 3e-3}
    assert set(found.filter(stage="finetune")["restart"]) == {0, 1}
    assert found.filter(stage="pack")["task"].null_count() == 12


def test_the_rate_is_chosen_on_select_and_reported_on_dev(planned: Plan, store: Store, fill: Fill) -> None:
    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        if stage.kind != "finetune" or stage.spec.task.name != "grammar":
            return []
        better = stage.spec.lr == 3e-3  # on select; on dev it is the worse one
        return [
            ("mcc", "select", 0.6 if better else 0.5),
            ("mcc", "dev", (0.3 if better else 0.9) + 0.02 * stage.spec.restart),
            ("accuracy", "select", 0.0 if better else 1.0),
            ("accuracy", "dev", 0.0),
        ]

    fill(store, planned, measure)
    found = chosen(planned, frame(planned, store))
    assert found.columns == ["arm", "seed", "run", "task", "lr", "value"]
    assert found.height == 6  # restarts are averaged, not counted
    assert found["lr"].to_list() == [3e-3] * 6
    assert found["value"].to_list() == pytest.approx([0.31] * 6)


def test_a_tie_goes_to_the_smaller_rate(planned: Plan, store: Store, fill: Fill) -> None:
    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        return [("mcc", split, 0.5) for split in ("select", "dev")] if stage.kind == "finetune" else []

    fill(store, planned, measure)
    assert set(chosen(planned, frame(planned, store))["lr"]) == {1e-3}


def test_a_finetuning_that_diverged_loses_the_choice_and_takes_no_score_away(
    planned: Plan, store: Store, fill: Fill
) -> None:
    def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str, float]]:
        diverged = stage.kind == "finetune" and stage.spec.lr == 1e-3
        if diverged or stage.kind != "finetune":
            return []
        return [(stage.spec.task.metrics[0], split, 0.1) for split in ("select", "dev")]

    fill(store, planned, measure)
    found = chosen(planned, frame(planned, store))
    assert set(found["lr"]) == {3e-3}
    assert len(found) == len(planned.runs) * 2, "a score for each run and task"
    notes = experiment_table(planned, store).notes
    lost = next(note for note in notes if note.startswith("Fine-tunings that diverged"))
    assert "static, grammar: 6" in lost and "dynamic, casing: 6" in lost  # three seeds, two restarts


def test_an_unfinished_grid_has_no_score(planned: Plan, store: Store, fill: Fill) -> None:
    run = last_of(planned, "dynamic")
    fill(store, planned, missing=[stages(run, "finetune")[0].key])
    found = chosen(planned, frame(planned, store))
    seeds = {task: sorted(rows["seed"]) for (task,), rows in found.filter(arm="dynamic").group_by("task")}
    assert seeds == {"grammar": [0, 1], "casing": [0, 1, 2]}


def test_runs_are_done_diverged_failed_or_missing(planned: Plan, store: Store, fill: Fill) -> None:
    runs = {(run.arm.label, run.seed): run for run in planned.runs}
    fill(
        store,
        planned,
        missing=[stages(runs["static", 1], "evaluate")[0].key, stages(runs["dynamic", 2], "pretrain")[0].key],
        diverged=[stages(runs["dynamic", 0], "pretrain")[0].key],
    )
    assert states(planned, store, failed={runs["dynamic", 2].key, runs["static", 0].key}) == {
        ("static", 0): "done",  # it was tried again since
        ("static", 1): "missing",
        ("static", 2): "done",
        ("dynamic", 0): "diverged",
        ("dynamic", 1): "done",
        ("dynamic", 2): "failed",
    }
