"""Tuning: before the runs of an arm, trials that find the arm's own best value of one number.

Each arm is tuned by itself: the same number of trials, seed, sampler and pruner, and no look at another arm.
The first trials lie at fixed places of the range; each later one is a suggestion of Optuna's TPE sampler (jobs/tuning)
from all the trials before it.  A suggestion is a stage in the store like any other, so where a tuning stands is a
function of the experiment and the store alone: not of who works, how many do, or who was killed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from paribus.errors import SpecError
from paribus.plan.arms import Arm
from paribus.plan.runs import PlannedRun, at_seed
from paribus.plan.stages import Pruning, Stage, Stages, make
from paribus.spec.base import Spec
from paribus.spec.experiment import NoPruner, Times, Tune
from paribus.spec.load import build, get_path, set_path
from paribus.spec.run import Run

# Where in the range the first trials lie: they need no result, so workers take them at once.
PLACES = (1 / 2, 1 / 4, 3 / 4)


class Results(Protocol):
    """What is asked about finished stages; the store answers."""

    def has(self, key: str) -> bool: ...
    def rows(self, key: str) -> list[dict[str, Any]]: ...
    def record(self, key: str) -> dict[str, Any]: ...


class Search(Spec):
    """What a suggestion reads, beside the evaluations it is fed."""

    path: str
    low: float
    high: float
    log: bool
    seed: int


@dataclass(frozen=True)
class Trial:
    """One value tried. `loss`: on the validation documents; infinite if it diverged, None until it is known.

    A pruned trial has the loss that it told last.
    """

    value: float
    run: PlannedRun
    loss: float | None
    report: int | None = None
    """Of a pruned trial, the report that was its last."""
    share: float = 1.0
    """The part of the budget it was trained for, of one that has ended."""

    @property
    def pruned(self) -> bool:
        """Whether it was ended early for what it told."""
        return self.report is not None


@dataclass(frozen=True)
class Tuning:
    """Where the tuning of one arm stands."""

    arm: Arm
    """As it is before tuning."""
    tune: Tune
    """With a range in numbers."""
    trials: tuple[Trial, ...]
    """Those known so far."""
    suggestion: Stage | None
    """The stage that will say what to try next, when it can be computed and is not yet."""

    @property
    def done(self) -> int:
        """How many trials have ended."""
        return sum(trial.loss is not None for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The trial with the lowest loss (the smaller value in a tie), once all have ended."""
        if self.done < self.tune.trials:
            return None
        return min((trial for trial in self.trials if not trial.pruned), key=lambda trial: (trial.loss, trial.value))

    @property
    def at_an_end(self) -> bool:
        """Whether the best value is the least or the greatest tried, so that a better one may lie beyond."""
        values = [trial.value for trial in self.trials]
        return self.best is not None and self.best.value in (min(values), max(values))

    @property
    def tuned(self) -> Arm | None:
        """The arm at its best value, once that is known."""
        return _arm_at(self.arm, self.tune.path, self.best.value) if self.best else None


def tuning(arm: Arm, tune: Tune, results: Results | None) -> Tuning:
    """Where the tuning of `arm` stands by what `results` has; `tune` is resolved."""
    trials: list[Trial] = []
    suggestion = None
    for number in range(tune.trials):
        if number < len(PLACES):
            value = value_at(tune, PLACES[number])
        elif results is None or any(trial.loss is None for trial in trials):
            break
        else:
            search = Search(**tune.model_dump(include=set(Search.model_fields)))
            stage = make("suggest", search, {f"trial{i}": t.run.stage("evaluate").key for i, t in enumerate(trials)})
            if not results.has(stage.key):
                suggestion = stage
                break
            value = results.rows(stage.key)[0]["value"]
        trials.append(_trial(arm, tune, value, trials[: number if number >= len(PLACES) else 0], results))
    return Tuning(arm, tune, tuple(trials), suggestion)


