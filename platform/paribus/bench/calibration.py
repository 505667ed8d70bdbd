"""How often the verdicts of tables are right, on simulated experiments of which the truth is known.

A run's score is that of its arm, plus what its seed does to all arms (data order, start), plus what is its own. Each
metric has its own scale, and the metrics of a run go together. So the contrasts of a table are related: they share the
baseline's runs, and metrics. Everything goes through the code that judges tables. Nothing here is measured on models.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paribus.tables.stats import ALPHA, POWER, Difference, detectable, paired, seeds_for, tied
from paribus.tables.verdict import Contrast, judge

Scores = NDArray[np.float64]
"""Of experiments x arms (the baseline first) x seeds x metrics."""

SEEDS, ARMS = (3, 5, 10), (1, 5, 10)
# Standard deviations of runs: nats of masked-LM loss and points of three tasks, about as at scale tiny.
DEVIATIONS = np.array([0.01, 0.3, 1.0, 6.0])
SHARED = 1.0  # the deviation of what a seed does to all arms, over that of what is a run's own
TOGETHER = 0.6  # the correlation of two metrics within a run


@dataclass(frozen=True)
class World:
    """How the runs' own noise is distributed."""

    name: str
    noise: Callable[[np.random.Generator, tuple[int, ...]], Scores]
    """Of mean 0 and variance 1."""
    spread: float = 0.0
    """The standard deviation of the logarithm of each arm's own deviation."""


WORLDS = (
    World("normal", lambda rng, shape: rng.standard_normal(shape)),
    World("heavy tails", lambda rng, shape: rng.standard_t(4, shape) / math.sqrt(2)),
    World("skewed", lambda rng, shape: rng.exponential(1.0, shape) - 1.0),
    World("unequal arms", lambda rng, shape: rng.standard_normal(shape), spread=0.7),
)


def simulate(rng: np.random.Generator, world: World, experiments: int, arms: int, seeds: int) -> Scores:
    """Experiments of `arms` arms and a baseline, none of which differs from another."""
    metrics = len(DEVIATIONS)
    mixing = np.linalg.cholesky(np.full((metrics, metrics), TOGETHER) + (1 - TOGETHER) * np.eye(metrics))
    own = world.noise(rng, (experiments, arms + 1, seeds, metrics)) @ mixing.T
    own *= np.exp(world.spread * rng.standard_normal((experiments, arms + 1, 1, 1)))
    shared = SHARED * rng.standard_normal((experiments, 1, seeds, metrics)) @ mixing.T
    return np.asarray((own + shared) * DEVIATIONS)


def contrasts(scores: Scores, sesoi: Sequence[float] | None = None) -> Iterator[list[Contrast]]:
    """The family of each experiment: arms x metrics, more is better."""
    for experiment in scores:
        columns = [[dict(enumerate(arm)) for arm in metric] for metric in experiment.transpose(2, 0, 1).tolist()]
        yield [
            Contrast(_difference(arm, baseline), True, sesoi[metric] if sesoi is not None else None)
            for metric, (baseline, *others) in enumerate(columns)
            for arm in others
        ]


def _difference(arm: dict[int, float], baseline: dict[int, float]) -> Difference:
    found = paired(arm, baseline)
    assert found is not None
    return found


@dataclass(frozen=True)
class Share:
    """A share of `of` cases with its exact 95 % interval (Clopper and Pearson 1934)."""

    hits: int
    of: int

    @property
    def value(self) -> float:
        return self.hits / self.of

    @property
    def interval(self) -> tuple[float, float]:
        from scipy.stats import binomtest

        found = binomtest(self.hits, self.of).proportion_ci(0.95)
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.value:5.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def false_differences(scores: Scores) -> tuple[Share, float]:
    """Of experiments where nothing differs: those with a helps or hurts, and the share of intervals that hold 0."""
    families = list(contrasts(scores))
    wrong = sum(any(verdict.kind in ("helps", "hurts") for verdict in judge(family)) for family in families)
    differences = [contrast.difference for family in families for contrast in family]
    covered = sum(found.low <= 0 <= found.high for found in differences if found.low is not None is not found.high)
    return Share(wrong, len(families)), covered / len(differences)


def false_equivalents(scores: Scores) -> Share:
    """Of experiments where every arm differs by just the SESOI on every metric: those with an equivalent."""
    sesoi = 2.0 * DEVIATIONS
    moved = scores.copy()
    moved[:, 1:] += sesoi
    return Share(
        sum(any(v.within_sesoi for v in judge(family)) for family in contrasts(moved, sesoi.tolist())), len(moved)
    )


