"""The rule by which a learning rate is chosen."""

import math

from paribus.plan.choice import best_rate


def test_the_best_score_wins() -> None:
    assert best_rate({1e-3: 0.2, 3e-3: 0.5, 1e-2: 0.4}) == 3e-3


def test_of_two_equal_scores_the_smaller_rate_wins_in_any_order() -> None:
    assert best_rate({3e-3: 0.5, 1e-3: 0.5}) == best_rate({1e-3: 0.5, 3e-3: 0.5}) == 1e-3


def test_a_score_that_is_no_number_never_wins() -> None:
    assert best_rate({1e-3: math.nan, 3e-3: -0.1}) == 3e-3
    assert best_rate({1e-3: math.nan}) is None
