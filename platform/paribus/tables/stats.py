"""Aggregates over seeds, differences paired by seed, corrected p values, and the power of what is tested so.

What is tested, and why so: docs/statistics.md.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
ALPHA = 1 - LEVEL
POWER = 0.8
_MOST = 10_000  # seeds; what needs more is told as such
_NODES = (np.arange(32) + 0.5) / 32


@dataclass(frozen=True)
class Difference:
    """A mean difference to the baseline over `n` pairs, with its interval where there are at least two pairs."""

    mean: float
    low: float | None
    high: float | None
    n: int
    sd: float | None = None
    """The standard deviation of the paired differences; None where they say nothing of it."""


def aggregate(values: Sequence[float], how: Literal["median", "mean"]) -> float:
    """The median or mean of `values` (at least one)."""
    return statistics.median(values) if how == "median" else statistics.fmean(values)


def paired(arm: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """`arm` minus `baseline` (seed to value) over the seeds that both have; None where they share no seed.

    No interval for a single pair, nor where all differences are equal.

    The interval is Student's t on the differences, df = n - 1: mean +- t(0.975) s / sqrt(n). It takes the differences
    for independent and roughly normal; a percentile bootstrap over so few seeds would cover far less than it says.
    """
    differences = [arm[seed] - baseline[seed] for seed in sorted(arm.keys() & baseline.keys())]
    n = len(differences)
    if n == 0:
        return None
    mean = statistics.fmean(differences)
    scale = max(abs(values[seed]) for values in (arm, baseline) for seed in arm.keys() & baseline.keys())
    if n == 1 or _equal(differences, scale):  # equal differences, as of two constants, say nothing of their spread
        return Difference(mean, None, None, n)
    sd = math.hypot(*(value - mean for value in differences)) / math.sqrt(n - 1)  # squares may be too small for floats
    half = _t(n - 1) * sd / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n, sd)


ROUNDING = 1e-12
"""Differences that are equal but for the rounding of what was subtracted lie no farther apart, as a share of that."""


def _equal(differences: Sequence[float], scale: float) -> bool:
    """Whether all are one number, but for the rounding of numbers as large as `scale`."""
    return max(differences) - min(differences) <= ROUNDING * scale


@cache
def _t(degrees: int) -> float:
    """The two-sided quantile of Student's t."""
    from scipy.special import stdtrit  # a tenth of a second, so only tables with differences pay for it

    return float(stdtrit(degrees, 1 - ALPHA / 2))


def p_differs(found: Difference) -> float:
    """Two-sided p of a true difference of nothing; 1 where the spread is not known."""
    return 1.0 if found.sd is None else 2 * _below(found, -abs(found.mean))


def p_equivalent(found: Difference, bound: float) -> float:
    """p of a true difference of at least `bound` in size: the larger of two one-sided tests (Schuirmann 1987)."""
    return 1.0 if found.sd is None else _below(found, abs(found.mean) - bound)


def p_beyond(found: Difference, bound: float) -> float:
    """One-sided p of a true difference of at most `bound` in size."""
    return 1.0 if found.sd is None else _below(found, bound - abs(found.mean))


def _below(found: Difference, distance: float) -> float:
    from scipy.special import stdtr

    assert found.sd is not None
    return float(stdtr(found.n - 1, distance * math.sqrt(found.n) / found.sd))


def holm(p: Sequence[float]) -> list[float]:
    """`p` corrected for their number, in their order (Holm 1979): no more than ALPHA of families hold a false one.

    That is so however the tests depend on each other, as contrasts with one baseline on related metrics do.
    """
    order = np.argsort(p, kind="stable")
    stepped = np.asarray(p)[order] * np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return [float(value) for value in corrected]


def tied(arms: Mapping[str, Mapping[int, float]], higher_is_better: bool, alpha: float = ALPHA) -> set[str]:
    """The arms that may be the best: those that no other is better than by a paired t test.

    Each arm is tested against each other, two-sided as verdicts are, so that none is called the best of two that a
    verdict does not tell apart; at `alpha` over their number, so that the arm that is truly the best is left out in at
    most `alpha` / 2 of all cases (Hsu 1984, by Bonferroni). None where nothing can be tested: fewer than two arms of
    two common seeds, or differences whose spread is not known.
    """
    known = {arm: values for arm, values in arms.items() if len(values) > 1}
    if len(known) < 2:
        return set()
    from scipy.special import stdtr

    seeds = sorted(set().union(*known.values()))
    scores = np.array([[values.get(seed, math.nan) for seed in seeds] for values in known.values()])
    scores = scores if higher_is_better else -scores
    level = alpha / 2 / (len(known) - 1)
    found, tested = set(), False
    for arm, mine in zip(known, scores, strict=True):
        ahead = scores - mine
        pairs = np.sum(~np.isnan(ahead), axis=1)
        mean = np.nansum(ahead, axis=1) / np.maximum(pairs, 1)
        squares = np.nansum((ahead - mean[:, None]) ** 2, axis=1)
        usable = (pairs > 1) & (squares > np.square(ROUNDING * np.nanmax(np.abs(scores))))
        tested |= bool(np.any(usable))
        t = mean[usable] * np.sqrt(pairs[usable] * (pairs[usable] - 1) / squares[usable])
        if not np.any(stdtr(pairs[usable] - 1, -t) <= level):
            found.add(arm)
    return found if tested else set()


# --- power -----------------------------------------------------------------------------------------------------------


def power(effect: float, n: int, alpha: float, known: int | None = None) -> float:
    """How often a true difference of `effect` standard deviations is found with `n` pairs, tested two-sided at `alpha`.

    `known`: the degrees of freedom from which the standard deviation is known, of a pilot say. The power is then the
    mean over what the true one may be, given that estimate; None: it is known exactly. Error of the quadrature: below
    0.002.
    """
    from scipy.special import ndtr, stdtrit

    tested = stdtrit(n - 1, 1 - alpha / 2) * _spread(n - 1)
    shift = effect * math.sqrt(n) * (_spread(known)[:, None] if known else 1.0)
    return float(np.mean(ndtr(shift - tested) + ndtr(-shift - tested)))


@cache
def _spread(degrees: int) -> NDArray[np.float64]:
    """An estimated over the true standard deviation: quantiles of equal probability."""
    from scipy.special import chdtri

    return np.sqrt(np.asarray(chdtri(degrees, _NODES), dtype=float) / degrees)


@cache
def detectable(n: int, alpha: float, known: int | None = None, wanted: float = POWER) -> float:
    """The least difference, in standard deviations, that `n` pairs find with the power `wanted`; see `power`."""
    high = 1.0
    while power(high, n, alpha, known) < wanted:
        high *= 2
    low = high / 2 if high > 1.0 else 0.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle, n, alpha, known) < wanted else (low, middle)
    return high


def seeds_for(effect: float, alpha: float, known: int | None = None, wanted: float = POWER) -> int | None:
    """The fewest pairs that find a difference of `effect` standard deviations; None: more than 10,000. See `power`."""
    low, high = 1, 2
    while detectable(high, alpha, known, wanted) > effect:
        if high == _MOST:
            return None
        low, high = high, min(2 * high, _MOST)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if detectable(middle, alpha, known, wanted) > effect else (low, middle)
    return high


def upper_sd(sd: float, known: int, confidence: float = POWER) -> float:
    """The upper one-sided confidence limit of a standard deviation that was estimated as `sd`."""
    from scipy.special import chdtri

    return sd * math.sqrt(known / float(chdtri(known, confidence)))
