"""Aggregates over seeds, and differences to a baseline paired by seed."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """A mean difference to the baseline over `n` pairs, with its interval where there are at least two pairs."""

    mean: float
    low: float | None
    high: float | None
    n: int


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
    if n == 1 or len(set(differences)) == 1:  # equal differences, as of two constants, say nothing of their spread
        return Difference(mean, None, None, n)
    half = _t(n - 1) * statistics.stdev(differences) / math.sqrt(n)
    return Difference(mean, mean - half, mean + half, n)


def _t(degrees: int) -> float:
    """The two-sided quantile of Student's t."""
    from scipy.special import stdtrit  # a tenth of a second, so only tables with differences pay for it

    return float(stdtrit(degrees, (1 + LEVEL) / 2))
