"""Sentences to rows, with a vocabulary whose words are numbers: "17 18" encodes to [17, 18]."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.data.document import Document
from paribus.data.packing import CONTINUES, DOCUMENT, SENTENCE, Rows, load, pack, save, unigram_loss
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, PAD, SEP, Encoded, Vocabulary
from paribus.errors import DataError
from paribus.spec.data import FullSentences, SegmentPairs

LENGTH = 16
# Documents as the lengths of their sentences; longer than a row, as long as one, and empty ones included.
LENGTHS = st.lists(st.lists(st.integers(0, 40) | st.sampled_from((13, 14, 15)), max_size=8), max_size=6)


@functools.cache
def numbers(size: int = 60000) -> Vocabulary:
    pieces = [f"##{id}" if id % 3 == 0 else str(id) for id in range(size)]
    return Vocabulary(pieces, lambda texts: [Encoded([int(w) for w in text.split()], []) for text in texts], "##")


def documents(lengths: list[list[int]]) -> list[Document]:
    """Documents whose tokens count on, so that every token says where it comes from."""
    count: Iterator[int] = iter(range(FIRST_ORDINARY, 60000))
    return [
        Document(str(number), (tuple(" ".join(str(next(count)) for _ in range(length)) for length in sentences),))
        for number, sentences in enumerate(lengths)
    ]


def pieces(lengths: list[list[int]], longest: int) -> list[list[int]]:
    """The lengths of what sentences become: empty ones go, longer ones than `longest` are cut."""
    return [[min(longest, n - at) for n in sentences for at in range(0, n, longest)] for sentences in lengths]


def rows_of(packed: Rows) -> list[list[int]]:
    return [packed.tokens[row, : packed.lengths[row]].tolist() for row in range(len(packed))]


def full(lengths: list[list[int]]) -> Rows:
    return pack(FullSentences(length=LENGTH), documents(lengths), numbers(), None)


@given(LENGTHS)
def test_full_sentences_lose_repeat_and_move_no_token(lengths: list[list[int]]) -> None:
    packed = full(lengths)
    ordinary = packed.tokens[packed.tokens >= FIRST_ORDINARY]
    assert ordinary.tolist() == list(range(FIRST_ORDINARY, FIRST_ORDINARY + sum(map(sum, lengths))))
    for row in rows_of(packed):
        assert row[0] == CLS and row[-1] == SEP and CLS not in row[1:]
    assert all((packed.tokens[i, n:] == PAD).all() for i, n in enumerate(packed.lengths))
    assert not packed.second.any() and not packed.labels.any()


@given(LENGTHS)
def test_full_sentences_are_whole_and_each_is_ended_by_a_separator(lengths: list[list[int]]) -> None:
    packed = full(lengths)
    runs = [len(run) for row in rows_of(packed) for run in _runs(row)]
    assert runs == [n for sentences in pieces(lengths, LENGTH - 2) for n in sentences]


@given(LENGTHS)
def test_full_sentences_begin_a_row_only_where_the_next_one_has_no_room(lengths: list[list[int]]) -> None:
    packed = full(lengths)
    for row in range(1, len(packed)):
        first = len(_runs(rows_of(packed)[row])[0])
        separator = int(packed.flags[row, 1] & DOCUMENT > 0)
        assert packed.lengths[row - 1] + separator + first + 1 > LENGTH


@given(LENGTHS)
def test_full_sentences_have_a_lone_separator_for_each_document_that_begins_inside_a_row(
    lengths: list[list[int]],
) -> None:
    packed = full(lengths)
    lone = sum(a == b == SEP for row in rows_of(packed) for a, b in zip(row, row[1:], strict=False))
    assert lone == (packed.flags[:, 2:] & DOCUMENT > 0).sum()


@given(LENGTHS)
def test_flags_mark_the_first_token_of_sentences_and_documents(lengths: list[list[int]]) -> None:
    packed = full(lengths)
    found = [[sum(s) for s in pieces(lengths, LENGTH - 2)], [n for s in pieces(lengths, LENGTH - 2) for n in s]]
    for flag, parts in ((DOCUMENT, [n for n in found[0] if n]), (SENTENCE, found[1])):
        starts = FIRST_ORDINARY + np.cumsum([0, *parts])[:-1] if parts else np.array([])
        assert packed.tokens[packed.flags & flag > 0].tolist() == starts.tolist()
    continues = packed.flags & CONTINUES > 0
    assert (continues == ((packed.tokens % 3 == 0) & (packed.tokens >= FIRST_ORDINARY))).all()


def test_full_sentences_by_hand() -> None:
    # A sentence that fills its row; a document that ends one token before the end of a row; one that ends with room.
    packed = full([[14], [5, 6], [1], [2, 12]])
    assert packed.lengths.tolist() == [16, 14, 7, 14]
    assert rows_of(packed)[1] == [CLS, *range(19, 24), SEP, *range(24, 30), SEP]
    assert rows_of(packed)[2] == [CLS, 30, SEP, SEP, 31, 32, SEP]


def test_whole_documents_are_taken_until_there_are_enough_tokens() -> None:
    made = documents([[10, 10], [10, 10], [10, 10]])
    for tokens, taken in ((1, 20), (20, 20), (21, 40), (1000, 60), (None, 60)):
        packed = pack(FullSentences(length=LENGTH), made, numbers(), tokens)
        assert (packed.tokens >= FIRST_ORDINARY).sum() == taken


@pytest.mark.parametrize(("size", "dtype"), [(2**16, np.uint16), (2**16 + 1, np.uint32)])
def test_tokens_take_two_bytes_where_every_id_fits(size: int, dtype: type) -> None:
    packed = pack(FullSentences(length=LENGTH), [Document("a", ((f"7 {size - 1}",),))], numbers(size), None)
    assert packed.tokens.dtype == dtype
    assert rows_of(packed) == [[CLS, 7, size - 1, SEP]]


def test_rows_that_were_saved_are_those_that_are_loaded(tmp_path: Path) -> None:
    packed = full([[5, 6], [7]])
    save(packed, tmp_path, "train")
    found = load(tmp_path, "train")
    for name in ("tokens", "flags", "lengths", "second", "labels"):
        assert (getattr(found, name) == getattr(packed, name)).all() and isinstance(getattr(found, name), np.memmap)


# --- segment pairs --------------------------------------------------------------------------------------------------

SHORT = st.lists(st.lists(st.integers(1, 8), min_size=0, max_size=12), min_size=2, max_size=6).filter(
    lambda found: sum(len(sentences) >= 2 for sentences in found) >= 2
)


def pairs(lengths: list[list[int]], negatives: str) -> Rows:
    packing = SegmentPairs(length=LENGTH, negatives=negatives)  # type: ignore[arg-type]
    return pack(packing, documents(lengths), numbers(), None)


def sides(packed: Rows) -> list[tuple[list[int], list[int]]]:
    return [
        (row[1 : second - 1], row[second:-1])
        for row, second in zip(rows_of(packed), packed.second.tolist(), strict=True)
    ]


@pytest.mark.parametrize("negatives", ["swapped", "random-document"])
@given(lengths=SHORT)
def test_a_pair_is_two_full_segments_between_specials_and_the_halves_are_exact(
    negatives: str, lengths: list[list[int]]
) -> None:
    packed = pairs(lengths, negatives)
    for row, (first, second) in zip(rows_of(packed), sides(packed), strict=True):
        assert first and second
        assert row == [CLS, *first, SEP, *second, SEP]
    assert abs(2 * int(packed.labels.sum()) - len(packed)) <= 1
    for row, second in enumerate(packed.second.tolist()):
        assert packed.flags[row, 1] & SENTENCE and packed.flags[row, second] & SENTENCE


@pytest.mark.parametrize("negatives", ["swapped", "random-document"])
@given(lengths=SHORT)
def test_a_true_pair_goes_on_where_its_first_segment_ends(negatives: str, lengths: list[list[int]]) -> None:
    packed = pairs(lengths, negatives)
    for (first, second), label in zip(sides(packed), packed.labels.tolist(), strict=True):
        if label == 0:
            _assert_neighbours(first, second, lengths)


@given(lengths=SHORT)
def test_a_swapped_pair_is_a_true_one_turned_round(lengths: list[list[int]]) -> None:
    packed = pairs(lengths, "swapped")
    for (first, second), label in zip(sides(packed), packed.labels.tolist(), strict=True):
        if label == 1:
            _assert_neighbours(second, first, lengths)


@given(lengths=SHORT)
def test_a_random_second_segment_is_from_another_document(lengths: list[list[int]]) -> None:
    ends = FIRST_ORDINARY + np.cumsum([sum(sentences) for sentences in lengths])
    packed = pairs(lengths, "random-document")
    for (first, second), label in zip(sides(packed), packed.labels.tolist(), strict=True):
        same = np.searchsorted(ends, first[0], side="right") == np.searchsorted(ends, second[0], side="right")
        assert same == (label == 0)


@given(lengths=SHORT)
def test_both_kinds_of_negatives_share_their_true_pairs(lengths: list[list[int]]) -> None:
    one, other = pairs(lengths, "swapped"), pairs(lengths, "random-document")
    assert (one.labels == other.labels).all()
    assert (one.tokens[one.labels == 0] == other.tokens[other.labels == 0]).all()


def test_too_long_a_pair_loses_the_end_of_its_longer_segment() -> None:
    # Room for 13 tokens; the only cut of two sentences is between them.
    for lengths, kept in (([3, 14], (3, 10)), ([14, 3], (10, 3)), ([14, 14], (6, 7)), ([7, 14], (6, 7))):
        ((first, second), *_) = sides(pairs([[*lengths], [1, 1]], "swapped"))
        assert (len(first), len(second)) == kept


def test_a_random_second_segment_needs_another_document() -> None:
    with pytest.raises(DataError, match="needs another document, but there is only one"):
        pairs([[3, 3], [3]], "random-document")


def test_documents_of_one_sentence_give_no_pairs() -> None:
    assert len(pairs([[3], [4]], "swapped")) == 0


def _assert_neighbours(first: list[int], second: list[int], lengths: list[list[int]]) -> None:
    """`second` begins with the sentence after the one that `first` ends in (or was cut in), in the same document."""
    starts = FIRST_ORDINARY + np.cumsum([0, *(n for sentences in lengths for n in sentences)])
    assert second[0] == starts[np.searchsorted(starts, first[-1], side="right")] or (
        # Cut at the end: whole sentences of `first` may be gone, so only the order is left to see.
        len(first) + len(second) == LENGTH - 3 and second[0] in starts and second[0] > first[-1]
    )
    document_ends = FIRST_ORDINARY + np.cumsum([sum(sentences) for sentences in lengths])
    places = np.searchsorted(document_ends, [first[0], second[0], second[-1]], side="right")
    assert len(set(places.tolist())) == 1


def _runs(row: list[int]) -> list[list[int]]:
    """The runs of ordinary tokens in a row."""
    runs: list[list[int]] = [[]]
    for id in row:
        if id >= FIRST_ORDINARY:
            runs[-1].append(id)
        elif runs[-1]:
            runs.append([])
    return runs[:-1]


def test_the_unigram_loss_is_the_entropy_of_what_is_predicted() -> None:
    # 7 and 8 seen equally often: held-out text of the same halves costs ln 2, but for the add-one of the other ids.
    packed = pack(FullSentences(length=LENGTH), [Document("a", (("7 8 " * 500,),))], numbers(10), None)
    assert unigram_loss(packed, packed, 10) == pytest.approx(np.log(2), abs=0.01)
