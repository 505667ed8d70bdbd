"""Which tokens are predicted and what stands in their place."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paribus.data.masking import Masked, duplicates, mask, mask_visits, unit_lengths
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, MASK, PAD, SEP, UNK
from paribus.errors import DataError
from paribus.seeds import bits, seed_for, uniforms
from paribus.spec.data import Dynamic, NGrams, Replacement, Spans, Static, Tokens, Unit, WholeWords

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


@pytest.fixture(scope="module")
def many() -> tuple[np.ndarray, Masked]:
    """Ten thousand rows of 512, and their masks."""
    tokens = rows(10_000, 512)  # 446 candidates each
    return tokens, masked(tokens)


def test_shares_over_ten_thousand_rows_are_those_asked_for(many: tuple[np.ndarray, Masked]) -> None:
    tokens, found = many
    inputs, originals = found.inputs[found.chosen], tokens[found.chosen]
    assert found.chosen.sum() == 10_000 * 67
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


def test_places_are_chosen_evenly(many: tuple[np.ndarray, Masked]) -> None:
    counts = many[1].chosen.sum(0)[1:447]
    assert counts.sum() == many[1].chosen.sum() and stats.chisquare(counts).pvalue > 1e-3


def test_unmasking_with_the_targets_gives_the_tokens_back(many: tuple[np.ndarray, Masked]) -> None:
    tokens, found = many
    restored = found.inputs.copy()
    restored[found.chosen] = tokens[found.chosen]
    assert np.array_equal(restored, tokens)


def test_specials_are_chosen_like_other_tokens_where_asked_for() -> None:
    tokens = rows(4000, 72)
    found = masked(tokens, mask_specials=True)
    assert (found.chosen.sum(1) == int(0.15 * 63 + 0.5)).all() and not found.chosen[tokens == PAD].any()
    assert stats.chisquare(found.chosen.sum(0)[:63]).pvalue > 1e-3


def test_repeated_draws_choose_fewer_places_as_electras_code_does() -> None:
    tokens = rows(2000, 584)  # 510 candidates, 77 draws
    tokens[:, 0] = FIRST_ORDINARY
    chosen = masked(tokens, unit=Tokens(drawn="repeated")).chosen
    assert (tokens >= UNK).sum(1)[0] == 510 and not chosen[tokens < UNK].any()
    assert chosen.sum(1).mean() == pytest.approx(510 * (1 - (1 - 1 / 510) ** 77), abs=0.15)  # 71.5
    assert stats.chisquare(chosen.sum(0)[:510]).pvalue > 1e-3
    empty = np.array([[CLS, SEP, PAD, PAD], [CLS, UNK, SEP, PAD]], dtype=np.uint16)
    assert masked(empty, unit=Tokens(drawn="repeated")).chosen.sum(1).tolist() == [0, 1]


def test_random_tokens_are_any_id_where_asked_for() -> None:
    tokens = rows(3000, 72, 25)
    found = masked(tokens, replacement=Replacement(mask=0.0, random=1.0, pool="all"), rate=0.5, size=25)
    assert stats.chisquare(np.bincount(found.inputs[found.chosen], minlength=25)).pvalue > 1e-3


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


# --- units: whole words, spans, n-grams -----------------------------------------------------------------------------

UNITS: tuple[Unit, ...] = (Tokens(), WholeWords(), Spans(), NGrams())
WORDS = pytest.mark.parametrize("unit", UNITS[1:], ids=lambda unit: unit.kind)


def continuing(tokens: np.ndarray) -> np.ndarray:
    """Every third id goes on with the word before it, as in tests of packing."""
    return np.asarray((tokens % 3 == 0) & (tokens >= FIRST_ORDINARY))


def words_of(tokens: np.ndarray) -> list[list[list[int]]]:
    """The places of a row as runs between specials, of words, of places."""
    runs: list[list[list[int]]] = [[]]
    for place, token in enumerate(tokens):
        if token < UNK:
            runs.append([])
        elif runs[-1] and continuing(tokens)[place]:
            runs[-1][-1].append(place)
        else:
            runs[-1].append([place])
    return [run for run in runs if run]


def slow_units(tokens: np.ndarray, row: int, visit: int, rate: float, unit: Unit) -> dict[int, int]:
    """The chosen places of a row and where the unit of each begins, one word at a time."""
    stream = seed_for(0, "mask")
    runs = words_of(tokens)
    left = max(1, int(rate * sum(len(word) for run in runs for word in run) + 0.5))
    turns = [(run, number) for run in runs for number in range(len(run))]
    turns.sort(key=lambda turn: uniforms(stream, row, visit, turn[0][turn[1]][0], 0).item())
    found: dict[int, int] = {}
    for run, number in turns:
        begin = run[number][0]
        asked = int(unit_lengths(unit, uniforms(stream, row, visit, begin, 3)))
        for word in run[number : number + asked]:
            if word[0] in found or len(word) > left:
                break
            found |= dict.fromkeys(word, begin)
            left -= len(word)
    return found


@WORDS
@given(
    st.lists(st.lists(st.integers(0, 30), min_size=16, max_size=16), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from((0.01, 0.15, 0.4, 0.99)),
)
def test_units_of_all_rows_are_chosen_as_one_word_at_a_time(
    unit: Unit, tokens: list[list[int]], visit: int, rate: float
) -> None:
    ids = np.array(tokens)
    found = masked(ids, visit, rate=rate, unit=unit, continues=continuing(ids))
    for row in range(len(ids)):
        slow = slow_units(ids[row], row, visit, rate, unit)
        assert np.flatnonzero(found.chosen[row]).tolist() == sorted(slow)


@WORDS
@given(st.lists(st.integers(0, 30), min_size=24, max_size=24), st.sampled_from((0.15, 0.5)))
def test_all_or_none_of_a_words_tokens_are_chosen_and_no_more_than_the_budget(
    unit: Unit, tokens: list[int], rate: float
) -> None:
    ids = np.array([tokens])
    chosen = masked(ids, rate=rate, unit=unit, continues=continuing(ids)).chosen[0]
    words = [word for run in words_of(ids[0]) for word in run]
    assert all(len({bool(chosen[place]) for place in word}) == 1 for word in words)
    assert not chosen[ids[0] < UNK].any()
    budget = max(1, int(rate * sum(map(len, words)) + 0.5))
    left = budget - int(chosen.sum())
    assert left >= 0
    # Nothing that would still fit was left out.
    assert not any(len(word) <= left for word in words if not chosen[word[0]])


@WORDS
def test_the_share_of_tokens_is_the_rate_in_every_unit(unit: Unit) -> None:
    tokens = rows(2000, 116)  # 100 candidates each
    found = masked(tokens, unit=unit, continues=continuing(tokens))
    assert found.chosen.sum() / (tokens >= UNK).sum() == pytest.approx(0.15, abs=0.001)
    inputs, originals = found.inputs[found.chosen], tokens[found.chosen]
    assert (inputs == MASK).mean() == pytest.approx(0.8, abs=0.015)
    assert ((inputs != MASK) & (inputs != originals)).mean() == pytest.approx(0.1, abs=0.015)
    assert (found.inputs[~found.chosen] == tokens[~found.chosen]).all()


@WORDS
def test_the_end_of_a_row_is_chosen_as_often_as_its_middle(unit: Unit) -> None:
    tokens = rows(4000, 144)  # places 1 to 124 are candidates
    share = masked(tokens, unit=unit, continues=continuing(tokens)).chosen.mean(0)
    middle = share[40:80].mean()
    assert share[100:124].mean() == pytest.approx(middle, rel=0.03)
    # Only a word within a unit's reach of the row's beginning has fewer units that could cover it.
    assert share[20:40].mean() == pytest.approx(middle, rel=0.03)


def test_whole_words_are_chosen_evenly_wherever_they_are() -> None:
    tokens = rows(4000, 72)
    tokens[(tokens >= FIRST_ORDINARY) & continuing(tokens)] += 1  # one token a word
    counts = masked(tokens, unit=WholeWords(), continues=continuing(tokens)).chosen.sum(0)[1:62]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_span_lengths_are_geometric_and_cut_off() -> None:
    lengths = unit_lengths(Spans(), uniforms(seed_for(0, "lengths"), np.arange(100_000)))
    assert lengths.mean() == pytest.approx(3.797, abs=0.02)
    shares = np.bincount(lengths, minlength=12) / len(lengths)
    assert (shares[1], shares[10], shares[0], shares[11]) == pytest.approx((0.224, 0.030, 0, 0), abs=0.005)
    weights = 0.2 * 0.8 ** np.arange(10)
    assert shares[1:11] == pytest.approx(weights / weights.sum(), abs=0.005)


def test_short_n_grams_are_more_frequent() -> None:
    lengths = unit_lengths(NGrams(), uniforms(seed_for(0, "lengths"), np.arange(100_000)))
    assert np.bincount(lengths)[1:] / len(lengths) == pytest.approx((0.545, 0.273, 0.182), abs=0.005)


def span_lengths(chosen: np.ndarray, begin: list[dict[int, int]]) -> np.ndarray:
    """Words of each unit that was chosen, from the places and where the unit of each begins."""
    return np.concatenate([np.unique(list(units.values()), return_counts=True)[1] for units in begin])


@pytest.mark.parametrize(("length", "mean"), [(512, 3.5), (128, 3.2)])
def test_spans_in_rows_are_shorter_than_drawn_where_they_meet_or_exceed_the_budget(length: int, mean: float) -> None:
    tokens = rows(60, length)
    tokens[continuing(tokens)] += 1  # one token a word, so that words of a unit are its places
    drawn = [slow_units(tokens[row], row, 0, 0.15, Spans()) for row in range(len(tokens))]
    chosen = masked(tokens, unit=Spans(), continues=continuing(tokens)).chosen
    assert [np.flatnonzero(row).tolist() for row in chosen] == [sorted(units) for units in drawn]
    lengths = span_lengths(chosen, drawn)
    assert lengths.mean() == pytest.approx(mean, abs=0.25) and 1 <= lengths.min() and lengths.max() <= 10
    shares = np.bincount(lengths, minlength=11)[1:] / len(lengths)
    assert (np.diff(shares[:6]) < 0.02).all()  # still the shorter the more frequent


def left_to_right(tokens: np.ndarray, row: int, rate: float, unit: NGrams) -> list[int]:
    """The chosen places of a row as DeBERTa's NGramMaskGenerator takes them, one window after another."""
    words = [word for run in words_of(tokens) for word in run]
    marked, offset, window = [False] * len(words), 0, int(1 / rate)
    while offset < len(words):
        place = words[offset][0]
        n = int(unit_lengths(unit, uniforms(seed_for(0, "mask"), row, 0, place, 3)))
        context = min(n * window, len(words) - offset)
        start = offset + int(uniforms(seed_for(0, "mask"), row, 0, place, 0).item() * context)
        end = min(start + n, len(words))
        offset = max(offset + context, end)
        marked[start:end] = [True] * (end - start)
    found: list[int] = []
    for word, is_marked in zip(words, marked, strict=True):
        if is_marked:
            found += word
            if len(found) >= max(1, int(rate * sum(map(len, words)) + 0.5)):
                break
    return found


