"""Factor, Scale, Base, Experiment: how a question becomes runs."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from paribus.spec.base import Slot, Spec

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
    """A complete Run to start from, at the paper's sizes: written out, or another base but for what differs."""

    source: str
    """The paper and tables the values come from."""
    run: dict[str, Any] | None = None
    """A whole Run."""
    of: str | None = None
    """In place of `run`: the base this one is like, itself written out."""
    set: Patch = {}
    """What differs from it."""

    @model_validator(mode="after")
    def _either(self) -> "Base":
        if (self.run is None) == (self.of is None) or (self.set and self.of is None):
            raise ValueError("expected either `run`, or `of` with `set`")
        return self


class Scale(Spec):
    """A preset of sizes and budgets."""

    note: str
    """What it is for and what it costs."""
    set: Patch
    """For every base."""
    bases: dict[str, Patch] = {}
    """For one base, after `set`."""


class Pruner(Slot):
    """Whether a trial that goes badly is ended early, by the earlier trials of the same arm and by no other arm's."""

    reports: int = Field(4, ge=2)
    """How often a trial tells its validation loss: at equal parts of its token budget, the same for every arm."""


class NoPruner(Pruner):
    """Every trial trains to its end."""

    kind: Literal["none"] = "none"


class MedianPruner(Pruner):
    """Ends a trial that is worse than the median of the earlier ones at the same tokens.

    Golovin et al. 2017, Google Vizier, section 3.2, as Optuna's MedianPruner has it: the best so far against the
    median of theirs there.
    """

    kind: Literal["median"] = "median"
    startup: int = Field(3, ge=1)
    """Trials that are let be before any is judged."""
    warmup: float = Field(0.25, ge=0, lt=1)
    """The part of the budget in which none is judged: a high rate looks worse than it is while it is warmed up."""


class HyperbandPruner(Pruner):
    """Successive halving in brackets of other patience, as Optuna's HyperbandPruner.

    Li et al. 2018, arXiv:1603.06560.
    """

    kind: Literal["hyperband"] = "hyperband"
    reduction: int = Field(3, ge=2)
    """The best 1/reduction of a rung go on."""


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
    pruner: Pruner = NoPruner()
    """Whether trials that go badly are ended early. A pruned trial counts as a trial, and is never chosen."""
    seed: int = Field(1000, ge=0)
    """Of the trials' runs and of the sampler, the same for every arm; never one that is reported."""


_SHARED = (("cola.mcc",), ("sst2.accuracy",), ("qnli.accuracy",), ("rte.accuracy",))
GLUE_AVERAGES: dict[str, tuple[tuple[str, ...], ...]] = {
    # Wang et al. 2018, arXiv:1804.07461, section 5: nine tasks; two metrics, or two dev sets, of a task averaged first.
    "glue-leaderboard": (
        *_SHARED,
        ("mrpc.f1", "mrpc.accuracy"),
        ("stsb.pearson", "stsb.spearman"),
        ("qqp.f1", "qqp.accuracy"),
        ("mnli-m.accuracy", "mnli-mm.accuracy"),
        ("wnli.accuracy",),
    ),
    # Devlin et al. 2019, arXiv:1810.04805, table 1: the nine numbers printed, without WNLI, both of MNLI.
    "glue-bert": (
        *_SHARED,
        ("mrpc.f1",),
        ("stsb.spearman",),
        ("qqp.f1",),
        ("mnli-m.accuracy",),
        ("mnli-mm.accuracy",),
    ),
    # Clark et al. 2020, arXiv:2003.10555, table 2: eight numbers. DeBERTa's tables do the same, but do not say which
    # correlation of STS-B it is.
    "glue-electra": (
        *_SHARED,
        ("mrpc.accuracy",),
        ("stsb.spearman",),
        ("qqp.accuracy",),
        ("mnli-m.accuracy",),
    ),
}
"""What a paper's GLUE average is the mean of: each entry the mean of its metrics, task.metric."""


UNITS = {"mlm.loss": "nats", "words.bits_per_byte": "bits", "words.word_accuracy": "points"}
"""What verdicts are given on besides tasks, which are in points (a hundredth of the score's range)."""


