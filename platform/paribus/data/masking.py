"""Which tokens are predicted and what stands in their place. Pure functions of (tokens, stream, row, visit).

Devlin et al. 2019, arXiv:1810.04805, section 3.1: 15 % of the ordinary tokens are chosen; of these 80 % become [MASK],
10 % a random ordinary token, 10 % stay, and all of them are predicted. Whole words, spans and n-grams likewise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.data.vocabulary import CLS, FIRST_ORDINARY, MASK, SEP, UNK
from paribus.errors import DataError
from paribus.seeds import bits, seed_for, uniforms
from paribus.spec.data import Masking, NGrams, Replacement, Spans, Static, Tokens, Unit, WholeWords

Integers = NDArray[np.integer]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Masked:
    """inputs (rows, length): tokens, the chosen ones replaced.  chosen (rows, length): whether a place is predicted."""

    inputs: Integers
    chosen: Flags


def mask(
    tokens: Integers,
    rows: Integers,
    visits: Integers,
    seed: int,
    rate: float,
    replacement: Replacement,
    size: int,
    unit: Unit = Tokens(),  # noqa: B008
    continues: Flags | None = None,
    mask_specials: bool = False,
) -> Masked:
    """Mask `tokens` (rows, length), whose row numbers are `rows` and which are visited for the `visits`-th time.

    floor(rate x candidates + 0.5) tokens of a row are chosen, at least one if there is any; candidates are all tokens
    but [PAD], [CLS], [SEP] and [MASK]; with `mask_specials` but [PAD] and [MASK].  Whole units are chosen, so where
    none that is left would fit it is fewer.  `continues` (rows, length) says where a token goes on with the word before
    it; None: nowhere.  Random tokens are drawn from the ordinary ones (no special, no [UNK]), or from all ids.
    """
    state = bits(seed_for(seed, "mask"), rows[:, None], visits[:, None], np.arange(tokens.shape[1])[None, :])
    candidate = _candidates(tokens, mask_specials)
    count, draws = _count(candidate, rate), uniforms(state, 0)
    first: Integers | None = None
    if isinstance(unit, Tokens):
        choose = _draw if unit.drawn == "repeated" else _lowest
        chosen = choose(candidate, count, draws)
    else:
        begins = candidate.copy()
        if continues is not None:
            begins[:, 1:] &= ~(continues[:, 1:] & candidate[:, :-1])
        lengths = unit_lengths(unit, uniforms(state, 3))
        window = int(1 / rate) if isinstance(unit, NGrams) and unit.truncation == "left-to-right" else None
        chosen, begin = _choose(candidate, begins, count, draws, lengths, window)
        if isinstance(unit, WholeWords | Spans | NGrams) and unit.replacement_per == "unit":
            first = begin
    at = np.nonzero(chosen)
    fate = uniforms(state[at if first is None else (at[0], first[at])], 1)
    lowest = FIRST_ORDINARY if replacement.pool == "ordinary" else 0
    drawn = (bits(state[at], 2) % np.uint64(size - lowest)).astype(tokens.dtype) + lowest
    shown = np.where(fate < replacement.mask + replacement.random, drawn, tokens[at])
    inputs = np.array(tokens)
    inputs[at] = np.where(fate < replacement.mask, MASK, shown)
    return Masked(inputs, chosen)


def asked(tokens: Integers, rate: float, mask_specials: bool) -> NDArray[np.int64]:
    """How many tokens of each row are chosen, where units are single distinct tokens."""
    return _count(_candidates(tokens, mask_specials), rate)


def _candidates(tokens: Integers, mask_specials: bool) -> Flags:
    candidate: Flags = tokens >= UNK
    return candidate | np.isin(tokens, (CLS, SEP)) if mask_specials else candidate


def _count(candidate: Flags, rate: float) -> NDArray[np.int64]:
    there = candidate.sum(1)
    count: NDArray[np.int64] = np.maximum(np.floor(rate * there + 0.5).astype(np.int64), there > 0)
    return count


def unit_lengths(unit: Unit, draws: NDArray[np.float64]) -> Integers:
    """How many words a unit asks for, for each uniform draw."""
    weights: NDArray[Any]
    match unit:
        case WholeWords():
            weights = np.ones(1)
        case Spans():
            weights = (1 - unit.p) ** np.arange(unit.longest)
        case NGrams():
            weights = 1 / np.arange(1, unit.longest + 1)
        case _:
            raise DataError(f"objective.unit.kind {unit.kind!r} has no lengths")
    return 1 + np.searchsorted(np.cumsum(weights / weights.sum())[:-1], draws, side="right")


def _lowest(candidate: Flags, count: Integers, draws: NDArray[np.float64]) -> Flags:
    """The `count` candidates of a row with the lowest draws."""
    order = np.argsort(np.where(candidate, draws, 2.0), axis=1, kind="stable")[:, : count.max(initial=0)]
    chosen = np.zeros_like(candidate)
    np.put_along_axis(chosen, order, np.arange(order.shape[1]) < count[:, None], axis=1)
    return chosen


def _draw(candidate: Flags, count: Integers, draws: NDArray[np.float64]) -> Flags:
    """The places that `count` draws from all candidates of a row hit, some of them more than once."""
    places = np.argsort(~candidate, axis=1, kind="stable")  # candidates first
    hit = np.take_along_axis(places, (draws * candidate.sum(1, keepdims=True)).astype(np.int64), axis=1)
    row, draw = np.nonzero(np.arange(draws.shape[1]) < count[:, None])
    chosen = np.zeros_like(candidate)
    chosen[row, hit[row, draw]] = True
    return chosen


def _choose(
    candidate: Flags,
    begins: Flags,
    count: Integers,
    draws: NDArray[np.float64],
    asked: Integers,
    window: int | None,
) -> tuple[Flags, Integers]:
    """Which places are chosen, and for each the place at which its unit begins; all (rows, length) but `count`."""
    number = np.arange(len(candidate))[:, None]
    words = int(begins.sum(1).max(initial=0))
    # The word each place belongs to; places that are no candidates belong to one more, which is empty.
    word = np.where(candidate, np.cumsum(begins, axis=1) - 1, words)
    row, place = np.nonzero(begins)
    at = np.zeros((len(candidate), words + 1), dtype=np.int64)
    at[row, word[row, place]] = place
    size = np.bincount((number * (words + 1) + word)[candidate], minlength=at.size).reshape(at.shape)
    draws, asked = np.take_along_axis(draws, at, axis=1), np.take_along_axis(asked, at, axis=1)
    if window is None:
        # A word that begins a run of candidates has a special token before it.
        opens = ~np.take_along_axis(np.pad(candidate, ((0, 0), (1, 0))), at, axis=1)
        chosen, begin = _in_random_order(size, opens, count, draws, asked)
    else:
        chosen, begin = _from_left_to_right(size, count, draws, asked, window)
    first = np.take_along_axis(at, begin, axis=1)
    return np.take_along_axis(chosen, word, axis=1), np.take_along_axis(first, word, axis=1)


def _in_random_order(
    size: Integers, opens: Flags, count: Integers, draws: NDArray[np.float64], asked: Integers
) -> tuple[Flags, Integers]:
    """Which words are chosen, and for each the word its unit begins with; all (rows, words) but `count`.

    The words of a row have their turn in the order of their draws.  A word not chosen yet begins a unit: itself and
    those after it, up to `asked` words, a special token, a chosen word, or the word that no longer fits into `count`.
    """
    turns = np.argsort(np.where(size > 0, draws, 2.0), axis=1, kind="stable")
    closed = size == 0
    begin = np.zeros_like(asked)
    left, number, last = count.copy(), np.arange(len(size)), size.shape[1] - 1
    for turn in turns.T:
        if not left.any():
            break
        wanted, grows = asked[number, turn], np.ones(len(turn), dtype=bool)
        for step in range(int(asked.max())):
            here = np.minimum(turn + step, last)
            grows &= ~closed[number, here] & (step < wanted) & (size[number, here] <= left)
            if step:
                grows &= ~opens[number, here]
            if not grows.any():
                break
            closed[number, here] |= grows
            begin[number[grows], here[grows]] = turn[grows]
            left -= np.where(grows, size[number, here], 0)
    return closed & (size > 0), begin


def _from_left_to_right(
    size: Integers, count: Integers, draws: NDArray[np.float64], asked: Integers, window: int
) -> tuple[Flags, Integers]:
    """The same by DeBERTa's code (NGramMaskGenerator): one unit of n words somewhere in each `window` x n words, a draw
    of the window's first word saying where, until `count` is reached.  Special tokens do not end a unit."""
    number, place, words = np.arange(len(size)), np.arange(size.shape[1]), (size > 0).sum(1)
    chosen, begin = np.zeros(size.shape, dtype=bool), np.zeros_like(asked)
    offset = np.zeros_like(words)
    while (offset < words).any():
        wanted = asked[number, offset]
        reach = np.minimum(wanted * window, words - offset)
        start = offset + (draws[number, offset] * reach).astype(np.int64)
        end = np.minimum(start + wanted, words)
        inside = (place >= start[:, None]) & (place < end[:, None])
        chosen |= inside
        begin = np.where(inside, start[:, None], begin)
        offset = np.maximum(offset + reach, end)
    sizes = np.where(chosen, size, 0)
    return chosen & (np.cumsum(sizes, axis=1) - sizes < count[:, None]), begin


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