CODE = NGrams(truncation="left-to-right")


@given(
    st.lists(st.lists(st.integers(0, 30), min_size=40, max_size=40), min_size=1, max_size=3),
    st.sampled_from((0.1, 0.15, 0.4)),
)
def test_n_grams_from_left_to_right_are_those_of_debertas_code(tokens: list[list[int]], rate: float) -> None:
    ids = np.array(tokens)
    found = masked(ids, rate=rate, unit=CODE, continues=continuing(ids)).chosen
    for row in range(len(ids)):
        assert np.flatnonzero(found[row]).tolist() == left_to_right(ids[row], row, rate, CODE)


def test_from_left_to_right_the_end_of_a_full_row_is_never_chosen() -> None:
    tokens = rows(2000, 512)[:, :448]
    tokens[tokens >= UNK] -= tokens[tokens >= UNK] % 3 == 0  # one token a word
    for longest, never in ((1, 40), (3, 20)):
        chosen = masked(tokens, unit=NGrams(longest=longest, truncation="left-to-right")).chosen
        assert chosen[:, 20:380].mean() == pytest.approx(1 / 6, abs=0.01)
        assert not chosen[:, 447 - never : 447].any() and masked(tokens).chosen[:, 447 - never : 447].any()


@pytest.mark.parametrize("unit", [WholeWords, Spans, NGrams])
def test_what_stands_in_place_of_a_unit_is_drawn_once_or_for_each_token(unit: type[Unit]) -> None:
    tokens = rows(80, 64)
    fates = {}
    for per in ("unit", "token"):
        found = masked(tokens, unit=unit(replacement_per=per), continues=continuing(tokens))  # type: ignore[call-arg]
        kinds: dict[tuple[int, int], set[str]] = {}
        for row in range(len(tokens)):
            for place, begin in slow_units(tokens[row], row, 0, 0.15, unit()).items():  # type: ignore[call-arg]
                assert found.chosen[row, place]
                what = "mask" if found.inputs[row, place] == MASK else "other"
                kinds.setdefault((row, begin), set()).add(what)
        fates[per] = [len(seen) for seen in kinds.values()]
    assert max(fates["unit"]) == 1 and max(fates["token"]) == 2


