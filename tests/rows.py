"""Rows with padding."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paribus.data.packing import Rows
from paribus.data.vocabulary import PAD


def cut(rows: Rows, lengths: NDArray[np.integer]) -> Rows:
    """The same rows, as many of their tokens as `lengths` says, the rest padding."""
    tokens = np.where(np.arange(rows.tokens.shape[1]) < lengths[:, None], rows.tokens, PAD)
    return replace(rows, tokens=tokens.astype(rows.tokens.dtype), lengths=lengths.astype(rows.lengths.dtype))