def lost_best(scores: Scores) -> Share:
    """Of experiments where one arm is a little better than all others on every metric: those where it is not bold."""
    moved = scores.copy()
    moved[:, 1] += 0.5 * DEVIATIONS
    lost = 0
    for experiment in moved.transpose(0, 3, 1, 2).tolist():
        bold = [
            tied(
                {str(arm): dict(enumerate(values)) for arm, values in enumerate(metric)}, True, ALPHA / len(experiment)
            )
            for metric in experiment
        ]
        lost += any("1" not in names for names in bold)
    return Share(lost, len(moved))


def found_effects(scores: Scores) -> Share:
    """Of experiments with one true effect of the size promised for 80 % power: those where it is found."""
    _, arms, seeds, metrics = scores.shape
    moved = scores.copy()
    effect = detectable(seeds, ALPHA / ((arms - 1) * metrics)) * math.sqrt(2)  # a difference of two runs' own noise
    moved[:, 1, :, 0] += effect * DEVIATIONS[0]
    return Share(sum(judge(family)[0].kind == "helps" for family in contrasts(moved)), len(moved))


def found_after_pilots(rng: np.random.Generator, experiments: int, arms: int, pilot: int) -> tuple[Share, float]:
    """Of experiments whose seeds a pilot's spread decided: those where the effect is found; and the median of seeds."""
    effect, needed, hits = DEVIATIONS[0], [], 0
    family = arms * len(DEVIATIONS)
    for scores in simulate(rng, WORLDS[0], experiments, 1, pilot):
        difference = _difference(*(dict(enumerate(scores[arm, :, 0].tolist())) for arm in (1, 0)))
        assert difference.sd is not None
        seeds = seeds_for(effect / difference.sd, ALPHA / family, pilot - 1)
        assert seeds is not None
        needed.append(seeds)
        moved = simulate(rng, WORLDS[0], 1, arms, seeds)
        moved[:, 1, :, 0] += effect
        hits += next(map(judge, contrasts(moved)))[0].kind == "helps"
    return Share(hits, experiments), float(np.median(needed))


def max_t(rng: np.random.Generator, scores: Scores, draws: int = 400) -> Share:
    """Of experiments where nothing differs: those with a false difference, were Holm replaced by max-|t|.

    The critical value is the 95 % quantile of the largest |t| over draws from the correlation that the differences of
    the experiment show.
    """
    wrong = 0
    for experiment in scores:
        differences = (experiment[1:] - experiment[0]).transpose(1, 0, 2).reshape(experiment.shape[1], -1)
        seeds = len(differences)
        centred = (differences - differences.mean(0)) / differences.std(0, ddof=1) / math.sqrt(seeds - 1)
        null = rng.standard_normal((draws, seeds, seeds)) @ centred
        largest = np.abs(null.mean(1) / null.std(1, ddof=1)).max(1)
        seen = np.abs(differences.mean(0) / differences.std(0, ddof=1)).max()
        wrong += seen > np.quantile(largest, 1 - ALPHA)
    return Share(int(wrong), len(scores))


def measure(experiments: int, seed: int) -> None:
    """Print all of it."""
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    print(
        f"{experiments:,} simulated experiments a line, seed {seed}, {len(DEVIATIONS)} metrics; "
        "shares with exact 95 % intervals"
    )
    for world in WORLDS:
        print(f"\n{world.name}")
        print(
            "seeds arms | false helps or hurts  | false equivalent      | best not bold         | intervals that cover"
        )
        for seeds in SEEDS:
            for arms in ARMS:
                scores = simulate(rng, world, experiments, arms, seeds)
                wrong, covered = false_differences(scores)
                shares = (wrong, false_equivalents(scores), lost_best(scores))
                told = " | ".join(f"{share!s:21}" for share in shares)
                print(f"{seeds:5} {arms:4} | {told} | {100 * covered:5.1f} %", flush=True)
    print(f"\none true effect, promised to be found in {POWER:.0%}\nseeds arms | effect (sd) | found")
    for seeds in SEEDS:
        for arms in ARMS:
            share = found_effects(simulate(rng, WORLDS[0], experiments, arms, seeds))
            size = detectable(seeds, ALPHA / (arms * len(DEVIATIONS)))
            print(f"{seeds:5} {arms:4} | {size:11.2f} | {share}", flush=True)
    print(f"\nseeds decided by a pilot, promised {POWER:.0%}\npilot arms | median seeds | found")
    for pilot in SEEDS:
        for arms in ARMS:
            share, median = found_after_pilots(rng, experiments, arms, pilot)
            print(f"{pilot:5} {arms:4} | {median:12.0f} | {share}", flush=True)
    print("\nmax-|t| in place of Holm, normal\nseeds arms | false helps or hurts")
    for seeds in SEEDS:
        for arms in ARMS:
            print(f"{seeds:5} {arms:4} | {max_t(rng, simulate(rng, WORLDS[0], experiments, arms, seeds))}", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")
