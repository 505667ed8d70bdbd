"""What is kept of a queued plan."""

import re
from pathlib import Path

import pytest

from paribus.errors import ParibusError
from paribus.jobs.plans import queued
from paribus.jobs.runs import asked, find_run, remember, run_path, write_run
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
    assert asked(store, "masking@debug") == [{"seeds": 1, "overrides": {}, "exclusive": False}]


def test_a_plan_whose_overrides_mean_another_thing_in_their_order_is_remembered_beside(tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = {"encoder.position": {"kind": "relative-bias", "max_distance": 8}, "encoder.position.max_distance": 4}
    plans = [planned(1, **whole), planned(1, **dict(reversed(whole.items())))]
    for found in plans:
        remember(store, found)
    again = [planned(told["seeds"], **told["overrides"]).runs[0].key for told in asked(store, "masking@debug")]
    assert again == [found.runs[0].key for found in plans] and len(set(again)) == 2
    for lr, clip in (("optimizer.lr", "optimizer.clip"), ("optimizer.clip", "optimizer.lr")):
        remember(store, planned(1, **{lr: 0.5, clip: 0.5}))
    assert len(asked(store, "masking@debug")) == 3


def test_a_queue_that_was_never_asked_has_no_plans(tmp_path: Path) -> None:
    assert asked(Store(tmp_path), "masking@debug") == []


def test_a_run_is_found_by_the_beginning_of_its_key(tmp_path: Path) -> None:
    store, found = Store(tmp_path), planned(1)
    remember(store, found)
    for run in found.runs:
        write_run(store, found.name, run)
    run_path(store, found.name, "plan").write_text("[]")
    for run in found.runs:
        assert find_run(store, run.key[:12]).run == run.arm.run and find_run(store, run.key).arm == run.arm.label
    none = dict.fromkeys(("asked", "plan", "*", "run-none"), 0)
    for beginning, count in ({"run-": len(found.runs), "": len(found.runs)} | none).items():
        with pytest.raises(ParibusError, match=f"^{re.escape(beginning)}: {count} runs begin so"):
            find_run(store, beginning)


def test_a_damaged_file_of_what_was_asked_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    remember(store, planned(1))
    path = tmp_path / "runs" / "masking@debug" / "asked.json"
    problems: list[str] = []
    for text in (path.read_text()[:20], '{"a": 1}', "[{}]", "3"):
        path.write_text(text)
        with pytest.raises(ParibusError, match="asked.json: damaged"):
            asked(store, "masking@debug")
        assert queued(find(ROOT), store, ["masking@debug"], problems.append) == []
    path.unlink()
    assert queued(find(ROOT), store, ["masking@debug"], problems.append) == []
    assert len(problems) == 5 and all(problem.startswith("masking@debug is left out") for problem in problems)
