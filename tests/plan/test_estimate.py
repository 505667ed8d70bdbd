"""What a plan will take."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.plan.estimate import GUESSED_FLOPS_A_SECOND, GUESSED_SECONDS, Cost, cost_key, cost_question, estimate
from paribus.plan.plan import Plan, plan
from paribus.project import Project, find

COST = Cost(parameters=1000, embedding=100, train_flops_a_token=2e6)


@pytest.fixture
def found(project: Callable[..., Project]) -> Plan:
    """Three arms at one seed, two tasks."""
    return plan(project(), "one", "debug", seeds=1)


def test_without_measurements_seconds_come_from_flops_and_a_guess(found: Plan) -> None:
    costs = {cost_key(arm.run): COST for arm in found.arms}
    stages = list(found.stages())
    asked = estimate(found, stages, costs, [])
    tokens = found.arms[0].run.budget.train_tokens
    guessed = (len(stages) - 3) * GUESSED_SECONDS
    assert asked.seconds == pytest.approx(3 * tokens * 2e6 / GUESSED_FLOPS_A_SECOND + guessed)
    assert asked.measured == 0.0
    assert asked.bytes >= 3 * 4 * 1000


def test_finished_stages_like_the_missing_ones_replace_the_guess(found: Plan) -> None:
    pretrain = [stage for stage in found.stages() if stage.kind == "pretrain"]
    pack = [stage for stage in found.stages() if stage.kind == "pack"]
    finished = [
        {"kind": "pretrain", "spec": pretrain[0].spec.model_dump(mode="json"), "tokens_per_second": 1000.0},
        {"kind": "pack", "started": 10.0, "finished": 12.0},
        {"kind": "pack", "started": 10.0, "finished": 14.0},
    ]
    asked = estimate(found, pretrain[1:] + pack, {}, finished)
    assert asked.seconds == pytest.approx(2 * found.arms[0].run.budget.train_tokens / 1000 + 3.0)
    assert asked.measured == 1.0


def test_nothing_missing_takes_nothing(found: Plan) -> None:
    asked = estimate(found, [], {}, [])
    assert (asked.seconds, asked.bytes, asked.measured) == (0.0, 0, 1.0)


def test_the_cost_is_asked_for_by_what_decides_it(found: Plan) -> None:
    run = found.arms[0].run
    assert cost_question(run)["rate"] == 0.15
    assert cost_key(found.arms[0].run) != cost_key(found.arms[1].run)
    assert cost_key(run) == cost_key(run.model_copy(update={"seed": 5}))


def test_the_cost_of_two_networks_depends_on_how_they_share(root: Path) -> None:
    arms = plan(find(root), "embedding-sharing", "debug", seeds=1).arms
    assert len({cost_key(arm.run) for arm in arms}) == 3
    assert cost_question(arms[0].run)["rtd"]["sharing"] == "es"
