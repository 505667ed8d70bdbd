"""What may be said of each contrast of a table: helps, hurts, equivalent, or not known yet and what it would take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paribus.spec.experiment import Claim
from paribus.tables.stats import (
    ALPHA,
    Difference,
    detectable,
    holm,
    p_beyond,
    p_differs,
    p_equivalent,
    seeds_for,
)

Kind = Literal["helps", "hurts", "equivalent", "inconclusive", "one seed", "equal differences", "refused"]


@dataclass(frozen=True)
class Contrast:
    """An arm minus the baseline on one metric, and what its verdict needs to know beside it."""

    difference: Difference
    higher_is_better: bool
    sesoi: float | None = None
    """The smallest effect of interest, in the metric's unit."""
    seconds: float | None = None
    """What one seed more of both arms takes, as measured."""
    refusal: str | None = None
    """Why nothing may be said."""


@dataclass(frozen=True)
class Verdict:
    """What may be said of a contrast, corrected for all of its family. Effects are in the metric's unit."""

    kind: Kind
    p: float | None = None
    """Of no difference, by Holm."""
    sesoi: float | None = None
    within_sesoi: bool = False
    """Whether the true difference is smaller than `sesoi`, by two one-sided tests and Holm; also of helps and hurts."""
    detectable: float | None = None
    """The least true difference that as many seeds would find with 80 % power."""
    more_seeds: int | None = None
    """How many more would find `sesoi` with 80 % power; None: it is not said, or more than 10,000."""
    why: str | None = None
    """The reason of a refusal."""
    family: int = 1
    """For how many contrasts it is corrected."""
    seconds_a_seed: float | None = None
    """What one seed more of this arm and the baseline takes, as measured."""

    @property
    def told(self) -> str:
        """The kind, and why where it is a refusal."""
        return f"{self.kind}: {self.why}" if self.why else self.kind

    @property
    def hours(self) -> float | None:
        """What `more_seeds` take."""
        if self.more_seeds is None or self.seconds_a_seed is None:
            return None
        return self.more_seeds * self.seconds_a_seed / 3600


def judge(family: Sequence[Contrast]) -> list[Verdict]:
    """The verdict on each contrast of a family, in order.

    At most ALPHA of families without any true difference have a false helps or hurts, and at most ALPHA of families in
    which every true difference is as large as its SESOI have a false equivalent.
    """
    tested = [contrast for contrast in family if contrast.refusal is None and contrast.difference.n > 1]
    differs = iter(holm([p_differs(contrast.difference) for contrast in tested]))
    same = iter(holm([p_equivalent(contrast.difference, contrast.sesoi or 0.0) for contrast in tested]))
    found = []
    for contrast in family:
        if contrast.refusal is not None:
            found.append(Verdict("refused", why=contrast.refusal))
        elif contrast.difference.n < 2:
            found.append(Verdict("one seed"))
        else:
            found.append(_verdict(contrast, next(differs), next(same), len(tested)))
    return found


def _verdict(contrast: Contrast, differs: float, same: float, family: int) -> Verdict:
    difference, sesoi, alpha = contrast.difference, contrast.sesoi, ALPHA / family
    if difference.sd is None:
        return Verdict("equal differences", sesoi=sesoi, family=family, seconds_a_seed=contrast.seconds)
    within, known = sesoi is not None and same <= ALPHA, difference.n - 1
    kind: Kind = "equivalent" if within else "inconclusive"
    if differs <= ALPHA:
        kind = "helps" if (difference.mean > 0) == contrast.higher_is_better else "hurts"
    null = kind in ("equivalent", "inconclusive")
    needed = seeds_for(sesoi / difference.sd, alpha, known) if sesoi and kind == "inconclusive" else None
    return Verdict(
        kind,
        differs,
        sesoi,
        within,
        detectable=detectable(difference.n, alpha, known) * difference.sd if null else None,
        more_seeds=None if needed is None else max(needed - difference.n, 1),
        family=family,
        seconds_a_seed=contrast.seconds,
    )


@dataclass(frozen=True)
class Checked:
    """A claim of the experiment, and whether what was measured bears it out."""

    claim: Claim
    outcome: Literal["met", "not met", "undecided"]
    found: str
    """What was found instead of a plain yes."""

    @property
    def sentence(self) -> str:
        """The claim and what became of it."""
        claim = self.claim
        asked = f" to {claim.to:+g} within {claim.tolerance:g}" if claim.tolerance is not None else ""
        return f"{self.outcome}: {claim.arm} {claim.direction}{asked} on {claim.metric} ({self.found})"


def check(claim: Claim, contrast: Contrast | None, verdict: Verdict | None) -> Checked:
    """Whether a claim is met, at the level of the table's verdicts, so that both say the same."""
    if contrast is None or verdict is None:
        return Checked(claim, "undecided", "no difference is measured")
    if verdict.kind in ("refused", "one seed", "equal differences"):
        return Checked(claim, "undecided", verdict.told)
    if claim.tolerance is None:
        wanted = "helps" if claim.direction == "better" else "hurts"
        if verdict.kind == "inconclusive":
            return Checked(claim, "undecided", verdict.kind)
        return Checked(claim, "met" if verdict.kind == wanted else "not met", verdict.kind)
    alpha = ALPHA / verdict.family
    off = replace(contrast.difference, mean=contrast.difference.mean - claim.to)
    if p_equivalent(off, claim.tolerance) <= alpha:
        return Checked(claim, "met", f"difference {contrast.difference.mean:+.3g}")
    outcome: Literal["not met", "undecided"] = "not met" if p_beyond(off, claim.tolerance) <= alpha else "undecided"
    return Checked(claim, outcome, f"difference {contrast.difference.mean:+.3g}")
