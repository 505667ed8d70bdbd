"""Which word a piece belongs to: found in the text, so the same for every tokenizer.

Two kinds of words.  Masking whole words takes BERT's: runs between blanks, cut at punctuation and CJK characters.
Comparing tokenizers takes what stands between blanks: a piece of byte-level BPE may hold several of BERT's words
('."'), but no piece of any tokenizer holds parts of two of these.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

# What a character is to BERT's words; 0: not asked yet.
_LETTER, _BLANK, _WORD = 1, 2, 3
_CLASSES = np.zeros(0x110000, dtype=np.uint8)
_IS_BLANK = np.zeros(0x110000, dtype=bool)
_IS_BLANK[[code for code in range(0x3001) if chr(code).isspace()]] = True


@cache
def _bert() -> Any:
    from tokenizers import Regex, pre_tokenizers

    cjk = pre_tokenizers.Split(Regex("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]"), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), cjk])


def _class(code: int) -> int:
    """A letter joins its neighbours, a blank parts them, any other character is a word of its own."""
    return len(_bert().pre_tokenize_str(f"a{chr(code)}a"))


class Texts:
    """Texts side by side with a blank after each, character by character."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.codes = np.frombuffer("".join([text + " " for text in texts]).encode("utf-32-le"), dtype=np.uint32)
        sizes = np.array([len(text) + 1 for text in texts], dtype=np.int64)
        self.begins = np.cumsum(sizes) - sizes
        """Where each text begins."""
        self.blanks: Flags = _IS_BLANK[self.codes]
        """Whether each character is a blank."""

    @property
    def next_letters(self) -> Numbers:
        """The first place, from each character on, that is no blank; past the end without one."""
        places = np.where(self.blanks, len(self.codes), np.arange(len(self.codes)))
        return np.minimum.accumulate(places[::-1])[::-1]

    @property
    def utf8_sizes(self) -> Numbers:
        """The bytes of each character."""
        return np.digitize(self.codes, (0, 0x80, 0x800, 0x10000)).astype(np.int64)

    @property
    def blank_words(self) -> Flags:
        """Whether what stands between blanks begins at each character."""
        begins: Flags = ~self.blanks & np.concatenate([[True], self.blanks[:-1]])
        return begins

    @property
    def bert_words(self) -> Flags:
        """Whether one of BERT's words begins at each character."""
        for code in np.unique(self.codes[_CLASSES[self.codes] == 0]).tolist():
            _CLASSES[code] = _class(code)
        classes = _CLASSES[self.codes]
        begins: Flags = (classes == _WORD) | (classes == _LETTER) & np.concatenate([[True], classes[:-1] != _LETTER])
        return begins

    def numbers(self, begins: Flags, places: Numbers, texts: Numbers) -> Numbers:
        """The word of its text, from 0, that each of `places` is in, where words begin as told.

        `texts`: the text of each place. What is before the first word counts to it.
        """
        before = np.concatenate([[0], np.cumsum(begins)])
        found: Numbers = np.maximum(before[places + 1] - before[self.begins[texts]] - 1, 0)
        return found


def continues_word(text: str, spans: Sequence[tuple[int, int]]) -> Flags:
    """Whether each piece continues the word (one of BERT's) of the piece before it."""
    whole = Texts([text])
    places = np.array([start for start, _ in spans], dtype=np.int64)
    same: Flags = np.diff(whole.numbers(whole.bert_words, places, np.zeros_like(places)), prepend=-1) == 0
    return same
