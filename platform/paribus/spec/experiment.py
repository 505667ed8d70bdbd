"""Factor, Scale, Base, Experiment: how a question becomes runs."""

from typing import Any, Literal

from pydantic import Field

from paribus.spec.base import Spec

Patch = dict[str, Any]
"""Dotted path of a Run to the value set there, replacing what was there."""


class Factor(Spec):
    """What can vary: a name (the file's), its levels, each a patch of a Run."""

    source: str
    """The paper and section that defines the levels."""
    base: str
    """The level that stands for 'as usual': the default baseline."""
    levels: dict[str, Patch] = Field(min_length=1)


class Base(Spec):
    """A complete Run to start from, at the paper's sizes."""

    source: str
    """The paper and tables the values come from."""
    run: dict[str, Any]


class Scale(Spec):
    """A preset of sizes and budgets."""

    note: str
    """What it is for and what it costs."""
    set: Patch
    """For every base."""
    bases: dict[str, Patch] = {}
    """For one base, after `set`."""


class Experiment(Spec):
    """A question: base x factors x seeds x tasks. Also one MLflow experiment and one Optuna study a scale."""

    question: str
    expect: str
    """The guess, written before the run."""
    reproduces: str | None = None
    """A table in dashboards/papers/."""
    base: str
    base_at: dict[str, str] = {}
    """For a scale, another base: where the experiment's own could not learn within the budget."""
    factors: tuple[str, ...] = Field(min_length=1)
    levels: dict[str, tuple[str, ...]] = {}
    """For a factor, the levels to run; default: all."""
    baseline: dict[str, str] = {}
    """For a factor, the level the others are compared with; default: the factor's own base."""
    design: Literal["one-at-a-time", "full"] = "one-at-a-time"
    """one-at-a-time: the baseline and each single departure from it; full: every combination."""
    seeds: int = Field(5, ge=1)
    tasks: tuple[str, ...] = ()
    set: Patch = {}
    """Applied to every arm, after the scale."""
    aggregate: Literal["median", "mean"] = "mean"
    """How the paper sums up its seeds."""

    def base_for(self, scale: str) -> str:
        """The name of the base at a scale."""
        return self.base_at.get(scale, self.base)