class Claim(Spec):
    """What an arm should show, as the paper has it or as the experimenter expects: `paribus table --check`."""

    arm: str
    """Compared with the baseline arm."""
    metric: str
    """A column's key, e.g. mlm.loss or acceptability.mcc."""
    direction: Literal["better", "worse", "equal"]
    """better and worse: the verdict must be helps or hurts. equal: the true difference must be `to` within `tolerance`.
    """
    tolerance: float | None = Field(None, gt=0)
    """In the metric's unit; `equal` needs one."""
    to: float = 0.0
    """With `equal`, the difference it should be, the paper's own say; in the metric's unit."""

    @model_validator(mode="after")
    def _tolerance_is_of_equal(self) -> "Claim":
        if (self.direction == "equal") != (self.tolerance is not None) or (self.to and self.direction != "equal"):
            raise ValueError("expected `tolerance` with direction equal, and `to` and `tolerance` with no other")
        return self


def _tables(value: Any) -> Any:
    """One table by its name alone is a table whose rows are called as the arms."""
    return {value: {}} if isinstance(value, str) else value


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Bases = Annotated[tuple[str, ...], BeforeValidator(_one_or_more), Field(min_length=1)]


class Experiment(Spec):
    """A question: base x factors x seeds x tasks. Also one MLflow experiment and one Optuna study a scale."""

    question: str
    expect: str
    """The guess, written before the run."""
    reproduces: Annotated[dict[str, dict[str, str | dict[str, str | None]]], BeforeValidator(_tables)] = {}
    """Tables in dashboards/papers/, the first for the experiment's own table: a name, or for each table the arms by the
    key of their row there, or by scale (`default` for those not named, null where there is none). An arm that is called
    as its row needs no entry."""
    base: Bases
    """One; or several, each an arm, of which the first is the baseline: a comparison of whole models."""
    base_at: dict[str, Bases] = {}
    """For a scale, another base: where the experiment's own could not learn within the budget; of several as many, in
    their order."""
    factors: tuple[str, ...] = ()
    levels: dict[str, tuple[str, ...]] = {}
    """For a factor, the levels to run; default: all."""
    baseline: dict[str, str] = {}
    """For a factor, the level the others are compared with; default: the factor's own base."""
    design: Literal["one-at-a-time", "full"] = "one-at-a-time"
    """one-at-a-time: the baseline and each single departure from it; full: every combination."""
    seeds: int = Field(5, ge=1, le=10_000)
    tasks: tuple[str, ...] = ()
    protocol: str | dict[str, str] | None = None
    """How they are fine-tuned: a file in experiments/protocols/, or one by scale; else it is as base and scale say."""
    average: Literal["glue-leaderboard", "glue-bert", "glue-electra"] | None = None
    """A column more: the mean over GLUE as one of these defines it."""
    tune: Tune | None = None
    exclusive: bool = False
    """Whether each run gets its card, or on CPUs the machine, alone: for questions about speed or memory."""
    set: Patch = {}
    """Applied to every arm, after the scale."""
    set_at: dict[str, Patch] = {}
    """For a scale, more of it: where the experiment needs another start within the scale's budget."""
    aggregate: Literal["median", "mean"] = "mean"
    """How the paper sums up its seeds."""
    sesoi: dict[str, Annotated[float, Field(gt=0)]] = {}
    """The smallest effect of interest by column (mlm.loss) or, for all others, by unit (nats, bits, points). What has
    none is never called equivalent, and no number of seeds is said to be enough for it."""
    claims: tuple[Claim, ...] = ()
    """What `paribus table --check` asks for."""

    @model_validator(mode="after")
    def _something_varies(self) -> "Experiment":
        if not self.factors and len(self.base) == 1:
            raise ValueError("factors: found none; expected at least one, or several bases")
        return self

    @model_validator(mode="after")
    def _bases_are_replaced_one_by_one(self) -> "Experiment":
        for scale, bases in self.base_at.items():
            if len(bases) != len(self.base):
                count = len(self.base)
                raise ValueError(f"base_at.{scale}: expected as many as `base` has ({count}), found {len(bases)}")
        return self

    def row_of(self, table: str, arm: str, scale: str) -> str | None:
        """What an arm's row in a paper's table is called at a scale: as the arm, unless `reproduces` says otherwise."""
        said = self.reproduces.get(table, {}).get(arm, arm)
        return said.get(scale, said.get("default")) if isinstance(said, dict) else said

    def bases_for(self, scale: str) -> dict[str, str]:
        """The bases at a scale, by what they are called at all scales."""
        return dict(zip(self.base, self.base_at.get(scale, self.base), strict=True))

    def protocol_for(self, scale: str) -> str | None:
        """The name of the protocol at a scale, if there is one."""
        return self.protocol.get(scale) if isinstance(self.protocol, dict) else self.protocol
