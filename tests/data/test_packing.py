"""Sentences to rows, with a vocabulary whose words are numbers: "17 18" encodes to [17, 18]."""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.data.batching import Batches
from paribus.data.document import Document
from paribus.data.masking import mask
from paribus.data.packing import (
    CONTINUES,
    DOCUMENT,
    PAIRS,
    SENTENCE,
    Rows,
    bits_per_byte,
    load,
    load_words,
    pack,
    pack_words,
    save,
    unigram_loss,
)
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, PAD, SEP, UNK, Encoded, Pieces, Vocabulary, end_to_end
from paribus.errors import DataError
from paribus.spec.data import DocSentences, FullSentences, Packing, Replacement, SegmentPairs, SentencePairs

LENGTH = 16
# Documents as the lengths of their sentences; longer than a row, as long as one, and empty ones included.
LENGTHS = st.lists(st.lists(st.integers(0, 40) | st.sampled_from((13, 14, 15)), max_size=8), max_size=6)


def joined(found: list[Encoded]) -> Pieces:
    return end_to_end((len(e.ids) for e in found), (e.ids for e in found), (e.spans for e in found))


@functools.cache
def numbers(size: int = 60000) -> Vocabulary:
    """Every third number continues the word of the one before it: its place in the text is the same."""

    def encode(texts: Sequence[str]) -> Pieces:
        found = []
        for text in texts:
            ids, spans = [int(word) for word in text.split()], [match.span() for match in re.finditer(r"\S+", text)]
            for place, id in enumerate(ids):
                spans[place] = spans[place - 1] if id % 3 == 0 and place else spans[place]
            found.append(Encoded(ids, spans))
        return joined(found)

    return Vocabulary([str(id) for id in range(size)], encode)


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
    begins = FIRST_ORDINARY + np.cumsum([0, *(n for sentences in lengths for n in sentences)])
    third = (packed.tokens % 3 == 0) & (packed.tokens >= FIRST_ORDINARY)
    assert (continues == (third & ~np.isin(packed.tokens, begins))).all()


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
    save([packed], tmp_path, "train", 60000)
    found = load(tmp_path, "train")
    for name in ("tokens", "flags", "lengths", "second", "labels"):
        assert (getattr(found, name) == getattr(packed, name)).all() and isinstance(getattr(found, name), np.memmap)


# --- doc sentences --------------------------------------------------------------------------------------------------


@given(LENGTHS)
def test_doc_sentences_are_the_full_sentences_of_each_document_alone(lengths: list[list[int]]) -> None:
    made = documents(lengths)
    packed = pack(DocSentences(length=LENGTH), made, numbers(), None)
    alone = [pack(FullSentences(length=LENGTH), [document], numbers(), None) for document in made]
    assert rows_of(packed) == [row for rows in alone for row in rows_of(rows)]
    assert not (packed.flags[:, 2:] & DOCUMENT).any()


@given(LENGTHS)
def test_no_row_of_doc_sentences_spans_two_documents_and_the_last_is_short(lengths: list[list[int]]) -> None:
    ends = FIRST_ORDINARY + np.cumsum([sum(sentences) for sentences in lengths])
    for row in rows_of(pack(DocSentences(length=LENGTH), documents(lengths), numbers(), None)):
        first, last = np.searchsorted(ends, [row[1], row[-2]], side="right")
        assert first == last


# --- pairs ----------------------------------------------------------------------------------------------------------

SHORT = st.lists(st.lists(st.integers(1, 8), min_size=0, max_size=12), min_size=2, max_size=6).filter(
    lambda found: sum(len(sentences) >= 2 for sentences in found) >= 2
)
KINDS = pytest.mark.parametrize("kind", [SegmentPairs, SentencePairs])
NEGATIVES = pytest.mark.parametrize("negatives", list(PAIRS))


def pairs(lengths: list[list[int]], negatives: str, kind: type[Packing] = SegmentPairs, length: int = LENGTH) -> Rows:
    return pack(kind(length=length, negatives=negatives), documents(lengths), numbers(), None)  # type: ignore[call-arg]


def sides(packed: Rows) -> list[tuple[list[int], list[int]]]:
    return [
        (row[1 : second - 1], row[second:-1])
        for row, second in zip(rows_of(packed), packed.second.tolist(), strict=True)
    ]


def kinds_of(packed: Rows, negatives: str) -> list[str]:
    return [PAIRS[negatives][label] for label in packed.labels.tolist()]  # type: ignore[index]


