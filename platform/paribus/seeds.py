"""Randomness by named streams: every draw is a function of (seed, purpose, item, visit), never of who drew before.

Two forms.  `seed_for` seeds an ordinary generator for one purpose (initialisation, data order).  `uniforms` is a
counter-based generator for draws indexed by item, visit and position (masks): no state, so any batch, worker or
device gets the same numbers, and resuming needs nothing.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]


def seed_for(seed: int, *names: object) -> int:
    """A seed per purpose: a new consumer never shifts another's draws. Below 2**56, so every library takes it."""
    return int.from_bytes(hashlib.sha256(repr((seed, *names)).encode()).digest()[:7], "big")


def _mix(x: U64) -> U64:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection whose 64 output bits look independent."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits(key: int | U64, *counters: NDArray[np.integer] | int) -> U64:
    """64 random bits for each broadcast combination of `counters` in the stream `key`: from `seed_for`, or the bits of
    its first counters, of which these are the next."""
    state = np.asarray(key, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state + np.uint64(0x9E3779B97F4A7C15) * (np.asarray(counter).astype(np.uint64) + np.uint64(1)))
    return state


def uniforms(key: int | U64, *counters: NDArray[np.integer] | int) -> NDArray[np.float64]:
    """Uniform draws in [0, 1) for each broadcast combination of `counters` in the stream `key`."""
    return (bits(key, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def hold_out(key: str, share: float) -> bool:
    """Whether the item named `key` falls into a held-out share: a function of its name alone, so it never moves."""
    return seed_for(0, "hold-out", key) / 2.0**56 < share
