"""Which learning rate of a grid is reported: one rule, for tables and mirror alike."""

import math
from collections.abc import Mapping


def best_rate(scores: Mapping[float, float]) -> float | None:
    """The rate with the best score on `select` (rate to its mean over restarts); the smaller of two equal ones.

    A score that is no number never wins; None where none is a number.
    """
    numbers = {rate: score for rate, score in scores.items() if not math.isnan(score)}
    return min(numbers, key=lambda rate: (-numbers[rate], rate)) if numbers else None
