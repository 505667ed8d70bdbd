"""Sentences to rows of fixed length, memory-mapped.

stage folder, a split: SPLIT.tokens.npy   (rows, length) uint16 or uint32, padded with [PAD]
                       SPLIT.flags.npy    (rows, length) uint8: SENTENCE | DOCUMENT | CONTINUES | ISOLATED
                       SPLIT.lengths.npy  (rows,) int32: real tokens, special ones included
                       SPLIT.second.npy   (rows,) int32: where the second segment begins, 0 without one
                       SPLIT.labels.npy   (rows,) int8: which kind of pair, 0 the true one, see PAIRS

of validation and test: SPLIT.words.*.npy: the same arrays of rows that hold every word once, whatever the format
                        SPLIT.words.numbers.npy  (rows, length) int32: the word of each token, from 0; -1 at specials
                        SPLIT.words.sizes.npy    (words,) int32: UTF-8 bytes of each word of the split
                        SPLIT.words.unknown.npy  (words,) int32: of these, bytes that no piece says
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.data.document import Document
from paribus.data.tokens import WORD_GOES_ON, Tokeniser, Tokens
from paribus.data.vocabulary import CLS, PAD, SEP, UNK, Numbers, Vocabulary
from paribus.errors import DataError
from paribus.seeds import seed_for
from paribus.spec.data import DocSentences, FullSentences, Negatives, Packing, SegmentPairs, SentencePairs

# Flags: begins a sentence, begins a document, continues a word, attends to its own document only.
SENTENCE, DOCUMENT, CONTINUES, ISOLATED = 1, 2, 4, 8

# The kinds of pair that come in turn; a row's label is the place of its kind.
PAIRS: dict[Negatives, tuple[str, ...]] = {
    "none": ("next",),
    "random-document": ("next", "random"),
    "swapped": ("next", "swapped"),
    "three-way": ("next", "swapped", "random"),
}

ROWS = 4096
"""Pairs that are made at a time."""


@dataclass(frozen=True)
class Rows:
    """The rows of one split, or some of them. `tokens` and `flags` are (rows, length); the others (rows,)."""

    tokens: NDArray[np.unsignedinteger]
    flags: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    second: NDArray[np.int32]
    labels: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.lengths)

    def part(self, which: slice) -> "Rows":
        """Some of the rows."""
        return Rows(**{name: array[which] for name, array in self.arrays.items()})

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names of their files."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class Words:
    """Held-out words, to compare tokenizers by: whatever the tokenizer and the format, word n is the same word.

    rows: each document by itself, whole sentences, as FULL-SENTENCES.  numbers (rows, length), sizes and unknown
    (words,): as in the stage folder.
    """

    rows: Rows
    numbers: NDArray[np.int32]
    sizes: NDArray[np.int32]
    unknown: NDArray[np.int32]

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """By the names of their files."""
        return {**self.rows.arrays, "numbers": self.numbers, "sizes": self.sizes, "unknown": self.unknown}


@dataclass
class Total:
    """What was written. ids: how often each id.  words: how many, their bytes, and those that no piece says."""

    ids: Numbers
    rows: int = 0
    tokens: int = 0
    words: int = 0
    sizes: int = 0
    unknown: int = 0


def save(parts: Iterable[Rows | Words], folder: Path, name: str, size: int) -> Total:
    """Write rows as SPLIT, or words as SPLIT.words, part by part; of a vocabulary of `size` ids."""
    total = Total(np.zeros(size, dtype=np.int64))
    writers: dict[str, _Writer] = {}
    with ExitStack() as stack:
        for part in parts:
            for array_name, array in part.arrays.items():
                if array_name not in writers:
                    writers[array_name] = stack.enter_context(_Writer(folder / f"{name}.{array_name}.npy", array))
                writers[array_name].append(array)
            laid = part.rows if isinstance(part, Words) else part
            if isinstance(part, Words):
                total.words += len(part.sizes)
                total.sizes += int(part.sizes.sum())
                total.unknown += int(part.unknown.sum())
            total.rows += len(laid)
            total.tokens += int(laid.lengths.sum())
            total.ids += np.bincount(laid.tokens.reshape(-1), minlength=size)
    return total


class _Writer:
    """An array file of unknown length."""

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._stream, self._count = path.open("wb"), 0
        self._head = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False}
        self._shape = like.shape[1:]
        self._write_head(2**62)  # as long as the real one can be

    def _write_head(self, count: int) -> None:
        self._stream.seek(0)
        np.lib.format.write_array_header_1_0(self._stream, {**self._head, "shape": (count, *self._shape)})

    def __enter__(self) -> "_Writer":
        return self

    def append(self, array: NDArray[Any]) -> None:
        self._stream.write(np.ascontiguousarray(array).data)
        self._count += len(array)

    def __exit__(self, *_: object) -> None:
        self._write_head(self._count)
        self._stream.close()


def load(folder: Path, split: str) -> Rows:
    """The rows of a split, memory-mapped."""
    return Rows(**{f.name: np.load(folder / f"{split}.{f.name}.npy", mmap_mode="r") for f in fields(Rows)})


def load_words(folder: Path, split: str) -> Words:
    """The words of a split, memory-mapped."""
    arrays = {n: np.load(folder / f"{split}.words.{n}.npy", mmap_mode="r") for n in ("numbers", "sizes", "unknown")}
    return Words(load(folder, f"{split}.words"), **arrays)


def pack(packing: Packing, documents: Sequence[Document], vocabulary: Vocabulary, tokens: int | None) -> Rows:
    """The rows of `documents`, taken whole and in order until they hold `tokens` tokens (None: all of them)."""
    parts = list(rows(packing, [Tokeniser(vocabulary)(documents)], len(vocabulary), tokens))
    return Rows(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Rows)))


def pack_words(documents: Sequence[Document], vocabulary: Vocabulary, length: int) -> Words:
    """Every word of `documents` once: a word is what stands between blanks, and its pieces may lie in two rows."""
    (found,) = words([Tokeniser(vocabulary)(documents)], len(vocabulary), length)
    return found


def rows(packing: Packing, shards: Iterable[Tokens], size: int, tokens: int | None = None) -> Iterator[Rows]:
    """The rows of a vocabulary of `size` ids, in parts: documents are taken whole, in order, until there are `tokens`.

    There is at least one part, of no rows if there are none.
    """
    pieces = (_cut(shard, packing.length) for shard in _until(shards, tokens))
    make = partial(_empty, packing.length, size)
    match packing:
        case FullSentences():
            flag = ISOLATED if packing.isolation == "document" else 0
            return _sentences(pieces, make, False, flag)
        case DocSentences():
            return _sentences(pieces, make, True)
        case SegmentPairs() | SentencePairs():
            return _pairs(pieces, packing, make)
        case _:
            raise DataError(f"packing.kind {packing.kind!r} has no packer")


def words(shards: Iterable[Tokens], size: int, length: int) -> Iterator[Words]:
    """The words of shards, a part each."""
    before = 0
    for shard in shards:
        pieces = _cut(shard, length)
        layout = _layout(pieces, length, True)
        numbers = np.full((layout.rows, length), -1, dtype=np.int32)
        numbers.reshape(-1)[layout.places] = shard.numbers + before
        before += len(shard.sizes)
        yield Words(_filled(pieces, layout, _empty(length, size, layout.rows)), numbers, shard.sizes, shard.unknown)


def _empty(length: int, size: int, count: int) -> Rows:
    """Rows of nothing but padding, for a vocabulary of `size` ids."""
    return Rows(
        np.full((count, length), PAD, dtype=np.uint16 if size <= 2**16 else np.uint32),
        np.zeros((count, length), dtype=np.uint8),
        np.zeros(count, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.zeros(count, dtype=np.int8),
    )


def _until(shards: Iterable[Tokens], tokens: int | None) -> Iterator[Tokens]:
    """Documents until they hold `tokens` tokens."""
    total = 0
    for shard in shards:
        if tokens is None or total + len(shard.ids) < tokens:
            total += len(shard.ids)
            yield shard
            continue
        ends = np.cumsum(np.concatenate([[0], shard.sentences], dtype=np.int64))[np.cumsum(shard.documents)]
        last = int(np.searchsorted(ends, tokens - total))
        sentences, ids = int(shard.documents[: last + 1].sum()), int(ends[last])
        yield replace(
            shard,
            ids=shard.ids[:ids],
            numbers=shard.numbers[:ids],
            sentences=shard.sentences[:sentences],
            documents=shard.documents[: last + 1],
        )
        return


def documents_of(flags: NDArray[np.uint8], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """The number of the document in its row that each token belongs to, (rows, length); padding is a document."""
    number = np.cumsum(flags & DOCUMENT > 0, axis=1)
    number[:, 0] = number[:, 1]  # [CLS] goes with what it stands before
    return np.where(np.arange(flags.shape[1])[None, :] < lengths[:, None], number, -1)


@dataclass(frozen=True)
class _Pieces:
    """Sentences, those longer than a row cut into pieces that fit, end to end.

    lengths, is_first (pieces,): the tokens of each, and whether it begins a document.
    """

    ids: NDArray[np.uint32]
    lengths: Numbers
    is_first: NDArray[np.bool_]


def _cut(shard: Tokens, length: int) -> _Pieces:
    longest = length - 2
    counts = -(-shard.sentences.astype(np.int64) // longest)
    lengths = np.full(counts.sum(), longest)
    whole = counts > 0
    lengths[np.cumsum(counts)[whole] - 1] = (shard.sentences[whole] - 1) % longest + 1
    document = np.repeat(np.repeat(np.arange(len(shard.documents)), shard.documents), counts)
    return _Pieces(shard.ids, lengths, np.diff(document, prepend=-1) > 0)


@dataclass(frozen=True)
class _Layout:
    """Where pieces go. places (tokens,): of each token among all places of all rows.  begins, ends (pieces,): likewise.

    firsts (rows,): the piece that each row begins with.
    """

    rows: int
    places: Numbers
    begins: Numbers
    ends: Numbers
    firsts: Numbers


def _layout(pieces: _Pieces, length: int, alone: bool) -> _Layout:
    """[CLS], then whole sentences each ended by [SEP]; a lone [SEP] more before a document that begins inside a row.

    `alone`: a row ends where its document does.
    """
    takes = pieces.lengths + 1 + pieces.is_first  # a first piece of a row has no lone separator before it
    ends = np.cumsum(takes)
    before, first = ends - takes + pieces.is_first, np.append(np.flatnonzero(pieces.is_first), len(takes))
    known_ends, known_before, limits = ends.tolist(), before.tolist(), first.tolist()
    firsts, at = [], 0
    while at < len(known_ends):
        firsts.append(at)
        end = bisect_right(known_ends, known_before[at] + length - 1, at)
        at = min(end, limits[bisect_right(limits, at)]) if alone else end
    starts = np.array(firsts, dtype=np.int64)
    row = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(takes))))
    begins = row * length + 1 + before - before[starts][row]
    shift = begins - (np.cumsum(pieces.lengths) - pieces.lengths)
    places = np.repeat(shift, pieces.lengths) + np.arange(len(pieces.ids))
    return _Layout(len(starts), places, begins, begins + pieces.lengths, starts)


def _filled(pieces: _Pieces, layout: _Layout, made: Rows, flag: int = 0) -> Rows:
    """Rows with the pieces in them, `flag` on every token."""
    tokens, flags, length = made.tokens.reshape(-1), made.flags.reshape(-1), made.tokens.shape[1]
    tokens[layout.places] = pieces.ids & ~WORD_GOES_ON
    flags[layout.places] = np.where(pieces.ids & WORD_GOES_ON, CONTINUES, 0)
    flags[layout.begins] |= np.where(pieces.is_first, SENTENCE | DOCUMENT, SENTENCE).astype(np.uint8)
    tokens[layout.ends] = SEP
    tokens[layout.begins[pieces.is_first] - 1] = SEP
    tokens[::length] = CLS
    lasts = np.append(layout.firsts, len(pieces.lengths))[1:] - 1
    made.lengths[:] = layout.ends[lasts] % length + 1
    if flag:
        made.flags[made.tokens != PAD] |= flag
    return made


def _sentences(parts: Iterable[_Pieces], make: Callable[[int], Rows], alone: bool, flag: int = 0) -> Iterator[Rows]:
    """Rows of whole sentences. The last row of a part may go on in the next one, so it is laid out again with that."""
    left, last = _Pieces(np.empty(0, np.uint32), np.empty(0, np.int64), np.empty(0, np.bool_)), make(0)
    for part in parts:
        pieces = _Pieces(*(np.concatenate([getattr(p, field.name) for p in (left, part)]) for field in fields(part)))
        layout = _layout(pieces, last.tokens.shape[1], alone)
        made = _filled(pieces, layout, make(layout.rows), flag)
        yield made.part(slice(None, -1))
        last, first = made.part(slice(-1, None)), layout.firsts[-1] if layout.rows else 0
        tokens = int(pieces.lengths[first:].sum())
        left = _Pieces(pieces.ids[len(pieces.ids) - tokens :], pieces.lengths[first:], pieces.is_first[first:])
    yield last


_SENTENCE_BEGINS = np.uint32(2**30)  # beside WORD_GOES_ON


@dataclass(frozen=True)
class _Document:
    """Some of the pieces of a part. ids: of the whole part; begins: where these pieces begin in it, and their end."""

    ids: NDArray[np.uint32]
    begins: Numbers

    def __len__(self) -> int:
        return len(self.begins) - 1

    def segment(self, begin: int, end: int) -> NDArray[np.uint32]:
        """Pieces joined, their first tokens marked."""
        begins = self.begins[begin : end + 1]
        found: NDArray[np.uint32] = np.array(self.ids[begins[0] : begins[-1]])
        found[begins[:-1] - begins[0]] |= _SENTENCE_BEGINS
        return found

    def filled(self, begin: int, room: int) -> int:
        """Where the pieces from `begin` on that fit into `room` end."""
        return int(np.searchsorted(self.begins, self.begins[begin] + room, side="right")) - 1


def _documents(part: _Pieces) -> list[_Document]:
    begins = np.concatenate([[0], np.cumsum(part.lengths)])
    first = np.append(np.flatnonzero(part.is_first), len(part.lengths)).tolist()
    return [_Document(part.ids, begins[start : end + 1]) for start, end in pairwise(first)]


def _pairs(
    parts: Iterable[_Pieces], packing: SegmentPairs | SentencePairs, make: Callable[[int], Rows]
) -> Iterator[Rows]:
    """[CLS] first [SEP] second [SEP]: two sentences, or as many as fit cut in two at a random one.

    A random second segment begins at a random sentence of another document and is filled by the same rule.  What it
    stands for is put back: the next pair begins there (Devlin et al. 2019, reference code).  A lone sentence at the end
    of a document is left out, or has a random second segment (`lone`).
    """
    kinds, single, room = PAIRS[packing.negatives], isinstance(packing, SentencePairs), packing.length - 3
    lone = isinstance(packing, SegmentPairs) and packing.lone == "random-document"
    fewest = 1 if lone else 2
    documents = [document for part in parts for document in _documents(part) if len(document) >= fewest]
    if ("random" in kinds or lone) and len(documents) < 2:
        raise DataError(f"packing {packing.kind}: a random second segment needs another document, but there is none")
    rows, row, made = make(ROWS), 0, 0
    for number, document in enumerate(documents):
        begin, target = 0, _target(packing, number, room)
        while begin + fewest <= len(document):
            rng = np.random.default_rng(seed_for(0, "pair", number, begin))
            alone = begin + 1 == len(document)
            end = begin + 2 if single else max(begin + 2, document.filled(begin, target))
            cut = begin + 1 if alone else int(rng.integers(begin + 1, end))
            first = document.segment(begin, cut)
            label = len(kinds) - 1 if alone else made % len(kinds)
            if alone or kinds[label] == "random":
                other = documents[(number + int(rng.integers(1, len(documents)))) % len(documents)]
                start = int(rng.integers(len(other)))
                stop = start + 1 if single else max(start + 1, other.filled(start, target - len(first)))
                second, begin = other.segment(start, stop), cut
            else:
                second, begin = document.segment(cut, end), end
            first, second = _fitted(first, second, target)
            if kinds[label] == "swapped" and not alone:
                first, second = second, first
            _put(rows, row, first, second, label)
            row, made = row + 1, made + 1
            if row == ROWS:
                yield rows
                rows, row = make(ROWS), 0
    yield rows.part(slice(row))


def _put(rows: Rows, row: int, first: NDArray[np.uint32], second: NDArray[np.uint32], label: int) -> None:
    tokens, flags, middle = rows.tokens[row], rows.flags[row], len(first) + 1
    end = middle + 1 + len(second)
    for begin, ids in ((1, first), (middle + 1, second)):
        place = slice(begin, begin + len(ids))
        tokens[place] = ids & ~(WORD_GOES_ON | _SENTENCE_BEGINS)
        flags[place] = SENTENCE * (ids & _SENTENCE_BEGINS > 0) + CONTINUES * (ids & WORD_GOES_ON > 0)
    tokens[0], tokens[middle], tokens[end] = CLS, SEP, SEP
    rows.lengths[row], rows.second[row], rows.labels[row] = end + 1, middle + 1, label


def _target(packing: SegmentPairs | SentencePairs, document: int, room: int) -> int:
    """How many tokens the pairs of a document are to fill: all of the room, or in a share of the documents less."""
    rng = np.random.default_rng(seed_for(0, "short", document))
    is_short = isinstance(packing, SegmentPairs) and rng.random() < packing.short
    return int(rng.integers(2, room + 1)) if is_short else room


def _fitted(
    first: NDArray[np.uint32], second: NDArray[np.uint32], room: int
) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Both, the longer one cut at its end until they fit."""
    first = first[: max(room // 2, room - len(second))]
    return first, second[: room - len(first)]


def unigram_loss(train: Total, held_out: Total) -> float:
    """Nats a token of guessing held-out tokens by their train frequency (add one): the cost of knowing nothing else."""
    counts, asked = train.ids.astype(float), held_out.ids.astype(float)
    counts[:UNK] = asked[:UNK] = 0  # [PAD], [CLS], [SEP] and [MASK] are never predicted
    probabilities = (counts + 1) / (counts + 1).sum()
    return float(-(asked * np.log(probabilities)).sum() / asked.sum())


def unigram_bits_per_byte(train: Total, words: Total) -> float:
    """The cost of all words at the train frequencies of their pieces."""
    nats = unigram_loss(train, words) * float(words.ids[UNK:].sum())
    return bits_per_byte(nats, words.sizes, words.unknown)


def bits_per_byte(nats: float, size: int, unknown: int) -> float:
    """Bits a byte of words of `size` bytes whose pieces cost `nats` together.

    What [UNK] hides, or normalising drops, is in no probability, so each such byte costs 8 bits more: else the
    tokenizer that knows the fewest characters would win.
    """
    return (nats / math.log(2) + 8 * unknown) / size
