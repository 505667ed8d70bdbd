import itertools
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.plan.plan import Plan, plan
from paribus.plan.tuning import Trial, Tuning
from paribus.project import Project
from paribus.tables.tuning import expected_best, tuned, unequal

RUN: Any = None  # an account does not look at the run of a trial


@given(st.lists(st.floats(0, 10), min_size=1, max_size=4))
def test_the_expected_best_is_the_mean_least_over_all_draws(losses: list[float]) -> None:
    draws = [fmean(map(min, itertools.product(losses, repeat=k))) for k in range(1, len(losses) + 1)]
    assert expected_best(losses) == pytest.approx(draws)


@pytest.fixture
def sizes(project: Project) -> Plan:
    return plan(project, "sizes", "mini")


def tuning(found: Plan, *trials: Trial) -> Tuning:
    arm = found.tunings[0]
    return Tuning(arm.arm, arm.tune, trials, None)


def test_an_account_counts_every_trial_and_names_what_to_doubt(sizes: Plan) -> None:
    trials = Trial(4e-3, RUN, 4.5), Trial(8e-3, RUN, 4.0), Trial(2e-3, RUN, 5.5, report=4, share=0.5)
    account = tuned(tuning(sizes, *trials))
    assert (account.asked, account.pruned, account.diverged, account.chosen) == (3, 1, 0, 8e-3)
    assert [(trial.value, trial.loss) for trial in account.tried] == [(2e-3, 5.5), (4e-3, 4.5), (8e-3, 4.0)]
    assert account.spent == 2.5 and account.at_an_end
    assert account.sentence == (
        "optimizer.lr of bsz-256: 0.008 (3 of 3 trials, 1 pruned; 2.5 budgets). Validation loss by value: "
        "0.002 5.500 (pruned at 50%), 0.004 4.500, 0.008 4.000. Expected best of 1 to 3 trials: 4.667, 4.333, 4.185. "
        "None was tried beyond it, so a better one may lie there."
    )


def test_a_pruned_trial_is_never_chosen_though_it_told_the_lowest_loss(sizes: Plan) -> None:
    trials = Trial(4e-3, RUN, 4.5), Trial(8e-3, RUN, float("inf")), Trial(2e-3, RUN, 4.4, report=4, share=0.5)
    account = tuned(tuning(sizes, *trials))
    assert account.chosen == 4e-3 and account.diverged == 1 and len(account.expected) == 2


def test_unequal_numbers_of_trials_are_said(sizes: Plan) -> None:
    one, two = sizes.tunings
    assert unequal([one, two]) is None
    more = Tuning(two.arm, two.tune, (Trial(4e-3, RUN, 4.5),), None)
    assert unequal([one, more]) == "arms had unequal numbers of trials: bsz-256 0, bsz-2k 1"