def places(ids: list[int], lengths: list[list[int]]) -> list[tuple[int, int]]:
    """The (document, sentence of it) each id is from."""
    starts = [(d, s) for d, sentences in enumerate(lengths) for s, n in enumerate(sentences) for _ in range(n)]
    return [starts[id - FIRST_ORDINARY] for id in ids]


@KINDS
@NEGATIVES
@given(lengths=SHORT)
def test_a_pair_is_two_full_segments_between_specials_and_the_shares_are_exact(
    kind: type[Packing], negatives: str, lengths: list[list[int]]
) -> None:
    packed = pairs(lengths, negatives, kind)
    for row, (first, second) in zip(rows_of(packed), sides(packed), strict=True):
        assert first and second
        assert row == [CLS, *first, SEP, *second, SEP]
    counts = np.bincount(packed.labels, minlength=len(PAIRS[negatives]))  # type: ignore[index]
    assert counts.max() - counts.min() <= 1 and len(counts) == len(PAIRS[negatives])  # type: ignore[index]


@KINDS
@NEGATIVES
@given(lengths=SHORT)
def test_true_and_swapped_pairs_are_neighbours_and_random_ones_are_of_two_documents(
    kind: type[Packing], negatives: str, lengths: list[list[int]]
) -> None:
    packed = pairs(lengths, negatives, kind)
    for (first, second), what in zip(sides(packed), kinds_of(packed, negatives), strict=True):
        a, b = places(first, lengths), places(second, lengths)
        assert len({document for document, _ in a}) == len({document for document, _ in b}) == 1
        if what == "random":
            assert a[0][0] != b[0][0]
        else:
            earlier, later = (b, a) if what == "swapped" else (a, b)
            assert later[0] == (earlier[-1][0], earlier[-1][1] + 1)


@KINDS
@NEGATIVES
@given(lengths=SHORT)
def test_no_sentence_is_lost_but_a_lone_one_at_the_end(
    kind: type[Packing], negatives: str, lengths: list[list[int]]
) -> None:
    packed = pairs(lengths, negatives, kind, 128)  # no pair is cut
    found = {place for pair in sides(packed) for side in pair for place in places(side, lengths)}
    for number, sentences in enumerate(lengths):
        assert {(number, sentence) for sentence in range(len(sentences) - 1)} <= found or len(sentences) < 2


@NEGATIVES
@given(lengths=SHORT)
def test_only_sentence_pairs_have_one_sentence_a_side(negatives: str, lengths: list[list[int]]) -> None:
    packed = pairs(lengths, negatives, SentencePairs)
    assert all(len(set(places(side, lengths))) == 1 for pair in sides(packed) for side in pair)
    assert ((packed.flags & SENTENCE > 0).sum(1) == 2).all()


def test_segments_hold_as_many_sentences_as_fit_and_flag_each() -> None:
    packed = pairs([[3, 3, 3, 3, 3, 3]], "none")
    # Room for 13 tokens: four sentences, then two.
    assert [len(a) + len(b) for a, b in sides(packed)] == [12, 6]
    assert (packed.flags & SENTENCE > 0).sum(1).tolist() == [4, 2]
    starts = packed.tokens[packed.flags & SENTENCE > 0]
    assert starts.tolist() == list(range(FIRST_ORDINARY, FIRST_ORDINARY + 18, 3))


@KINDS
@given(lengths=SHORT)
def test_a_swapped_pair_is_the_true_one_turned_round(kind: type[Packing], lengths: list[list[int]]) -> None:
    true, swapped = sides(pairs(lengths, "none", kind)), sides(pairs(lengths, "swapped", kind))
    assert swapped == [(b, a) if row % 2 else (a, b) for row, (a, b) in enumerate(true)]


def test_segment_types_are_of_the_pair_and_padding_has_none() -> None:
    packed = pairs([[3, 3], [2, 2]], "none")
    assert packed.second.tolist() == [5, 4] and packed.lengths.tolist() == [9, 7]


def test_too_long_a_pair_loses_the_end_of_its_longer_segment() -> None:
    # Room for 13 tokens; the only cut of two sentences is between them.
    for lengths, kept in (([3, 14], (3, 10)), ([14, 3], (10, 3)), ([14, 14], (6, 7)), ([7, 14], (6, 7))):
        ((first, second), *_) = sides(pairs([[*lengths], [1, 1]], "none"))
        assert (len(first), len(second)) == kept


def test_a_random_second_segment_needs_another_document() -> None:
    with pytest.raises(DataError, match="segment-pairs: a random second segment needs another document"):
        pairs([[3, 3], [3]], "random-document")


