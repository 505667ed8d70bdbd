import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.tables.stats import aggregate, paired

VALUES = st.floats(-1e3, 1e3)
SCORES = st.dictionaries(st.integers(0, 20), VALUES, max_size=8)


def test_a_difference_worked_by_hand() -> None:
    found = paired({0: 61.0, 1: 62.0, 2: 63.0}, {0: 60.0, 1: 60.0, 2: 60.0})
    assert found is not None and (found.mean, found.n) == (2.0, 3)
    half = 4.302652729749462 / np.sqrt(3)  # t(0.975, df 2), s = 1
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))


def test_only_seeds_that_both_have_are_compared() -> None:
    found = paired({0: 1.0, 1: 2.0, 5: 99.0}, {0: 0.0, 1: 0.0, 2: -99.0})
    assert found is not None and (found.mean, found.n) == (1.5, 2)


def test_one_pair_gives_a_difference_and_no_interval() -> None:
    found = paired({3: 1.5}, {3: 1.0})
    assert found is not None and (found.mean, found.low, found.high, found.n) == (0.5, None, None, 1)


def test_no_common_seed_gives_no_difference() -> None:
    assert paired({0: 1.0}, {1: 1.0}) is None


@given(SCORES, SCORES)
def test_differences_are_antisymmetric(left: dict[int, float], right: dict[int, float]) -> None:
    there, back = paired(left, right), paired(right, left)
    assert (there is None) == (back is None)
    if there and back:
        assert (there.mean, there.n) == (-back.mean, back.n)
        if there.low is not None and back.high is not None:
            assert there.low == pytest.approx(-back.high)


@given(st.dictionaries(st.integers(0, 20), VALUES, min_size=2, max_size=8), VALUES)
def test_what_moves_both_arms_moves_no_difference(scores: dict[int, float], shift: float) -> None:
    before = paired(scores, dict.fromkeys(scores, 0.0))
    after = paired({s: v + shift for s, v in scores.items()}, dict.fromkeys(scores, shift))
    assert before and after
    assert after.mean == pytest.approx(before.mean, abs=1e-9)
    if before.high is not None and after.high is not None:  # tiny differences can become equal ones by the shift
        assert after.high == pytest.approx(before.high, abs=1e-6)


@given(st.dictionaries(st.integers(0, 20), VALUES, min_size=2, max_size=8))
def test_the_mean_lies_within_its_interval(scores: dict[int, float]) -> None:
    found = paired(scores, dict.fromkeys(scores, 0.0))
    assert found and (found.low is None) == (len(set(scores.values())) == 1)
    if found.low is not None and found.high is not None:
        assert found.low <= found.mean <= found.high


def test_equal_differences_have_no_interval() -> None:
    zeros = {0: 0.0, 1: 0.0, 2: 0.0}
    found = paired(zeros, zeros)
    assert found and (found.mean, found.low, found.high, found.n) == (0.0, None, None, 3)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds: int) -> None:
    draws = np.random.default_rng(7).normal(0.4, 1.0, (2000, seeds))
    intervals = [paired(dict(enumerate(row.tolist())), dict.fromkeys(range(seeds), 0.0)) for row in draws]
    covered = sum(f.low <= 0.4 <= f.high for f in intervals if f and f.low is not None and f.high is not None)
    assert 0.935 < covered / 2000 < 0.965  # three standard errors of 0.95 over 2,000 draws


def test_aggregates() -> None:
    assert aggregate([1.0, 2.0, 9.0], "median") == 2.0
    assert aggregate([1.0, 2.0, 9.0], "mean") == 4.0