def test_a_unit_of_one_token_is_a_token_and_words_without_continuations_are_tokens() -> None:
    tokens = rows(50, 64)
    plain = masked(tokens)
    for unit in (WholeWords(), Spans(longest=1, replacement_per="token"), NGrams(longest=1)):
        found = masked(tokens, unit=unit)
        assert (found.inputs == plain.inputs).all() and (found.chosen == plain.chosen).all()


def test_a_row_whose_words_all_exceed_its_budget_has_nothing_to_predict() -> None:
    tokens = np.array([[CLS, 7, 9, 12, 10, 15, 18, SEP]])  # two words of three tokens, a budget of one
    assert not masked(tokens, unit=WholeWords(), continues=continuing(tokens)).chosen.any()
    assert masked(tokens, rate=0.5, unit=WholeWords(), continues=continuing(tokens)).chosen.sum() == 3


@WORDS
@given(st.permutations(range(12)), st.integers(1, 12))
def test_the_units_of_a_row_do_not_depend_on_its_batch(unit: Unit, order: list[int], count: int) -> None:
    tokens, numbers = rows(12, 32), np.array(order[:count])
    tokens[::2, 9:] = PAD  # rows of unequal numbers of words
    whole = masked(tokens, 3, unit=unit, continues=continuing(tokens))
    part = mask(tokens[numbers], numbers, np.full(count, 3), 0, 0.15, BERT, SIZE, unit, continuing(tokens[numbers]))
    assert (part.inputs == whole.inputs[numbers]).all() and (part.chosen == whole.chosen[numbers]).all()
