"""Tuning at work: what to try next, and the runs that finished trials make known.

    runs/EXPERIMENT@SCALE/tune-DIGEST.json      an arm to be tuned, as it was queued: resolved, with how many seeds

Optuna is asked with a study made anew from the store for each suggestion, one arm a study: the answer depends on the
arm's own trials and their number alone, so a worker more, or one that was killed, changes nothing.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import FloatDistribution
from optuna.trial import TrialState

from paribus import __version__
from paribus.files import file_name, write_atomically
from paribus.jobs.queue import Queue
from paribus.plan.arms import Arm
from paribus.plan.runs import at_seed
from paribus.plan.stages import Stage, Stages
from paribus.plan.tuning import Search, Trial, Tuning, ends, rounded, tuning
from paribus.seeds import seed_for
from paribus.spec.base import canonical, digest
from paribus.spec.experiment import HyperbandPruner, MedianPruner, Pruner, Tune
from paribus.spec.load import build
from paribus.spec.run import Run
from paribus.store.store import Store

POLL_SECONDS = 0.05


def suggest(search: Search, tried: Sequence[Trial]) -> float:
    """The next value after `tried`: a function of these alone."""
    low, high = ends(search)
    range_ = FloatDistribution(low, high, log=search.log)
    sampler = optuna.samplers.TPESampler(seed=seed_for(search.seed, "suggest", len(tried)) % 2**32, n_startup_trials=1)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
    for trial in tried:
        told: dict[str, Any] = {"params": {search.path: trial.value}, "value": trial.loss}
        if trial.pruned:
            told |= {"state": TrialState.PRUNED, "intermediate_values": {trial.report: trial.loss}}
        study.add_trial(optuna.create_trial(distributions={search.path: range_}, **told))
    found = study.ask({search.path: range_}).params[search.path]
    return min(max(rounded(found), low), high)


def prune(pruner: Pruner, earlier: Sequence[Mapping[int, float]], told: Mapping[int, float]) -> bool:
    """Whether a trial ends after what it `told` (report: loss), by what each earlier trial of its arm told."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # The name decides the bracket of Hyperband together with the trial's number.
    study = optuna.create_study(study_name="trials", pruner=_made(pruner))

    def tell(reported: Mapping[int, float]) -> tuple[optuna.Trial, bool]:
        """Successive halving keeps what it was asked, report by report, so earlier trials are told over again."""
        trial, ends = study.ask(), False
        for report in sorted(reported):
            trial.report(reported[report], report)
            ends = trial.should_prune()
        return trial, ends

    for reported in earlier:
        trial, _ = tell(reported)
        if len(reported) == pruner.reports - 1:
            study.tell(trial, reported[max(reported)])
        else:  # pruned, or it diverged, maybe before it told anything
            study.tell(trial, state=TrialState.PRUNED if reported else TrialState.FAIL)
    return tell(told)[1]


def _made(pruner: Pruner) -> optuna.pruners.BasePruner:
    match pruner:
        case MedianPruner(startup=startup, warmup=warmup, reports=count):
            return optuna.pruners.MedianPruner(startup, math.ceil(warmup * count))
        case HyperbandPruner(reduction=reduction, reports=count):
            return optuna.pruners.HyperbandPruner(1, count, reduction)
    return optuna.pruners.NopPruner()


def write_tuning(store: Store, queue: str, found: Tuning, seeds: int, priority: int | None) -> None:
    """Keep what `queue` asks for: to tune an arm, then run it at `seeds` seeds."""
    search = Search(**found.tune.model_dump(include=set(Search.model_fields)))
    name = digest(f"{found.arm.label}|{canonical(found.arm.run)}|{canonical(search)}")
    path = _folder(store, queue) / f"tune-{name}.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        seeds, priority = max(seeds, before["seeds"]), before["priority"] if priority is None else priority
    content = {
        "arm": found.arm.label,
        "levels": dict(found.arm.levels),
        "baseline": found.arm.baseline,
        "run": found.arm.run.model_dump(mode="json"),
        "tune": found.tune.model_dump(mode="json"),
        "seeds": seeds,
        "priority": priority or 0,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1))


def advance(store: Store, queue: Queue) -> bool:
    """Queue what finished trials have made known: the next trials of an arm, or its runs at the value they chose.

    Returns whether trials that wait or are being worked on may make more known.
    """
    awaited: set[str] = set()
    for path in sorted(_folder(store, queue.name).glob("tune-*.json")):
        asked = json.loads(path.read_text(encoding="utf-8"))
        run = build(Run, asked["run"], f"{path}: run")
        tune = build(Tune, asked["tune"], f"{path}: tune")
        found = _settled(store, Arm(asked["arm"], asked["levels"], run, asked["baseline"]), tune)
        runs = [trial.run for trial in found.trials]
        if tuned := found.tuned:
            maker = Stages(tuned.run)
            runs += [at_seed(tuned, maker, seed) for seed in range(asked["seeds"])]
        else:
            awaited |= {trial.run.key for trial in found.trials if trial.loss is None}
        queue.add(runs, asked["priority"])
    if not awaited:
        return False
    return any(entry.run in awaited and entry.status in ("waiting", "running", "lost") for entry in queue.entries())


def _settled(store: Store, arm: Arm, tune: Tune) -> Tuning:
    """The tuning of `arm` with every suggestion made that can be."""
    while (found := tuning(arm, tune, store)).suggestion:
        _suggest(store, found.suggestion, [trial for trial in found.trials if trial.loss is not None])
    return found


def _suggest(store: Store, stage: Stage, tried: Sequence[Trial]) -> None:
    """Compute a suggestion, or wait for whoever does."""
    work = store.claim(stage)
    if work is None:
        time.sleep(POLL_SECONDS)
        return
    with work:
        if not store.has(stage.key):
            assert isinstance(stage.spec, Search)
            work.row("suggestion", suggest(stage.spec, tried))
            work.commit(store.record_provenance({"paribus": __version__, "optuna": optuna.__version__}))


def _folder(store: Store, queue: str) -> Path:
    return store.root / "runs" / file_name(queue)
