"""What is kept of a queued plan."""

from pathlib import Path

from paribus.jobs.runs import asked, remember
from paribus.plan.plan import Plan, plan
from paribus.project import find
from paribus.store.store import Store

ROOT = Path(__file__).parents[2]


def planned(seeds: int, **overrides: object) -> Plan:
    return plan(find(ROOT), "masking", "debug", seeds, overrides)


def test_every_plan_that_was_queued_can_be_planned_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plans = [planned(1), planned(2, **{"optimizer.lr": 0.001})]
    for found in plans:
        remember(store, found)
    again = [planned(told["seeds"], **told["overrides"]) for told in asked(store, "masking@debug")]
    assert [[run.key for run in found.runs] for found in again] == [[run.key for run in found.runs] for found in plans]


def test_a_plan_queued_twice_is_remembered_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    remember(store, planned(1))
    remember(store, planned(1))
    assert asked(store, "masking@debug") == [{"seeds": 1, "overrides": {}}]


def test_a_queue_that_was_never_asked_has_no_plans(tmp_path: Path) -> None:
    assert asked(Store(tmp_path), "masking@debug") == []
