"""Which rows an optimizer step sees: a function of (seed, step), so resuming needs nothing but the step."""

import numpy as np
from numpy.typing import NDArray

from paribus.seeds import seed_for

Integers = NDArray[np.integer]


class Batches:
    """Rows in a fresh random order each epoch, cut into steps of `batch_tokens` real tokens.

    A row belongs to the step in whose token range it begins, so over any stretch a step sees `batch_tokens` tokens on
    average whatever the format or padding, and steps x batch_tokens is the budget exactly.  Order depends on the seed
    alone: two arms with the same rows see the same batches.
    """

    def __init__(self, lengths: NDArray[np.int32], batch_tokens: int, seed: int) -> None:
        self._lengths = lengths.astype(np.int64)
        self._batch_tokens = batch_tokens
        self._seed = seed
        self.epoch_tokens = int(self._lengths.sum())
        self._epochs: dict[int, tuple[Integers, Integers]] = {}

    def _epoch(self, epoch: int) -> tuple[Integers, Integers]:
        """The order of rows in an epoch and the token each begins at."""
        if epoch not in self._epochs:
            order = np.random.default_rng(seed_for(self._seed, "order", epoch)).permutation(len(self._lengths))
            begins = np.cumsum(self._lengths[order]) - self._lengths[order]
            self._epochs = {epoch - 1: self._epochs[epoch - 1]} if epoch - 1 in self._epochs else {}
            self._epochs[epoch] = order, begins
        return self._epochs[epoch]

    def rows(self, step: int) -> tuple[Integers, Integers]:
        """The rows of optimizer step `step` (from 0) and, for each, how often it was visited before."""
        begin, end = step * self._batch_tokens, (step + 1) * self._batch_tokens
        rows, visits = [], []
        for epoch in range(begin // self.epoch_tokens, (end - 1) // self.epoch_tokens + 1):
            order, begins = self._epoch(epoch)
            first, last = np.searchsorted(begins, [begin - epoch * self.epoch_tokens, end - epoch * self.epoch_tokens])
            rows.append(order[first:last])
            visits.append(np.full(last - first, epoch))
        return np.concatenate(rows), np.concatenate(visits)
