"""Which point of a grid is reported: one rule, for tables and mirror alike."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Literal

from paribus.spec.finetuning import Point


def over_restarts(scores: Sequence[float], how: Literal["mean", "median"]) -> float:
    """The mean or median of a point's restarts; no number where one of them diverged."""
    if len(scores) == 1:
        return scores[0]
    if any(map(math.isnan, scores)):
        return math.nan
    return fmean(scores) if how == "mean" else median(scores)


def best_point(scores: Mapping[Point, float]) -> Point | None:
    """The point with the best score on what chooses (each summed up over restarts); of equal ones the first in order.

    A score that is no number never wins; None where none is a number.
    """
    numbers = {point: score for point, score in scores.items() if not math.isnan(score)}
    return min(numbers, key=lambda point: (-numbers[point], point)) if numbers else None
