"""Named random streams."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paribus.seeds import bits, hold_out, seed_for, uniforms

COUNTERS = st.lists(st.integers(0, 2**40), min_size=1, max_size=20)


def test_a_stream_keeps_its_numbers_for_ever() -> None:
    # Every stored result was drawn with these.
    assert seed_for(0, "mask") == 3402977017570996
    assert bits(seed_for(0, "mask"), 3, 5).item() == 14690400039835754501


def test_every_seed_purpose_and_item_has_a_seed_of_its_own() -> None:
    found = {seed_for(seed, purpose, item) for seed in range(20) for purpose in ("init", "order") for item in range(50)}
    assert len(found) == 2000 and all(0 <= seed < 2**56 for seed in found)


@given(COUNTERS, COUNTERS)
def test_a_draw_depends_on_its_own_counters_only(rows: list[int], places: list[int]) -> None:
    together = uniforms(7, np.array(rows)[:, None], np.array(places)[None, :])
    for i, row in enumerate(rows):
        for j, place in enumerate(places):
            assert together[i, j] == uniforms(7, row, place).item()
    assert together.min() >= 0 and together.max() < 1


@given(COUNTERS, COUNTERS)
def test_the_bits_of_the_first_counters_lead_to_those_of_the_next(first: list[int], then: list[int]) -> None:
    rows, places = np.array(first)[:, None], np.array(then)[None, :]
    assert np.array_equal(bits(bits(7, rows), places), bits(7, rows, places))


def test_the_order_of_counters_matters() -> None:
    assert bits(7, 1, 2) != bits(7, 2, 1)


def test_draws_are_uniform_and_those_of_neighbours_unrelated() -> None:
    draws = uniforms(seed_for(1, "mask"), np.arange(300)[:, None], np.arange(400)[None, :])
    counts = np.histogram(draws, bins=100, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3
    for a, b in ((draws[1:], draws[:-1]), (draws[:, 1:], draws[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01


def test_two_streams_are_unrelated() -> None:
    a, b = (uniforms(seed_for(seed, "mask"), np.arange(50000)) for seed in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02


@given(st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_out_what_a_smaller_one_does(name: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert hold_out(name, small) <= hold_out(name, large)


def test_the_share_held_out_is_the_share_asked_for() -> None:
    assert 0.09 < np.mean([hold_out(str(number), 0.1) for number in range(10000)]) < 0.11
