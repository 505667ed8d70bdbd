"""A small version of `paribus bench calibration`, with fixed seeds; the whole one's result is in docs/statistics.md."""

import numpy as np
import pytest
from scipy.stats import binomtest

from paribus.bench.calibration import (
    WORLDS,
    Share,
    World,
    false_differences,
    false_equivalents,
    found_after_pilots,
    found_effects,
    lost_best,
    simulate,
)


def at_most_five_percent(found: Share) -> bool:
    """Whether so many hits are no evidence (one-sided p 0.001) of a share above 5 %."""
    return bool(binomtest(found.hits, found.of, 0.05, alternative="greater").pvalue > 0.001)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize(("seeds", "arms"), [(3, 5), (5, 1)])
def test_what_does_not_differ_is_seldom_said_to(world: World, seeds: int, arms: int) -> None:
    scores = simulate(np.random.default_rng(3), world, 300, arms, seeds)
    wrong, covered = false_differences(scores)
    assert at_most_five_percent(wrong) and 0.93 < covered < 0.975
    assert at_most_five_percent(false_equivalents(scores)) and at_most_five_percent(lost_best(scores))


def test_the_simulated_contrasts_are_related_as_those_of_a_table() -> None:
    scores = simulate(np.random.default_rng(0), WORLDS[0], 4000, 2, 3)
    first, second = scores[:, 1, 0] - scores[:, 0, 0], scores[:, 2, 0] - scores[:, 0, 0]
    assert np.corrcoef(first[:, 0], second[:, 0])[0, 1] == pytest.approx(0.5, abs=0.05)  # one baseline
    assert np.corrcoef(first[:, 0], first[:, 1])[0, 1] == pytest.approx(0.6, abs=0.05)  # two metrics


@pytest.mark.parametrize(("seeds", "arms"), [(3, 1), (5, 5)])
def test_an_effect_is_found_as_often_as_promised(seeds: int, arms: int) -> None:
    found = found_effects(simulate(np.random.default_rng(1), WORLDS[0], 600, arms, seeds))
    assert found.value == pytest.approx(0.8, abs=0.05)


def test_the_seeds_that_a_pilot_decided_find_the_effect_as_often_as_promised() -> None:
    found, _ = found_after_pilots(np.random.default_rng(2), 600, 1, 5)
    assert found.value == pytest.approx(0.8, abs=0.05)