def test_documents_of_one_sentence_give_no_pairs() -> None:
    assert len(pairs([[3], [4]], "swapped")) == 0


def _runs(row: list[int]) -> list[list[int]]:
    """The runs of ordinary tokens in a row."""
    runs: list[list[int]] = [[]]
    for id in row:
        if id >= FIRST_ORDINARY:
            runs[-1].append(id)
        elif runs[-1]:
            runs.append([])
    return runs[:-1]


@given(lengths=SHORT)
def test_a_lone_sentence_may_have_a_random_second_segment_which_makes_more_negatives(lengths: list[list[int]]) -> None:
    packing = SegmentPairs(length=LENGTH, negatives="swapped", lone="random-document")
    packed = pack(packing, documents(lengths), numbers(), None)
    lone = 0
    for (first, second), label in zip(sides(packed), packed.labels, strict=True):
        a, b = places(first, lengths), places(second, lengths)
        if a[0][0] != b[0][0]:  # only a document's last sentence, and it is a negative
            lone += 1
            assert label == 1 and all(n == 0 for n in lengths[a[0][0]][a[-1][1] + 1 :])
    plain = pairs(lengths, "swapped")
    assert len(packed) == len(plain) + lone


def test_rows_of_a_share_of_the_documents_are_shorter() -> None:
    lengths = [[4] * 40 for _ in range(60)]
    short = pack(SegmentPairs(length=64, short=0.5), documents(lengths), numbers(), None)
    filled: dict[int, list[int]] = {}
    for (first, _), length in zip(sides(short), short.lengths.tolist(), strict=True):
        filled.setdefault(places(first, lengths)[0][0], []).append(length)
    full_rows = [max(found) > 58 for found in filled.values()]
    assert 0.3 < np.mean(full_rows) < 0.7
    assert len({max(found) for found in filled.values()}) > 8  # one target a document, and many of them
    whole = pack(SegmentPairs(length=64), documents(lengths), numbers(), None)
    assert len(short) > len(whole) and short.lengths.mean() < whole.lengths.mean()


def test_the_unigram_loss_is_the_entropy_of_what_is_predicted(tmp_path: Path) -> None:
    # 7 and 8 seen equally often: held-out text of the same halves costs ln 2, but for the add-one of the other ids.
    packed = pack(FullSentences(length=LENGTH), [Document("a", (("7 8 " * 500,),))], numbers(10), None)
    total = save([packed], tmp_path, "train", 10)
    assert unigram_loss(total, total) == pytest.approx(np.log(2), abs=0.01)


# --- what formats share ---------------------------------------------------------------------------------------------

FORMATS: dict[str, Packing] = {
    "full-sentences": FullSentences(length=256),
    "doc-sentences": DocSentences(length=256),
    "segment-pairs": SegmentPairs(length=256),
    "sentence-pairs": SentencePairs(length=256),
}


@pytest.mark.parametrize("kind", list(FORMATS))
def test_an_update_holds_the_same_tokens_in_every_format(
    kind: str, documents: list[Document], vocabulary: Vocabulary
) -> None:
    packed = pack(FORMATS[kind], documents, vocabulary, None)
    batches = Batches(packed.lengths, 2048, 0)
    tokens, predicted = [], []
    for step in range(60):
        rows, visits = batches.rows(step)
        tokens.append(int(packed.lengths[rows].sum()))
        predicted.append(mask(packed.tokens[rows], rows, visits, 0, 0.15, Replacement(), len(vocabulary)).chosen.sum())
    assert np.mean(tokens) == pytest.approx(2048, rel=0.02)
    # Separators are tokens of an update that are never predicted.
    assert np.mean(predicted) == pytest.approx(0.147 * 2048, rel=0.02)


def test_formats_differ_in_their_padding_as_they_should(documents: list[Document], vocabulary: Vocabulary) -> None:
    rows = {kind: pack(packing, documents, vocabulary, None) for kind, packing in FORMATS.items()}
    share = {kind: 1 - packed.lengths.sum() / packed.tokens.size for kind, packed in rows.items()}
    assert share["full-sentences"] < share["doc-sentences"] < share["sentence-pairs"]
    full = rows["full-sentences"]
    assert (full.flags[:, 2:] & DOCUMENT > 0).any()


