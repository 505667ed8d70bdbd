"""How fairly the arms of an experiment were tuned: as many trials each, what each chose, and what more would buy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from paribus.plan.tuning import Tuning


@dataclass(frozen=True)
class Tried:
    """A trial that has ended. `loss`: nats on validation documents, the last one told if pruned; None: it diverged."""

    value: float
    loss: float | None
    pruned: bool
    share: float
    """The part of the budget it was trained for."""


@dataclass(frozen=True)
class Tuned:
    """How one arm was tuned."""

    arm: str
    path: str
    asked: int
    """Trials each arm is to have."""
    tried: tuple[Tried, ...]
    """Those that have ended, by value: the sensitivity curve."""
    chosen: float | None
    at_an_end: bool
    """Whether none was tried beyond the chosen value, so that a better one may lie there."""
    expected: tuple[float, ...]
    """The validation loss that the best of 1, 2, ... trials is expected to have."""
    spent: float
    """Budgets of one pretraining that the trials took in all."""

    @property
    def pruned(self) -> int:
        """Trials that were ended early."""
        return sum(trial.pruned for trial in self.tried)

    @property
    def diverged(self) -> int:
        """Trials without a loss."""
        return sum(trial.loss is None for trial in self.tried)

    @property
    def sentence(self) -> str:
        """All of it, for a table's foot."""
        counts = [f"{len(self.tried)} of {self.asked} trials"]
        counts += [f"{n} {word}" for n, word in ((self.pruned, "pruned"), (self.diverged, "diverged")) if n]
        chosen = "none yet" if self.chosen is None else f"{self.chosen:g}"
        curve = ", ".join(f"{trial.value:g} {_ending(trial)}" for trial in self.tried)
        text = f"{self.path} of {self.arm}: {chosen} ({', '.join(counts)}; {self.spent:.2g} budgets)."
        if curve:
            text += f" Validation loss by value: {curve}."
        if len(self.expected) > 1:
            best = ", ".join(f"{loss:.3f}" for loss in self.expected)
            text += f" Expected best of 1 to {len(self.expected)} trials: {best}."
        if self.at_an_end:
            text += " None was tried beyond it, so a better one may lie there."
        return text


def tuned(tuning: Tuning) -> Tuned:
    """The account of one arm's tuning."""
    ended = sorted((trial for trial in tuning.trials if trial.loss is not None), key=lambda trial: trial.value)
    tried = tuple(
        Tried(trial.value, None if trial.loss == inf else trial.loss, trial.pruned, trial.share) for trial in ended
    )
    losses = [trial.loss for trial in tried if trial.loss is not None]
    return Tuned(
        arm=tuning.arm.label,
        path=tuning.tune.path,
        asked=tuning.tune.trials,
        tried=tried,
        chosen=tuning.best.value if tuning.best else None,
        at_an_end=tuning.at_an_end,
        expected=expected_best(losses),
        spent=sum(trial.share for trial in tried),
    )


def expected_best(losses: Sequence[float]) -> tuple[float, ...]:
    """The expected least of k draws from `losses`, k = 1 to their number.

    Dodge et al. 2019, arXiv:1909.03004, section 3.1, of losses in place of accuracies. It takes the trials for draws
    at random, which TPE's later ones are not: those tend to be better, so few trials do a little worse than it says.
    """
    n, ordered = len(losses), sorted(losses)
    # The least of k draws is at or above the i-th when all k are among the n - i that are not below it.
    return tuple(
        sum(loss * (((n - i) / n) ** k - ((n - i - 1) / n) ** k) for i, loss in enumerate(ordered))
        for k in range(1, n + 1)
    )


def unequal(tunings: Sequence[Tuning]) -> str | None:
    """Why the arms cannot be compared, if some had fewer trials than others; None where all had as many."""
    counts = {tuning.arm.label: tuning.done for tuning in tunings}
    if len(set(counts.values())) < 2:
        return None
    return "arms had unequal numbers of trials: " + ", ".join(f"{arm} {count}" for arm, count in counts.items())


def _ending(trial: Tried) -> str:
    if trial.loss is None:
        return "diverged"
    return f"{trial.loss:.3f}" + (f" (pruned at {trial.share:.0%})" if trial.pruned else "")
