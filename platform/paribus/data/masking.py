"""Which tokens are predicted and what stands in their place. Pure functions of (tokens, stream, row, visit).

Devlin et al. 2019, arXiv:1810.04805, section 3.1: 15 % of the ordinary tokens are chosen; of these 80 % become [MASK],
10 % a random ordinary token, 10 % stay, and all of them are predicted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paribus.data.vocabulary import FIRST_ORDINARY, MASK, UNK
from paribus.errors import DataError
from paribus.seeds import bits, seed_for, uniforms
from paribus.spec.data import Masking, Replacement, Static

Integers = NDArray[np.integer]


@dataclass(frozen=True)
class Masked:
    """inputs (rows, length): tokens, the chosen ones replaced.  chosen (rows, length): whether a place is predicted."""

    inputs: Integers
    chosen: NDArray[np.bool_]


def mask(
    tokens: Integers, rows: Integers, visits: Integers, seed: int, rate: float, replacement: Replacement, size: int
) -> Masked:
    """Mask `tokens` (rows, length), whose row numbers are `rows` and which are visited for the `visits`-th time.

    floor(rate x candidates + 0.5) tokens of a row are chosen, at least one if there is any; candidates are all tokens
    but [PAD], [CLS], [SEP] and [MASK].  Random tokens are drawn from the ordinary ones (no special, no [UNK]).
    """
    stream = seed_for(seed, "mask")
    at = rows[:, None], visits[:, None], np.arange(tokens.shape[1])[None, :]
    candidate = tokens >= UNK
    count = np.maximum(np.floor(rate * candidate.sum(1) + 0.5).astype(np.int64), 1)
    # The chosen places are those with the smallest draws; places that are no candidates come last.
    draws = np.where(candidate, uniforms(stream, *at, 0), 2.0)
    order = np.argsort(draws, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(tokens.shape[1])[None, :], axis=1)
    chosen = (rank < count[:, None]) & candidate
    fate = uniforms(stream, *at, 1)
    ordinary = (bits(stream, *at, 2) % np.uint64(size - FIRST_ORDINARY)).astype(tokens.dtype) + FIRST_ORDINARY
    inputs = np.where(chosen & (fate < replacement.mask), MASK, tokens)
    in_random = chosen & (fate >= replacement.mask) & (fate < replacement.mask + replacement.random)
    return Masked(np.where(in_random, ordinary, inputs).astype(tokens.dtype), chosen)


def sampling_draws(rows: Integers, visits: Integers, length: int, seed: int) -> NDArray[np.float32]:
    """One uniform draw in [0, 1) a place (rows, length), by which a generator's token is chosen there.

    A function of (seed, row, visit, place), so neither batches nor the rest of the run move it; 24 bits are exact.
    """
    draws = uniforms(seed_for(seed, "sample"), rows[:, None], visits[:, None], np.arange(length)[None, :])
    return (np.floor(draws * 2.0**24) * 2.0**-24).astype(np.float32)


def duplicates(masking: Masking, epochs: float) -> int | None:
    """How many masks a row has over `epochs` visits: None draws a fresh one each time (dynamic)."""
    if not isinstance(masking, Static):
        return None
    if epochs < 2:
        raise DataError(
            f"objective.masking: static masks need two passes over the train rows to differ from dynamic ones, the "
            f"budget gives {epochs:.1f}; take a longer budget or a smaller packing.train_tokens"
        )
    most = max(1, int(epochs / masking.visits))
    if masking.duplicates is None:
        return most
    if epochs < masking.duplicates * masking.visits:
        raise DataError(
            f"objective.masking.duplicates: found {masking.duplicates}, but {epochs:.1f} passes over the train rows "
            f"show each of them fewer than {masking.visits} times, which is dynamic masking by another name; "
            f"take at most {most}, or a longer budget, or a smaller packing.train_tokens"
        )
    return masking.duplicates


def mask_visits(visits: Integers, duplicates: int | None) -> Integers:
    """Which mask is due at each visit: the same function serves both arms, static takes the visit modulo its masks."""
    return visits if duplicates is None else visits % duplicates