def _told_by(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows whose label a threshold on `scores`, the best one, tells."""
    order = labels[np.argsort(scores, kind="stable")]
    below = np.concatenate([[0], np.cumsum(1 - 2 * order)])  # positives minus negatives below each threshold
    return float(((labels == 1).sum() + max(below.max(), -below.min() + len(labels) - 2 * labels.sum())) / len(labels))


@pytest.mark.parametrize(("negatives", "low", "high"), [("random-document", 0.6, 1.0), ("swapped", 0.45, 0.57)])
def test_shared_words_tell_a_random_segment_from_the_next_and_not_the_order(
    negatives: str, low: float, high: float, documents: list[Document], vocabulary: Vocabulary
) -> None:
    packing = SegmentPairs(length=128, negatives=negatives)  # type: ignore[arg-type]
    packed = pack(packing, documents, vocabulary, None)
    rare = np.bincount(packed.tokens.reshape(-1), minlength=len(vocabulary)) < 300
    shared = []
    for first, second in sides(packed):
        a, b = ({id for id in side if rare[id]} for side in (first, second))
        shared.append(-len(a & b) / max(1, min(len(a), len(b))))
    assert low < _told_by(np.array(shared), packed.labels) < high


def test_lengths_do_not_tell_a_random_segment_from_the_next(documents: list[Document], vocabulary: Vocabulary) -> None:
    packed = pack(SegmentPairs(length=64), documents, vocabulary, None)
    assert len(packed) > 500
    for scores in (packed.lengths, packed.second, packed.lengths - packed.second):
        assert _told_by(scores, packed.labels) < 0.56


# --- words ----------------------------------------------------------------------------------------------------------


@given(LENGTHS)
def test_words_of_held_out_documents_are_all_there_once_in_order(lengths: list[list[int]]) -> None:
    words = pack_words(documents(lengths), numbers(), LENGTH)
    tokens, number = words.rows.tokens, words.numbers
    total = sum(map(sum, lengths))
    assert tokens[number >= 0].tolist() == list(range(FIRST_ORDINARY, FIRST_ORDINARY + total))
    assert (number[tokens < FIRST_ORDINARY] == -1).all()
    found = number[number >= 0]
    assert (np.diff(found) >= 0).all() and len(words.sizes) == len(words.unknown) == total
    assert not words.rows.second.any() and words.rows.tokens.shape[1] == LENGTH


def test_no_row_of_words_holds_two_documents() -> None:
    words = pack_words(documents([[5, 3], [2], [20]]), numbers(), LENGTH)
    ends = np.cumsum([8, 2, 20])
    for row in words.numbers:
        assert len(set(np.searchsorted(ends, row[row >= 0], side="right"))) == 1


def test_words_by_hand() -> None:
    # 6 and 9 continue the words before them; a word has the bytes of its text, and what gives no piece is unknown.
    words = pack_words([Document("a", (("5 6 10", "7 9 é?"),))], by_hand(), LENGTH)
    assert words.rows.tokens[0, :8].tolist() == [CLS, 5, 6, 10, SEP, 7, 9, UNK]
    assert words.numbers[0, :9].tolist() == [-1, 0, 0, 2, -1, 3, 3, 5, -1]
    assert words.sizes.tolist() == [1, 1, 2, 1, 1, 3]
    assert words.unknown.tolist() == [0, 1, 0, 0, 1, 2]


def by_hand() -> Vocabulary:
    """Like `numbers`; "é?" is an [UNK] for its letter alone."""

    def encode(texts: Sequence[str]) -> Pieces:
        found = numbers().encode_all([text.replace(" é?", "") for text in texts])
        unknown = [([UNK], [(text.index("é"), text.index("é") + 1)]) if "é" in text else ([], []) for text in texts]
        return joined([Encoded(e.ids + ids, e.spans + spans) for e, (ids, spans) in zip(found, unknown, strict=True)])

    return Vocabulary(numbers().pieces, encode)


def test_words_that_were_saved_are_those_that_are_loaded(tmp_path: Path) -> None:
    words = pack_words(documents([[5, 6], [7]]), numbers(), LENGTH)
    save([words], tmp_path, "test.words", 60000)
    found = load_words(tmp_path, "test")
    assert (found.rows.tokens == words.rows.tokens).all()
    for name in ("numbers", "sizes", "unknown"):
        assert (getattr(found, name) == getattr(words, name)).all()


def test_a_byte_that_is_unknown_costs_eight_bits_more() -> None:
    assert bits_per_byte(20 * np.log(2), 10, 0) == pytest.approx(2)
    assert bits_per_byte(20 * np.log(2), 10, 2) == pytest.approx(2 + 16 / 10)
    assert bits_per_byte(0, 10, 10) == 8
