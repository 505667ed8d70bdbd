"""How many seeds an experiment needs, from the spread of the paired differences that its finished runs show."""

from collections.abc import Iterator
from dataclasses import dataclass

from paribus.errors import SpecError
from paribus.spec.load import suggest
from paribus.tables.render import digits
from paribus.tables.stats import ALPHA, POWER, power, seeds_for, upper_sd
from paribus.tables.table import Table

SMALL = 5  # pairs; fewer leave the spread open by more than a factor of two to either side


@dataclass(frozen=True)
class Needed:
    """What it takes to find `effect` in one contrast. Effects and deviations are in the metric's unit."""

    arm: str
    metric: str
    pairs: int
    sd: float
    """Of the paired differences in the pilot."""
    sd_at_most: float
    """Its upper one-sided 80 % confidence limit."""
    effect: float
    power_now: float
    """With the pilot's number of pairs."""
    seeds: int | None
    """Of each arm, in all. The power is the mean over what the pilot leaves open of the spread. None: over 10,000."""
    cautious: int | None
    """Were the true deviation `sd_at_most`."""
    hours: float | None
    """What `seeds` less those that are there take, of this arm and the baseline."""


def needed(table: Table, effect: float | None = None, metric: str | None = None, wanted: float = POWER) -> list[Needed]:
    """For each contrast that the table judges; `effect` in place of the experiment's SESOI, `metric`: one column alone.

    Tested as the table tests: two-sided, with all its contrasts corrected for (at ALPHA over their number, where Holm
    begins; it is the power of one true difference among others that are none, and more where there are several).
    SpecError where there is no pilot, no effect or no such metric.
    """
    judged = [column.key for column in table.columns if column.judged]
    if metric is not None and metric not in judged:
        raise SpecError(f"--metric: no column {metric!r} with a verdict" + suggest(metric, judged))
    found = list(_contrasts(table, effect, metric, wanted))
    if not found:
        raise SpecError(
            f"{table.name}: no contrast has two pairs of finished runs with a spread; run a pilot of 5 seeds first"
        )
    return found


def _contrasts(table: Table, effect: float | None, metric: str | None, wanted: float) -> Iterator[Needed]:
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is None or not column.judged or metric not in (None, column.key):
                continue
            difference, verdict = cell.difference, cell.verdict
            if difference is None or difference.sd is None or verdict is None or verdict.kind == "refused":
                continue
            size = effect if effect is not None else verdict.sesoi
            if size is None:
                raise SpecError(f"{table.name}: no `sesoi` is declared for {column.key}; say --metric and --effect")
            known, alpha = difference.n - 1, ALPHA / verdict.family
            most = upper_sd(difference.sd, known)
            seeds = seeds_for(size / difference.sd, alpha, known, wanted)
            more = max(seeds - difference.n, 0) if seeds is not None else None
            seconds = verdict.seconds_a_seed
            yield Needed(
                arm=row.key,
                metric=column.key,
                pairs=difference.n,
                sd=difference.sd,
                sd_at_most=most,
                effect=size,
                power_now=power(size / difference.sd, difference.n, alpha, known),
                seeds=seeds,
                cautious=seeds_for(size / most, alpha, None, wanted),
                hours=more * seconds / 3600 if more is not None and seconds is not None else None,
            )


def rows(found: list[Needed]) -> list[dict[str, object]]:
    """For the terminal."""
    return [
        {
            "arm": each.arm,
            "metric": each.metric,
            "pairs": each.pairs,
            "sd": f"{each.sd:.3g}",
            "sd at most": f"{each.sd_at_most:.3g}",
            "effect": f"{each.effect:g}",
            "power now": f"{each.power_now:.0%}",
            "seeds": _count(each.seeds),
            "cautious": _count(each.cautious),
            "more hours": "" if each.hours is None else digits.hours(each.hours).removesuffix(" h"),
        }
        for each in found
    ]


def _count(seeds: int | None) -> str:
    return "over 10,000" if seeds is None else f"{seeds:,}"


def notes(found: list[Needed], wanted: float) -> list[str]:
    """How the rows are to be read."""
    told = [
        f"seeds: of each arm in all, to find the effect with {wanted:.0%} power after the table's correction, on "
        "average over what the pilot leaves open of the spread; cautious: if the spread is at its upper 80 % limit. "
        "Hours of the arm and the baseline on one worker."
    ]
    if (small := min(each.pairs for each in found)) < SMALL:
        told.append(f"{small} pairs are a small pilot: these counts may change much. Run {SMALL} seeds or more.")
    return told
