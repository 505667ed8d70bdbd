"""Factor, Scale, Base, Experiment: how a question becomes runs."""

from typing import Any, Literal

from pydantic import Field

from paribus.spec.base import Spec

Patch = dict[str, Any]
"""Dotted path of a Run to the value set there, replacing what was there; {times: k} is k times what was there."""


class Times(Spec):
    """A number relative to the one that is there, so that it fits every scale."""

    times: float = Field(gt=0)


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


class Tune(Spec):
    """A number that each arm takes at its own best: before its runs, trials at a seed that reports nothing.

    The best trial is the one with the lowest loss on the validation documents. Every arm gets as many trials.
    """

    path: str
    """The number of a Run that is tuned, e.g. optimizer.lr."""
    low: float | Times
    high: float | Times
    """The range; relative to what the arm has at `path`, or the same for all arms."""
    log: bool = True
    """Whether equal ratios count alike, as for a learning rate, or equal differences."""
    trials: int = Field(ge=1)
    """Of each arm. Raised later, the trials that are done still count."""
    seed: int = Field(1000, ge=0)
    """Of the trials' runs and of the sampler, the same for every arm; never one that is reported."""


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
    tune: Tune | None = None
    set: Patch = {}
    """Applied to every arm, after the scale."""
    set_at: dict[str, Patch] = {}
    """For a scale, more of it: where the experiment needs another start within the scale's budget."""
    aggregate: Literal["median", "mean"] = "mean"
    """How the paper sums up its seeds."""

    def base_for(self, scale: str) -> str:
        """The name of the base at a scale."""
        return self.base_at.get(scale, self.base)
