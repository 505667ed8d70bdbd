"""Which rows an optimizer step sees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.data.batching import Batches

LONGEST = 12
LENGTHS = st.lists(st.integers(2, LONGEST), min_size=1, max_size=30).map(lambda found: np.array(found, dtype=np.int32))


def until(batches: Batches, steps: int) -> tuple[list[int], list[int]]:
    """Rows and visits of the first `steps` steps."""
    found = [batches.rows(step) for step in range(steps)]
    return np.concatenate([rows for rows, _ in found]).tolist(), np.concatenate(
        [visits for _, visits in found]
    ).tolist()


@given(LENGTHS, st.integers(LONGEST, 100), st.integers(0, 5))
def test_each_epoch_visits_each_row_once(lengths: np.ndarray, batch_tokens: int, seed: int) -> None:
    batches = Batches(lengths, batch_tokens, seed)
    epochs = 3
    rows, visits = until(batches, epochs * int(lengths.sum()) // batch_tokens + 1)
    for epoch in range(epochs):
        visited = rows[epoch * len(lengths) : (epoch + 1) * len(lengths)]
        assert sorted(visited) == list(range(len(lengths)))
        assert set(visits[epoch * len(lengths) : (epoch + 1) * len(lengths)]) == {epoch}


@given(LENGTHS, st.integers(LONGEST, 100))
def test_no_step_is_empty_and_tokens_keep_pace_with_the_budget(lengths: np.ndarray, batch_tokens: int) -> None:
    batches = Batches(lengths, batch_tokens, 0)
    seen = 0
    for step in range(20):
        rows, _ = batches.rows(step)
        assert len(rows)
        seen += int(lengths[rows].sum())
        assert 0 <= seen - (step + 1) * batch_tokens < LONGEST


@given(LENGTHS, st.lists(st.integers(0, 30), min_size=1, max_size=10))
def test_a_step_does_not_depend_on_the_steps_asked_for_before(lengths: np.ndarray, steps: list[int]) -> None:
    used = Batches(lengths, 20, 1)
    for step in steps:
        for found, fresh in zip(used.rows(step), Batches(lengths, 20, 1).rows(step), strict=True):
            assert (found == fresh).all()


def test_a_step_larger_than_an_epoch_sees_rows_at_several_visits() -> None:
    rows, visits = Batches(np.array([4, 4, 4], dtype=np.int32), 24, 0).rows(0)
    assert sorted(zip(rows.tolist(), visits.tolist(), strict=True)) == [
        (row, visit) for row in range(3) for visit in (0, 1)
    ]


@pytest.mark.parametrize("other", [{"seed": 1}, {"epoch": 1}])
def test_seeds_and_epochs_have_orders_of_their_own(other: dict[str, int]) -> None:
    lengths = np.full(50, 10, dtype=np.int32)
    first, _ = Batches(lengths, 500, 0).rows(0)
    second, _ = Batches(lengths, 500, other.get("seed", 0)).rows(other.get("epoch", 0))
    assert first.tolist() != second.tolist()


def test_the_order_depends_on_the_number_of_rows_and_not_on_the_batch_size() -> None:
    lengths = np.full(50, 10, dtype=np.int32)
    assert until(Batches(lengths, 500, 0), 2)[0] == until(Batches(lengths, 100, 0), 10)[0]


@given(LENGTHS, st.integers(LONGEST, 40), st.sampled_from([8, 32]), st.integers(0, 5))
def test_a_batch_k_times_as_large_sees_the_rows_of_k_steps(lengths: np.ndarray, batch: int, k: int, seed: int) -> None:
    small, large = Batches(lengths, batch, seed), Batches(lengths, k * batch, seed)
    assert until(small, 2 * k) == until(large, 2)
