"""Sentences to rows of fixed length, memory-mapped.

stage folder, a split: SPLIT.tokens.npy   (rows, length) uint16 or uint32, padded with [PAD]
                       SPLIT.flags.npy    (rows, length) uint8: SENTENCE | DOCUMENT | CONTINUES | ISOLATED
                       SPLIT.lengths.npy  (rows,) int32: real tokens, special ones included
                       SPLIT.second.npy   (rows,) int32: where the second segment begins, 0 without one
                       SPLIT.labels.npy   (rows,) int8: which kind of pair, 0 the true one, see PAIRS

of validation and test: SPLIT.words.*.npy: the same arrays of rows that hold every word once, whatever the format
                        SPLIT.words.numbers.npy  (rows, length) int32: the word of each token, from 0; -1 at specials
                        SPLIT.words.sizes.npy    (words,) int32: UTF-8 bytes of each word of the split
                        SPLIT.words.unknown.npy  (words,) int32: of these, bytes that are in no piece but [UNK]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paribus.data.document import Document
from paribus.data.vocabulary import CLS, FIRST_ORDINARY, PAD, SEP, UNK, Vocabulary
from paribus.data.words import blank_words, continues_word
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

Ids = NDArray[np.uint32]
"""Tokens on their way into a row: an id, and in the bit of WORD_GOES_ON whether the token continues a word."""
WORD_GOES_ON = np.uint32(2**31)


@dataclass(frozen=True)
class Rows:
    """The rows of one split. `tokens` and `flags` are (rows, length); the others (rows,)."""

    tokens: NDArray[np.unsignedinteger]
    flags: NDArray[np.uint8]
    lengths: NDArray[np.int32]
    second: NDArray[np.int32]
    labels: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.lengths)


_ARRAYS = ("tokens", "flags", "lengths", "second", "labels")


def save(rows: Rows, folder: Path, split: str) -> None:
    """Write the rows of a split."""
    for name in _ARRAYS:
        np.save(folder / f"{split}.{name}.npy", getattr(rows, name))


def load(folder: Path, split: str) -> Rows:
    """The rows of a split, memory-mapped."""
    return Rows(**{name: np.load(folder / f"{split}.{name}.npy", mmap_mode="r") for name in _ARRAYS})


@dataclass(frozen=True)
class Row:
    """A row before it is padded."""

    ids: Ids
    flags: NDArray[np.uint8]
    second: int = 0
    label: int = 0


def pack(packing: Packing, documents: Sequence[Document], vocabulary: Vocabulary, tokens: int | None) -> Rows:
    """The rows of `documents`, taken whole and in order until they hold `tokens` tokens (None: all of them)."""
    encoded = []
    total = 0
    for document in documents:
        encoded.append(_cut(_encode(document, vocabulary), packing.length))
        total += sum(len(sentence) for sentence in encoded[-1])
        if tokens is not None and total >= tokens:
            break
    match packing:
        case FullSentences():
            rows = _sentences(encoded, packing.length)
        case DocSentences():
            rows = [row for document in encoded for row in _sentences([document], packing.length)]
        case SegmentPairs() | SentencePairs():
            rows = _pairs(encoded, packing)
        case _:
            raise DataError(f"packing.kind {packing.kind!r} has no packer")
    packed = _padded(rows, packing.length, len(vocabulary))
    if isinstance(packing, FullSentences) and packing.isolation == "document":
        packed.flags[packed.tokens != PAD] |= ISOLATED
    return packed


def documents_of(flags: NDArray[np.uint8], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """The number of the document in its row that each token belongs to, (rows, length); padding is a document."""
    number = np.cumsum(flags & DOCUMENT > 0, axis=1)
    number[:, 0] = number[:, 1]  # [CLS] goes with what it stands before
    return np.where(np.arange(flags.shape[1])[None, :] < lengths[:, None], number, -1)


def _encode(document: Document, vocabulary: Vocabulary) -> list[Ids]:
    """The sentences of a document."""
    texts = document.sentences
    return [
        np.array(encoded.ids, dtype=np.uint32) | WORD_GOES_ON * continues_word(text, encoded.spans)
        for text, encoded in zip(texts, vocabulary.encode_all(texts), strict=True)
    ]


def _cut(sentences: Sequence[Ids], length: int) -> list[Ids]:
    """Sentences, those longer than a row cut into pieces that fit."""
    longest = length - 2
    return [ids[start : start + longest] for ids in sentences for start in range(0, len(ids), longest)]


def _sentences(documents: Sequence[Sequence[Ids]], length: int) -> list[Row]:
    """[CLS], then whole sentences each ended by [SEP]; a lone [SEP] more before a document that begins inside a row."""
    rows: list[Row] = []
    ids: list[Ids] = []
    flags: list[NDArray[np.uint8]] = []
    used = 1

    def flush() -> None:
        nonlocal ids, flags, used
        if ids:
            rows.append(Row(np.concatenate([[np.uint32(CLS)], *ids]), np.concatenate([[np.uint8(0)], *flags])))
        ids, flags, used = [], [], 1

    for document in documents:
        for number, sentence in enumerate(document):
            separator = int(number == 0 and bool(ids))
            if used + separator + len(sentence) + 1 > length:
                flush()
                separator = 0
            ids.append(np.pad(sentence, (separator, 1), constant_values=SEP))
            flag = np.zeros(len(ids[-1]), dtype=np.uint8)
            flag[separator] = SENTENCE | (DOCUMENT if number == 0 else 0)
            flags.append(flag)
            used += len(flag)
    flush()
    return rows


def _pairs(documents: Sequence[Sequence[Ids]], packing: SegmentPairs | SentencePairs) -> list[Row]:
    """[CLS] first [SEP] second [SEP]: two sentences, or as many as fit cut in two at a random one.

    A random second segment begins at a random sentence of another document and is filled by the same rule.  What it
    stands for is put back: the next pair begins there (Devlin et al. 2019, reference code).  A lone sentence at the end
    of a document is left out, or has a random second segment (`lone`).
    """
    kinds, single, room = PAIRS[packing.negatives], isinstance(packing, SentencePairs), packing.length - 3
    lone = isinstance(packing, SegmentPairs) and packing.lone == "random-document"
    fewest = 1 if lone else 2
    documents = [document for document in documents if len(document) >= fewest]
    if ("random" in kinds or lone) and len(documents) < 2:
        raise DataError(f"packing {packing.kind}: a random second segment needs another document, but there is none")
    rows: list[Row] = []
    for number, document in enumerate(documents):
        begin, target = 0, _target(packing, number, room)
        while begin + fewest <= len(document):
            rng = np.random.default_rng(seed_for(0, "pair", number, begin))
            alone = begin + 1 == len(document)
            end = begin + 2 if single else max(begin + 2, _filled(document, begin, target))
            cut = begin + 1 if alone else int(rng.integers(begin + 1, end))
            first = _segment(document[begin:cut])
            label = len(kinds) - 1 if alone else len(rows) % len(kinds)
            if alone or kinds[label] == "random":
                other = documents[(number + int(rng.integers(1, len(documents)))) % len(documents)]
                start = int(rng.integers(len(other)))
                stop = start + 1 if single else max(start + 1, _filled(other, start, target - len(first.ids)))
                second, begin = _segment(other[start:stop]), cut
            else:
                second, begin = _segment(document[cut:end]), end
            first, second = _fitted(first, second, target)
            if kinds[label] == "swapped" and not alone:
                first, second = second, first
            ids = np.concatenate([[np.uint32(CLS)], first.ids, [np.uint32(SEP)], second.ids, [np.uint32(SEP)]])
            flags = np.concatenate([[np.uint8(0)], first.flags, [np.uint8(0)], second.flags, [np.uint8(0)]])
            rows.append(Row(ids, flags, second=len(first.ids) + 2, label=label))
    return rows


def _target(packing: SegmentPairs | SentencePairs, document: int, room: int) -> int:
    """How many tokens the pairs of a document are to fill: all of the room, or in a share of the documents less."""
    rng = np.random.default_rng(seed_for(0, "short", document))
    is_short = isinstance(packing, SegmentPairs) and rng.random() < packing.short
    return int(rng.integers(2, room + 1)) if is_short else room


def _filled(document: Sequence[Ids], begin: int, room: int) -> int:
    """Where the sentences from `begin` on that fit into `room` end."""
    end = begin
    while end < len(document) and (room := room - len(document[end])) >= 0:
        end += 1
    return end


@dataclass(frozen=True)
class _Segment:
    """Sentences joined, their first tokens flagged."""

    ids: Ids
    flags: NDArray[np.uint8]


def _segment(sentences: Sequence[Ids]) -> _Segment:
    flags = [np.eye(1, len(sentence), dtype=np.uint8)[0] * np.uint8(SENTENCE) for sentence in sentences]
    return _Segment(np.concatenate(sentences), np.concatenate(flags))


def _fitted(first: _Segment, second: _Segment, room: int) -> tuple[_Segment, _Segment]:
    """Both, the longer one cut at its end until they fit."""
    keep = max(room // 2, room - len(second.ids))
    first = _Segment(first.ids[:keep], first.flags[:keep])
    keep = room - len(first.ids)
    return first, _Segment(second.ids[:keep], second.flags[:keep])


def _padded(rows: Sequence[Row], length: int, vocabulary: int) -> Rows:
    dtype = np.uint16 if vocabulary <= 2**16 else np.uint32
    tokens = np.full((len(rows), length), PAD, dtype=dtype)
    flags = np.zeros((len(rows), length), dtype=np.uint8)
    for number, row in enumerate(rows):
        goes_on = row.ids & WORD_GOES_ON > 0
        tokens[number, : len(row.ids)] = row.ids & ~WORD_GOES_ON
        flags[number, : len(row.flags)] = row.flags | goes_on * np.uint8(CONTINUES)
    return Rows(
        tokens,
        flags,
        np.array([len(row.ids) for row in rows], dtype=np.int32),
        np.array([row.second for row in rows], dtype=np.int32),
        np.array([row.label for row in rows], dtype=np.int8),
    )


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


def pack_words(documents: Sequence[Document], vocabulary: Vocabulary, length: int) -> Words:
    """Every word of `documents` once: a word is what stands between blanks, and its pieces may lie in two rows."""
    rows: list[Row] = []
    numbers: list[Row] = []
    sizes: list[int] = []
    unknown: list[int] = []
    for document in documents:
        places = []
        for text, encoded in zip(document.sentences, vocabulary.encode_all(document.sentences), strict=True):
            word_of = len(sizes) + blank_words(text, encoded.spans)
            places.append((word_of + FIRST_ORDINARY).astype(np.uint32))
            sizes += [len(word.encode()) for word in text.split()]
            unknown += sizes[len(unknown) :]  # until a piece of the word is found
            for word in word_of:
                unknown[word] = 0
            for word, id, (start, end) in zip(word_of, encoded.ids, encoded.spans, strict=True):
                unknown[word] += len(text[start:end].encode()) if id == UNK else 0
        rows += _sentences([_cut(_encode(document, vocabulary), length)], length)
        numbers += _sentences([_cut(places, length)], length)  # the same layout, numbers of words for ids
    laid = _padded(numbers, length, 2**32).tokens.astype(np.int64)
    return Words(
        _padded(rows, length, len(vocabulary)),
        np.maximum(laid - FIRST_ORDINARY, -1).astype(np.int32),
        np.array(sizes, dtype=np.int32),
        np.array(unknown, dtype=np.int32),
    )


def save_words(words: Words, folder: Path, split: str) -> None:
    """Write the words of a split."""
    save(words.rows, folder, f"{split}.words")
    for name in ("numbers", "sizes", "unknown"):
        np.save(folder / f"{split}.words.{name}.npy", getattr(words, name))


def load_words(folder: Path, split: str) -> Words:
    """The words of a split, memory-mapped."""
    arrays = {n: np.load(folder / f"{split}.words.{n}.npy", mmap_mode="r") for n in ("numbers", "sizes", "unknown")}
    return Words(load(folder, f"{split}.words"), **arrays)


def unigram_loss(train: Rows, held_out: Rows, size: int) -> float:
    """Nats a token of guessing held-out tokens by their train frequency (add one): the cost of knowing nothing else."""
    counts = np.bincount(train.tokens.reshape(-1), minlength=size).astype(float)
    asked = np.bincount(held_out.tokens.reshape(-1), minlength=size).astype(float)
    counts[:UNK] = asked[:UNK] = 0  # [PAD], [CLS], [SEP] and [MASK] are never predicted
    probabilities = (counts + 1) / (counts + 1).sum()
    return float(-(asked * np.log(probabilities)).sum() / asked.sum())


def bits_per_byte(nats: float, sizes: NDArray[np.int32], unknown: NDArray[np.int32]) -> float:
    """Bits a byte of words whose pieces cost `nats` together.

    What [UNK] hides is not in its probability, so each such byte costs 8 bits more: else the tokenizer that knows the
    fewest characters would win.
    """
    return (nats / math.log(2) + 8 * float(unknown.sum())) / float(sizes.sum())


def unigram_bits_per_byte(train: Rows, words: Words, size: int) -> float:
    """The cost of all words at the train frequencies of their pieces."""
    nats = unigram_loss(train, words.rows, size) * float((words.numbers >= 0).sum())
    return bits_per_byte(nats, words.sizes, words.unknown)
