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

Spans = Sequence[tuple[int, int]]
Numbers = NDArray[np.int64]


@cache
def _bert() -> Any:
    from tokenizers import Regex, pre_tokenizers

    cjk = pre_tokenizers.Split(Regex("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]"), "isolated")
    return pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), cjk])


def _number(starts: NDArray[np.bool_], spans: Spans) -> Numbers:
    """The word, from 0, in which each piece starts."""
    words: Numbers = np.maximum(np.cumsum(starts) - 1, 0)
    return words[[min(start, len(words) - 1) for start, _ in spans]]


def continues_word(text: str, spans: Spans) -> NDArray[np.bool_]:
    """Whether each piece continues the word (one of BERT's) of the piece before it."""
    starts = np.zeros(max(len(text), 1), dtype=bool)
    starts[[start for _, (start, _) in _bert().pre_tokenize_str(text)]] = True
    same: NDArray[np.bool_] = np.diff(_number(starts, spans), prepend=-1) == 0
    return same


def blank_words(text: str, spans: Spans) -> Numbers:
    """For each piece the number of its word among `text.split()`."""
    letters = np.array([not letter.isspace() for letter in text] or [False])
    return _number(letters & ~np.concatenate([[False], letters[:-1]]), spans)
