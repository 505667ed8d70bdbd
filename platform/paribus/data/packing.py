"""Sentences to rows of fixed length, memory-mapped.

stage folder, a split: SPLIT.tokens.npy   (rows, length) uint16 or uint32, padded with [PAD]
                       SPLIT.flags.npy    (rows, length) uint8: SENTENCE | DOCUMENT | CONTINUES, see below
                       SPLIT.lengths.npy  (rows,) int32: real tokens, special ones included
                       SPLIT.second.npy   (rows,) int32: where the second segment begins, 0 without one
                       SPLIT.labels.npy   (rows,) int8: sentence label, 0 the true order or continuation, 1 not
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paribus.data.document import Document
from paribus.data.vocabulary import CLS, PAD, SEP, UNK, Vocabulary
from paribus.errors import DataError
from paribus.seeds import seed_for
from paribus.spec.data import FullSentences, Packing, SegmentPairs

SENTENCE, DOCUMENT, CONTINUES = 1, 2, 4  # flags: begins a sentence, begins a document, continues a word

Ids = NDArray[np.uint32]


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
        encoded.append(_encode(document, vocabulary, packing.length))
        total += sum(len(sentence) for sentence in encoded[-1])
        if tokens is not None and total >= tokens:
            break
    match packing:
        case FullSentences():
            rows = _full_sentences(encoded, packing.length)
        case SegmentPairs():
            rows = _segment_pairs(encoded, packing)
        case _:
            raise DataError(f"packing.kind {packing.kind!r} has no packer")
    return _padded(rows, packing.length, vocabulary)


def _encode(document: Document, vocabulary: Vocabulary, length: int) -> list[Ids]:
    """The sentences of a document as ids; one longer than a row is cut into pieces that fit."""
    longest = length - 2
    sentences = []
    for encoded in vocabulary.encode_all(document.sentences):
        ids = np.array(encoded.ids, dtype=np.uint32)
        sentences += [ids[start : start + longest] for start in range(0, len(ids), longest)]
    return sentences


def _full_sentences(documents: Sequence[Sequence[Ids]], length: int) -> list[Row]:
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


def _segment_pairs(documents: Sequence[Sequence[Ids]], packing: SegmentPairs) -> list[Row]:
    """[CLS] first [SEP] second [SEP]: chunks of whole sentences cut at a random sentence boundary.

    A random second segment begins at a random sentence of another document and is about as long as what it stands for.
    """
    documents = [document for document in documents if len(document) >= 2]
    if packing.negatives == "random-document" and len(documents) < 2:
        raise DataError("packing segment-pairs: a random second segment needs another document, but there is only one")
    room = packing.length - 3
    rows: list[Row] = []
    for number, document in enumerate(documents):
        for chunk_number, chunk in enumerate(_chunks(document, room)):
            rng = np.random.default_rng(seed_for(0, "segment pair", number, chunk_number))
            cut = int(rng.integers(1, len(chunk)))
            first, second = list(chunk[:cut]), list(chunk[cut:])
            # Every other chunk of the corpus is a negative, so the halves are exact.
            label = len(rows) % 2
            if label and packing.negatives == "swapped":
                first, second = second, first
            elif label:
                other = documents[(number + int(rng.integers(1, len(documents)))) % len(documents)]
                second = _stand_in(other, int(rng.integers(len(other))), sum(map(len, second)))
            rows.append(_pair(first, second, label, room))
    return rows


def _chunks(document: Sequence[Ids], room: int) -> list[list[Ids]]:
    """A document in runs of whole sentences of at most `room` tokens, each of at least two sentences."""
    chunks: list[list[Ids]] = [[]]
    used = 0
    for sentence in document:
        if len(chunks[-1]) >= 2 and used + len(sentence) > room:
            chunks.append([])
            used = 0
        chunks[-1].append(sentence)
        used += len(sentence)
    if len(chunks[-1]) < 2 and len(chunks) > 1:
        last = chunks.pop()
        chunks[-1] += last
    return [chunk for chunk in chunks if len(chunk) >= 2]


def _stand_in(document: Sequence[Ids], start: int, wanted: int) -> list[Ids]:
    """Sentences of `document` from `start` on (around its end to its beginning) holding about `wanted` tokens."""
    found: list[Ids] = []
    for offset in range(len(document)):
        found.append(document[(start + offset) % len(document)])
        if sum(map(len, found)) >= wanted:
            break
    return found


def _pair(first: list[Ids], second: list[Ids], label: int, room: int) -> Row:
    """A row of two segments; the longer one is cut at its end until both fit."""
    a, b = np.concatenate(first), np.concatenate(second)
    keep_a = max(room // 2, room - len(b))
    a = a[:keep_a]
    b = b[: room - len(a)]
    ids = np.concatenate([[np.uint32(CLS)], a, [np.uint32(SEP)], b, [np.uint32(SEP)]])
    flags = np.zeros(len(ids), dtype=np.uint8)
    for segment, offset, end in ((first, 1, len(a)), (second, len(a) + 2, len(b))):
        starts = np.cumsum([0, *(len(sentence) for sentence in segment[:-1])])
        flags[offset + starts[starts < end]] = SENTENCE
    return Row(ids, flags, second=len(a) + 2, label=label)


def _padded(rows: Sequence[Row], length: int, vocabulary: Vocabulary) -> Rows:
    dtype = np.uint16 if len(vocabulary) <= 2**16 else np.uint32
    tokens = np.full((len(rows), length), PAD, dtype=dtype)
    flags = np.zeros((len(rows), length), dtype=np.uint8)
    for number, row in enumerate(rows):
        tokens[number, : len(row.ids)] = row.ids
        flags[number, : len(row.flags)] = row.flags
    flags |= vocabulary.continues_word[tokens].astype(np.uint8) * np.uint8(CONTINUES)
    return Rows(
        tokens,
        flags,
        np.array([len(row.ids) for row in rows], dtype=np.int32),
        np.array([row.second for row in rows], dtype=np.int32),
        np.array([row.label for row in rows], dtype=np.int8),
    )


def unigram_loss(train: Rows, held_out: Rows, size: int) -> float:
    """Nats a token of guessing held-out tokens by their train frequency (add one): the cost of knowing nothing else."""
    counts = np.bincount(train.tokens.reshape(-1), minlength=size).astype(float)
    asked = np.bincount(held_out.tokens.reshape(-1), minlength=size).astype(float)
    counts[:UNK] = asked[:UNK] = 0  # [PAD], [CLS], [SEP] and [MASK] are never predicted
    probabilities = (counts + 1) / (counts + 1).sum()
    return float(-(asked * np.log(probabilities)).sum() / asked.sum())
