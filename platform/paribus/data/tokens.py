"""Documents to tokens. What occurs again, as words do, is encoded once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from paribus.data.document import Document
from paribus.data.vocabulary import UNK, Numbers, Vocabulary
from paribus.data.words import Texts

WORD_GOES_ON = np.uint32(2**31)
REMEMBERED = 2**19
"""Units that are remembered, some 100 MB of them; then all are forgotten."""

TOGETHER = 64
"""New words that are encoded as one text."""


@dataclass(frozen=True)
class Tokens:
    """The sentences of some documents, end to end.

    ids (tokens,): an id, and in the bit of WORD_GOES_ON whether the token continues a word (one of BERT's).
    numbers (tokens,): which of the words between blanks it is in, from 0.
    sentences (sentences,): the tokens of each.  documents (documents,): the sentences of each.
    sizes, unknown (words,): the UTF-8 bytes of each word between blanks, and of these those that no piece says: in none
    but [UNK], or dropped as accents are in lower case.
    """

    ids: NDArray[np.uint32]
    numbers: NDArray[np.int32]
    sentences: NDArray[np.int32]
    documents: NDArray[np.int32]
    sizes: NDArray[np.int32]
    unknown: NDArray[np.int32]


class _Numbered(dict[str, int]):
    """Numbers what it is asked for in the order of the first time."""

    def __missing__(self, unit: str) -> int:
        number = self[unit] = len(self)
        return number


class Tokeniser:
    """Encodes documents by a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._forget()

    def _forget(self) -> None:
        self._known = _Numbered()
        self._table = _encoded(self._vocabulary, [])

    def __call__(self, documents: Iterable[Document]) -> Tokens:
        """The tokens of `documents`."""
        sentences = [document.sentences for document in documents]
        cut = [self._cut(text) for texts in sentences for text in texts]
        tokens = self._known_units(list(chain.from_iterable(cut)))
        ends = np.cumsum(np.concatenate([[0], tokens.sentences]))
        lengths = np.array([len(found) for found in cut], dtype=np.int64)
        return Tokens(
            tokens.ids,
            tokens.numbers,
            np.diff(ends[np.concatenate([[0], np.cumsum(lengths)])]).astype(np.int32),
            np.array([len(texts) for texts in sentences], dtype=np.int32),
            tokens.sizes,
            tokens.unknown,
        )

    def _cut(self, text: str) -> list[str]:
        """What of a sentence can be encoded apart."""
        match self._vocabulary.units:
            case "words":
                return text.split()
            case "words-with-blank":
                first, *others = text.split() or [""]
                return [first, *(" " + word for word in others)]
            case "sentences":
                return [text]

    def _known_units(self, units: list[str]) -> Tokens:
        """The tokens of units one after another; each counts as a sentence, and as a document of as many words."""
        if len(self._known) > REMEMBERED:
            self._forget()
        before = len(self._known)
        chosen = np.fromiter(map(self._known.__getitem__, units), np.int64, len(units))
        new = _encoded(self._vocabulary, list(islice(self._known, before, None)))
        table = self._table = _joined([self._table, new])
        tokens, words = _ranges(table.sentences, chosen), _ranges(table.documents, chosen)
        counts = table.documents[chosen]
        numbers = table.numbers[tokens] + np.repeat(np.cumsum(counts) - counts, table.sentences[chosen])
        return Tokens(
            table.ids[tokens],
            numbers.astype(np.int32),
            table.sentences[chosen],
            counts,
            table.sizes[words],
            table.unknown[words],
        )


def _joined(parts: Sequence[Tokens]) -> Tokens:
    return Tokens(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Tokens)))


def _ranges(lengths: NDArray[np.int32], chosen: Numbers) -> Numbers:
    """The places of the elements of the `chosen` ones among lists of these lengths that lie end to end."""
    begins, counts = np.cumsum(lengths, dtype=np.int64) - lengths, lengths[chosen]
    return np.repeat(begins[chosen] - (np.cumsum(counts, dtype=np.int64) - counts), counts) + np.arange(counts.sum())


def _encoded(vocabulary: Vocabulary, units: list[str]) -> Tokens:
    """The tokens of units: of each, `numbers` begin with 0, and `documents` says how many words it has."""
    # A text of many words takes a fraction of the time of as many texts; its characters are the same.
    many = TOGETHER if vocabulary.units == "words" else 1
    texts, joined = Texts(units), Texts([" ".join(units[at : at + many]) for at in range(0, len(units), many)])
    pieces = vocabulary.encode_flat(joined)
    begin = np.repeat(joined.begins, pieces.counts)
    starts, ends = begin + pieces.starts, begin + pieces.ends
    of = np.searchsorted(texts.begins, starts, side="right") - 1
    bert = texts.numbers(texts.bert_words, starts, of)
    goes_on = np.zeros(len(of), dtype=bool)
    goes_on[1:] = (of[1:] == of[:-1]) & (bert[1:] == bert[:-1])
    begins = texts.blank_words
    numbers = texts.numbers(begins, starts, of)
    before = np.concatenate([[0], np.cumsum(begins)])  # words before each character, then of all
    counts = np.diff(before[np.append(texts.begins, len(begins))])
    words = before[texts.begins[of]] + numbers
    bytes_before = np.concatenate([[0], np.cumsum(np.where(texts.blanks, 0, texts.utf8_sizes))])
    sizes = np.diff(bytes_before[np.append(np.flatnonzero(begins), len(begins))])
    unknown = sizes.copy()
    unknown[words] = 0
    lost = pieces.ids == UNK
    np.add.at(unknown, words[lost], (bytes_before[ends] - bytes_before[starts])[lost])
    if len(special := np.flatnonzero((texts.codes >= 0x80) & ~texts.blanks)):
        np.add.at(unknown, before[special + 1] - 1, vocabulary.dropped(texts.codes[special]))
        unknown = np.minimum(unknown, sizes)  # an [UNK] may hide them, too
    ids = pieces.ids.astype(np.uint32) | WORD_GOES_ON * goes_on
    tokens = np.bincount(of, minlength=len(units))
    return Tokens(ids, *(a.astype(np.int32) for a in (numbers, tokens, counts, sizes, unknown)))