def resolve(tune: Tune, arm: Arm, where: str) -> Tune:
    """`tune` with its range in numbers, for `arm`. SpecError where it cannot be taken."""
    now = get_path(arm.run.model_dump(), tune.path, f"{where}.path")
    if not isinstance(now, float):
        raise SpecError(f"{where}.path: found {tune.path}, which is {now!r}; only a number with decimals is tuned")
    low, high = (rounded(now * end.times) if isinstance(end, Times) else end for end in (tune.low, tune.high))
    if not (low < high and (low > 0 or not tune.log)):
        raise SpecError(f"{where}: low must be below high{' and above 0' if tune.log else ''}, found {low} and {high}")
    made = [Stages(_arm_at(arm, tune.path, end, where).run) for end in (low, high)]
    judged = "trials are judged by the loss of their pretraining on validation documents"
    one, other = ({stage.kind: stage for stage in stages.at(0)} for stages in made)
    if one["pretrain"].key == other["pretrain"].key:
        raise SpecError(f"{where}.path: found {tune.path}; {judged}, which it does not move")
    if one["pack"].key != other["pack"].key or one["evaluate"].spec != other["evaluate"].spec:
        raise SpecError(f"{where}.path: found {tune.path}; {judged}, of which it makes others")
    return tune.model_copy(update={"low": low, "high": high})


def value_at(tune: Tune, place: float) -> float:
    """The value at `place` (0 to 1) of the range."""
    low, high = ends(tune)
    between = low * (high / low) ** place if tune.log else low + (high - low) * place
    return min(max(rounded(between), low), high)


def ends(tune: Tune | Search) -> tuple[float, float]:
    """The range of a resolved Tune."""
    assert isinstance(tune.low, float) and isinstance(tune.high, float)
    return tune.low, tune.high


def rounded(value: float) -> float:
    """Three significant digits: what is tried is what is printed."""
    return float(f"{value:.3g}")


def _arm_at(arm: Arm, path: str, value: float, where: str = "tune") -> Arm:
    data = arm.run.model_dump()
    set_path(data, path, value, where)
    return replace(arm, run=build(Run, data, f"{where} (arm {arm.label}, {path}={value:g})"))


def _trial(arm: Arm, tune: Tune, value: float, earlier: Sequence[Trial], results: Results | None) -> Trial:
    """The trial at `value`: pretrained and evaluated only, judged by `earlier` where the experiment has a pruner."""
    at = _arm_at(arm, tune.path, value)
    evaluation = at.run.evaluation.model_copy(update={"tasks": ()})
    label = f"{arm.label} {tune.path.rpartition('.')[2]}={value:g}"
    at = replace(at, label=label, baseline=False, run=at.run.model_copy(update={"evaluation": evaluation}))
    pruning = None
    if not isinstance(tune.pruner, NoPruner):
        pruning = Pruning(tune.pruner, tuple(trial.run.stage("pretrain").key for trial in earlier))
    run = at_seed(at, Stages(at.run, pruning), tune.seed, trial=True)
    return Trial(value, run, *_ended(run, results)) if results else Trial(value, run, None)


def _ended(run: PlannedRun, results: Results) -> tuple[float | None, int | None, float]:
    """Loss, its last report if it was pruned, and the part of its budget it was trained for."""
    pretrain, evaluate = run.stage("pretrain").key, run.stage("evaluate").key
    if results.has(evaluate):
        return validation_loss(results.rows(evaluate)), None, 1.0
    if not results.has(pretrain) or (record := results.record(pretrain))["outcome"] == "done":
        return None, None, 0.0
    share = record[f"{record['outcome']}_step"] / run.arm.run.budget.steps
    if record["outcome"] == "diverged":
        return math.inf, None, share
    last = max(told := reports(record))
    return told[last], last, share


def reports(record: Mapping[str, Any]) -> dict[int, float]:
    """What a judged pretraining told of its validation loss, by report: 1, 2, ... of the pruner's number."""
    return {int(report): loss for report, loss in record["reports"].items()}


def validation_loss(rows: list[dict[str, Any]]) -> float:
    """The validation loss, among the rows of an evaluate stage, of what is fine-tuned: by MLM or as a discriminator."""
    losses = (row for row in rows if (row["metric"], row["split"]) == ("loss", "validation"))
    return next(float(row["value"]) for row in losses if row.get("task", "mlm") in ("mlm", "rtd"))
