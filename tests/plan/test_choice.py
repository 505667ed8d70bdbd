"""The rule by which a point of a grid is chosen."""

import math

import pytest

from paribus.plan.choice import best_point, over_restarts
from paribus.spec.finetuning import Point


def at(lr: float, batch_items: int = 32, epochs: int = 3) -> Point:
    return Point(lr, batch_items, epochs, 0.1, 0.1)


def test_the_best_score_wins() -> None:
    assert best_point({at(1e-3): 0.2, at(3e-3): 0.5, at(1e-2): 0.4}) == at(3e-3)


def test_of_two_equal_scores_the_first_in_order_wins_in_any_order() -> None:
    same = {at(3e-3): 0.5, at(1e-3, 32): 0.5, at(1e-3, 16, 4): 0.5, at(1e-3, 16, 3): 0.5}
    assert best_point(same) == best_point(dict(reversed(same.items()))) == at(1e-3, 16, 3)


def test_a_score_that_is_no_number_never_wins() -> None:
    assert best_point({at(1e-3): math.nan, at(3e-3): -0.1}) == at(3e-3)
    assert best_point({at(1e-3): math.nan}) is None


def test_restarts_are_summed_up_by_mean_or_median_and_a_lost_one_leaves_no_number() -> None:
    assert over_restarts([0.1, 0.2, 0.9], "mean") == pytest.approx(0.4)
    assert over_restarts([0.9, 0.1, 0.2], "median") == 0.2
    assert math.isnan(over_restarts([0.1, math.nan, 0.2], "median"))
