"""What is declared before the first result is kept, and whoever changes it afterwards is told on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paribus.jobs.plans import enqueue
from paribus.jobs.runs import plan_asked
from paribus.plan.plan import Plan, plan
from paribus.project import Project
from paribus.store.declared import changed, declare
from paribus.store.store import Store
from paribus.tables.experiment import experiment_table

Fill = Callable[..., None]


@pytest.fixture
def planned(project: Project, store: Store) -> Plan:
    found = plan(project, "masks", "mini")
    enqueue(found, store)
    return found


def edited(planned: Plan, **changes: Any) -> Plan:
    return replace(planned, experiment=planned.experiment.model_copy(update=changes))


def test_before_the_first_result_everything_may_be_edited(planned: Plan, store: Store, fill: Fill) -> None:
    other = edited(planned, expect="much", sesoi={"nats": 0.1})
    enqueue(other, store)
    fill(store, planned)
    assert changed(store, other) == []
    assert changed(store, planned) == ["expect (before: much)", "sesoi (before: nats 0.1)"]


def test_what_is_edited_after_the_first_result_is_said_before_the_table(
    planned: Plan, store: Store, fill: Fill
) -> None:
    fill(store, planned)
    assert changed(store, planned) == [] and experiment_table(planned, store).warnings == ()
    other = edited(planned, sesoi={"nats": 0.1}, tasks=("grammar",))
    enqueue(other, store)  # queued again it stays said
    told = "Edited after its runs had begun: tasks (before: grammar; casing); sesoi (before: none)."
    assert told in experiment_table(other, store).warnings


def test_one_result_is_enough(planned: Plan, store: Store, fill: Fill) -> None:
    fill(store, planned, missing={run.stage("evaluate").key for run in planned.runs if run.seed > 0})
    other = edited(planned, expect="much")
    enqueue(other, store)
    assert changed(store, other) == ["expect (before: no measurable difference)"]


def test_an_arm_that_is_left_out_afterwards_is_said_and_one_that_is_added_is_not(
    planned: Plan, store: Store, fill: Fill
) -> None:
    fill(store, planned)
    baseline, other = planned.arms
    more = replace(planned, arms=[baseline, other, replace(other, label="third")])
    assert changed(store, more) == []
    assert changed(store, replace(planned, arms=[baseline])) == ["arms (left out since: dynamic)"]


def test_a_table_has_as_many_seeds_as_were_asked_for(project: Project, store: Store) -> None:
    for asked in (2, 4):
        enqueue(plan(project, "masks", "mini", seeds=asked), store)
    assert [plan_asked(project, store, "masks", "mini", seeds, {}).seeds for seeds in (None, 2)] == [4, 2]
    assert plan_asked(project, store, "masks", "mini", None, {"objective.rate": 0.2}).seeds == 3


def test_what_was_never_queued_here_is_not_known_to_be_edited(project: Project, store: Store, fill: Fill) -> None:
    found = plan(project, "plain", "mini")
    fill(store, found)
    assert changed(store, edited(found, expect="else")) == []
    enqueue(found, store)  # its results may be those of an experiment that shares its runs
    assert changed(store, edited(found, expect="else")) == ["expect (before: flat)"]


def test_a_result_of_the_baseline_alone_is_none_of_the_experiment(planned: Plan, store: Store, fill: Fill) -> None:
    other = {run.stage("evaluate").key for run in planned.runs if not run.arm.baseline}
    fill(store, planned, missing=other)
    declare(store, edited(planned, expect="much"))
    assert changed(store, edited(planned, expect="much")) == []


@pytest.mark.parametrize("text", ["[]", "5", '{"masks@mini": 3}', "{"])
def test_a_damaged_file_of_declarations_costs_nothing_else(planned: Plan, store: Store, text: str) -> None:
    (path,) = (store.root / "runs").glob("*/declared.json")
    path.write_text(text)
    assert changed(store, planned) == []
    declare(store, planned)
    assert changed(store, edited(planned, expect="else")) == ["expect (before: no measurable difference)"]


@pytest.mark.parametrize("text", ["[", '[{"seeds": "x", "overrides": {}, "exclusive": false}]', "[3]"])
def test_a_damaged_file_of_what_was_asked_leaves_the_seeds_of_the_experiment(
    planned: Plan, project: Project, store: Store, text: str
) -> None:
    (path,) = (store.root / "runs").glob("*/asked.json")
    path.write_text(text)
    assert plan_asked(project, store, "masks", "mini", None, {}).seeds == 3
