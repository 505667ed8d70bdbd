"""Tuning at work: what to try next, and the runs that finished trials make known.

    runs/EXPERIMENT@SCALE/tune-DIGEST.json      an arm to be tuned, as it was queued: resolved, with how many seeds

Optuna is asked with a study made anew from the store for each suggestion, one arm a study: the answer depends on the
arm's own trials and their number alone, so a worker more, or one that was killed, changes nothing.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.distributions import FloatDistribution

from paribus import __version__
from paribus.files import write_atomically
from paribus.jobs.queue import Queue
from paribus.jobs.storage import file_name
from paribus.plan.arms import Arm
from paribus.plan.runs import at_seed
from paribus.plan.stages import Stage, Stages
from paribus.plan.tuning import Search, Tuning, ends, rounded, tuning
from paribus.seeds import seed_for
from paribus.spec.base import canonical, digest
from paribus.spec.experiment import Tune
from paribus.spec.load import build
from paribus.spec.run import Run
from paribus.store.store import Store

POLL_SECONDS = 0.05


def suggest(search: Search, tried: Sequence[tuple[float, float]]) -> float:
    """The next value after `tried` (values and their losses): a function of these alone."""
    low, high = ends(search)
    range_ = FloatDistribution(low, high, log=search.log)
    sampler = optuna.samplers.TPESampler(seed=seed_for(search.seed, "suggest", len(tried)) % 2**32, n_startup_trials=1)
    study = optuna.create_study(sampler=sampler, pruner=optuna.pruners.NopPruner())
    for value, loss in tried:
        study.add_trial(
            optuna.create_trial(params={search.path: value}, distributions={search.path: range_}, value=loss)
        )
    found = study.ask({search.path: range_}).params[search.path]
    return min(max(rounded(found), low), high)


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
        _suggest(store, found.suggestion, [(t.value, t.loss) for t in found.trials if t.loss is not None])
    return found


def _suggest(store: Store, stage: Stage, tried: Sequence[tuple[float, float]]) -> None:
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
