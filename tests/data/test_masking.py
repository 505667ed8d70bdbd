"""Which tokens are predicted and what stands in their place."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paribus.data.masking import Masked, duplicates, mask, mask_visits
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, MASK, PAD, SEP, UNK
from paribus.errors import DataError
from paribus.seeds import bits, seed_for, uniforms
from paribus.spec.data import Dynamic, Replacement, Static

SIZE = 1000
BERT = Replacement()


def rows(count: int, length: int, size: int = SIZE, dtype: type = np.uint16) -> np.ndarray:
    """Rows of ordinary tokens between [CLS] and [SEP], the last eighth padding."""
    tokens = np.random.default_rng(0).integers(FIRST_ORDINARY, size, (count, length)).astype(dtype)
    end = length - length // 8
    tokens[:, 0], tokens[:, end - 1], tokens[:, end:] = CLS, SEP, PAD
    return tokens


def masked(tokens: np.ndarray, visit: int = 0, seed: int = 0, **changes: object) -> Masked:
    options = {"rate": 0.15, "replacement": BERT, "size": SIZE, **changes}
    return mask(tokens, np.arange(len(tokens)), np.full(len(tokens), visit), seed, **options)  # type: ignore[arg-type]


def slowly(
    tokens: np.ndarray, row: int, visit: int, seed: int, rate: float, replacement: Replacement, size: int
) -> Masked:
    """`mask` for one row, one token at a time."""
    stream = seed_for(seed, "mask")
    candidates = [place for place, token in enumerate(tokens) if token not in (PAD, CLS, SEP, MASK)]
    count = max(1, int(rate * len(candidates) + 0.5))
    chosen = sorted(candidates, key=lambda place: uniforms(stream, row, visit, place, 0).item())[:count]
    inputs = tokens.copy()
    for place in chosen:
        fate = uniforms(stream, row, visit, place, 1).item()
        if fate < replacement.mask:
            inputs[place] = MASK
        elif fate < replacement.mask + replacement.random:
            inputs[place] = FIRST_ORDINARY + bits(stream, row, visit, place, 2).item() % (size - FIRST_ORDINARY)
    return Masked(inputs, np.isin(np.arange(len(tokens)), chosen))


@given(
    st.lists(st.lists(st.integers(0, SIZE - 1), min_size=12, max_size=12), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from((0.01, 0.15, 0.4, 0.99)),
    st.sampled_from((BERT, Replacement(mask=0.0, random=1.0), Replacement(mask=0.3, random=0.3))),
)
def test_all_rows_at_once_are_masked_as_one_token_at_a_time(
    tokens: list[list[int]], visit: int, seed: int, rate: float, replacement: Replacement
) -> None:
    found = masked(np.array(tokens), visit, seed, rate=rate, replacement=replacement)
    for row, ids in enumerate(tokens):
        one = slowly(np.array(ids), row, visit, seed, rate, replacement, SIZE)
        assert (found.inputs[row] == one.inputs).all() and (found.chosen[row] == one.chosen).all()


def test_shares_are_those_asked_for() -> None:
    tokens = rows(4000, 116)  # 100 candidates each
    found = masked(tokens)
    inputs, originals = found.inputs[found.chosen], tokens[found.chosen]
    assert found.chosen.sum() == 4000 * 15
    assert (inputs == MASK).mean() == pytest.approx(0.8, abs=0.005)
    changed = (inputs != MASK) & (inputs != originals)
    assert changed.mean() == pytest.approx(0.1 * (1 - 1 / (SIZE - FIRST_ORDINARY)), abs=0.005)
    assert inputs[inputs != MASK].min() >= FIRST_ORDINARY


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.4])
def test_every_row_has_its_exact_number(rate: float) -> None:
    tokens = rows(50, 64)
    wanted = np.floor(rate * (tokens >= UNK).sum(1) + 0.5)
    assert (masked(tokens, rate=rate).chosen.sum(1) == wanted).all()


def test_specials_and_padding_are_never_chosen_and_nothing_else_changes() -> None:
    tokens = rows(200, 64)
    tokens[:, 10] = MASK
    found = masked(tokens, rate=0.9)
    assert not found.chosen[tokens < UNK].any()
    assert (found.inputs[~found.chosen] == tokens[~found.chosen]).all()


def test_the_tokens_handed_in_are_left_as_they_were() -> None:
    tokens = rows(20, 64)
    before = tokens.copy()
    masked(tokens)
    assert (tokens == before).all()


def test_a_row_without_candidates_has_nothing_to_predict_and_an_unknown_word_is_one() -> None:
    tokens = np.array([[CLS, SEP, PAD, PAD], [CLS, UNK, SEP, PAD]], dtype=np.uint16)
    assert masked(tokens).chosen.tolist() == [[False] * 4, [False, True, False, False]]


def test_places_are_chosen_evenly() -> None:
    tokens = rows(4000, 72)
    counts = masked(tokens).chosen.sum(0)[1:62]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_random_tokens_are_any_ordinary_ones_evenly() -> None:
    tokens = rows(3000, 72, 25)
    found = masked(tokens, replacement=Replacement(mask=0.0, random=1.0), rate=0.5, size=25)
    counts = np.bincount(found.inputs[found.chosen], minlength=25)
    assert not counts[:FIRST_ORDINARY].any()
    assert stats.chisquare(counts[FIRST_ORDINARY:]).pvalue > 1e-3


def test_ids_that_need_four_bytes_keep_them() -> None:
    tokens = rows(200, 64, 100_000, np.uint32)
    found = masked(tokens, replacement=Replacement(mask=0.0, random=1.0), size=100_000)
    assert found.inputs.dtype == np.uint32 and found.inputs[found.chosen].max() > 2**16


def test_the_last_id_of_a_full_two_byte_vocabulary_can_be_drawn() -> None:
    tokens = rows(3000, 128, 2**16)
    found = masked(tokens, replacement=Replacement(mask=0.0, random=1.0), rate=0.9, size=2**16)
    assert found.inputs.dtype == np.uint16 and found.inputs[found.chosen].max() > 2**16 - 10
    assert found.inputs[found.chosen].min() >= FIRST_ORDINARY


@given(st.permutations(range(12)), st.integers(1, 12))
def test_a_rows_mask_does_not_depend_on_its_batch(order: list[int], count: int) -> None:
    tokens, numbers = rows(12, 32), np.array(order[:count])
    whole = masked(tokens, 3)
    part = mask(tokens[numbers], numbers, np.full(count, 3), 0, 0.15, BERT, SIZE)
    assert (part.inputs == whole.inputs[numbers]).all() and (part.chosen == whole.chosen[numbers]).all()


def test_a_higher_rate_chooses_what_a_lower_one_does_and_more() -> None:
    tokens = rows(50, 64)
    low, high = (masked(tokens, rate=rate).chosen for rate in (0.15, 0.4))
    assert (high | ~low).all() and high.sum() > low.sum()


def distinct(draw: Callable[[int], Masked], visits: int) -> list[int]:
    """How often each distinct mask is seen over `visits` visits."""
    seen: dict[bytes, int] = {}
    for visit in range(visits):
        found = draw(visit)
        key = found.inputs.tobytes() + found.chosen.tobytes()
        seen[key] = seen.get(key, 0) + 1
    return sorted(seen.values())


def test_static_masks_are_seen_in_turn_and_dynamic_ones_once() -> None:
    tokens = rows(1, 64)

    def draw(visit: int, times: int | None) -> Masked:
        return masked(tokens, int(mask_visits(np.array([visit]), times)[0]))

    assert distinct(lambda visit: draw(visit, duplicates(Static(duplicates=10), 40.0)), 40) == [4] * 10
    assert distinct(lambda visit: draw(visit, duplicates(Dynamic(), 40.0)), 40) == [1] * 40


@pytest.mark.parametrize(("epochs", "most"), [(2.0, 1), (4.0, 1), (7.9, 1), (8.0, 2), (40.0, 10), (43.0, 10)])
def test_the_default_is_as_many_masks_as_are_seen_four_times(epochs: float, most: int) -> None:
    assert duplicates(Static(), epochs) == most


def test_static_masks_over_fewer_than_two_passes_are_refused() -> None:
    with pytest.raises(DataError, match="need two passes"):
        duplicates(Static(), 1.9)
    assert duplicates(Dynamic(), 1.9) is None


def test_masks_that_would_be_seen_less_are_refused() -> None:
    assert duplicates(Static(duplicates=2), 8.0) == 2
    with pytest.raises(DataError, match=r"objective.masking.duplicates: found 3, but 8.0 passes .* take at most 2"):
        duplicates(Static(duplicates=3), 8.0)
