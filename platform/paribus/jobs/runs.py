"""What a worker executes: the run as it was queued, so that a YAML file edited since changes nothing.

    runs/EXPERIMENT@SCALE/RUN.json         the resolved spec at its seed, and the arm it is
    runs/EXPERIMENT@SCALE/asked.json       the plans that were queued: seeds and overrides of each

A folder a queue, since experiments that share a run call its arm and its tasks by names of their own.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from paribus.errors import ParibusError, StoreError
from paribus.files import file_name, write_atomically
from paribus.plan.arms import spelled
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Pruning, Stage, Stages
from paribus.project import Project
from paribus.spec.experiment import Pruner
from paribus.spec.load import build
from paribus.spec.run import Run
from paribus.store.lease import exclusive
from paribus.store.store import Store, writing

ASKED = "asked.json"


@dataclass(frozen=True)
class QueuedRun:
    """A run as one experiment asked for it. `key` is the run's own hash, `arm` the label, `levels` factor to level."""

    key: str
    queue: str
    """experiment@scale."""
    arm: str
    levels: Mapping[str, str]
    run: Run
    """Complete, with the seed."""
    trial: bool = False
    """Whether it tunes, so that no table reports it."""
    pruning: Pruning | None = None
    """What may end a trial early."""

    @property
    def stages(self) -> list[Stage]:
        """Its stages, each after its inputs."""
        return Stages(self.run, self.pruning).at(self.seed)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.run.seed

    @property
    def experiment(self) -> str:
        """The experiment's name, without the scale."""
        return self.queue.rpartition("@")[0]

    @property
    def scale(self) -> str:
        """The scale's name."""
        return self.queue.rpartition("@")[2]


def run_path(store: Store, queue: str, key: str) -> Path:
    """The file of run `key` as `queue` asked for it."""
    return store.root / "runs" / file_name(queue) / f"{key}.json"


def write_run(store: Store, queue: str, planned: PlannedRun) -> None:
    """Keep `planned` as `queue` asks for it now; names and places may have changed, what has the same key has not."""
    path = run_path(store, queue, planned.key)
    content = {
        "key": planned.key,
        "queue": queue,
        "arm": planned.arm.label,
        "levels": dict(planned.arm.levels),
        "trial": planned.trial,
        "pruning": planned.pruning
        and {"pruner": planned.pruning.pruner.model_dump(mode="json"), "earlier": planned.pruning.earlier},
        "run": {**planned.arm.run.model_dump(mode="json"), "seed": planned.seed},
    }
    text = json.dumps(content, indent=1)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return  # writing 10,000 files and waiting for the disk each time takes a while
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def read_run(store: Store, queue: str, key: str) -> QueuedRun:
    """The run `key` as it was queued. StoreError if its file is gone or damaged."""
    path = run_path(store, queue, key)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        run, pruning = build(Run, content.pop("run"), f"{path}: run"), content.pop("pruning")
        if pruning:
            pruner = Pruner._choose(pruning["pruner"])
            pruning = Pruning(pruner, tuple(pruning["earlier"]))
        return QueuedRun(run=run, pruning=pruning, **content)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path}: cannot be read ({error}); queue the experiment again, then retry the run") from error


def find_run(store: Store, beginning: str) -> QueuedRun:
    """The one queued run whose key begins so."""
    paths = sorted((store.root / "runs").glob("*/run-*.json"))
    found = {path.stem: path for path in paths if path.stem.startswith(beginning)}
    if len(found) != 1:
        raise ParibusError(f"{beginning}: {len(found)} runs begin so; `paribus status --runs` lists them")
    ((key, path),) = found.items()
    return read_run(store, unquote(path.parent.name), key)


def remember(store: Store, plan: Plan) -> None:
    """Keep what `plan` was asked with, to plan and mirror it again: the most seeds for each set of overrides."""
    path = store.root / "runs" / file_name(plan.name) / ASKED
    with writing(store.root):
        path.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(path.with_name(".lock")):
            known = asked(store, plan.name)
            others = [told for told in known if spelled(told["overrides"]) != spelled(plan.overrides)]
            seeds = max([plan.seeds, *(told["seeds"] for told in known if told not in others)])
            exclusively = plan.experiment.exclusive
            now = [*others, {"seeds": seeds, "overrides": dict(plan.overrides), "exclusive": exclusively}]
            if now != known:
                write_atomically(path, json.dumps(now, indent=1))


def asked(store: Store, queue: str) -> list[dict[str, Any]]:
    """What `queue` was asked for, the oldest first: {"seeds": ..., "overrides": {path: value}, "exclusive": ...}.

    StoreError if the file is damaged.
    """
    path = store.root / "runs" / file_name(queue) / ASKED
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        told = [{key: each[key] for key in ("seeds", "overrides", "exclusive")} for each in found]
        if not all(isinstance(each["seeds"], int) and isinstance(each["overrides"], dict) for each in told):
            raise TypeError("seeds or overrides are none")
        return told
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"{path}: damaged ({error}); remove it and queue the experiment again") from error


def plan_asked(
    project: Project, store: Store, name: str, scale: str, seeds: int | None, overrides: Mapping[str, Any]
) -> Plan:
    """The plan of what was queued of an experiment: unless `seeds` says how many, as many as were ever asked for."""
    return plan(project, name, scale, seeds or seeds_asked(store, f"{name}@{scale}", overrides), overrides, store)


def seeds_asked(store: Store, queue: str, overrides: Mapping[str, Any]) -> int | None:
    """The most seeds that were ever asked for with such overrides; None where that is not known."""
    with suppress(StoreError):  # a damaged file is told to who queues
        told = asked(store, queue)
        return max((each["seeds"] for each in told if spelled(each["overrides"]) == spelled(overrides)), default=None)
    return None


def exclusive_queue(store: Store, queue: str) -> bool:
    """Whether the runs of `queue` must have their device alone."""
    return any(told["exclusive"] for told in asked(store, queue)[-1:])
