"""Where everything stands, gathered for who looks: the grid of runs, what is at work where, what is left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from paribus import nvidia
from paribus.errors import ParibusError
from paribus.jobs.plans import present
from paribus.jobs.queue import Entry, Queue
from paribus.jobs.runs import read_run
from paribus.project import Project
from paribus.store.store import Store


@dataclass(frozen=True)
class AtWork:
    """A run that a worker is at."""

    entry: Entry
    stage: str | None
    """Key of the stage being computed; None between two."""
    step: int | None
    steps: int | None
    rate: float | None
    unit: str
    """Of the rate: tokens or items a second."""
    loss: float | None
    seconds_left: float | None
    """Of the stage."""

    @property
    def share(self) -> float | None:
        """How much of the stage is done, 0 to 1."""
        return None if self.step is None or not self.steps else self.step / self.steps


@dataclass(frozen=True)
class Standing:
    """Where one queue stands."""

    name: str
    runs: tuple[Entry, ...]
    """Those of the experiment as it is now, and its tuning trials."""
    older: int
    """Runs that an earlier version of the experiment asked for and the present one does not."""
    at_work: tuple[AtWork, ...]
    seconds_left: float | None
    """Until all is done, with the workers there are; None while nothing was measured, or nobody works."""

    @property
    def trials(self) -> Counter[str]:
        """Tuning trials by status."""
        return Counter(entry.status for entry in self.runs if entry.trial)

    @property
    def reported(self) -> list[Entry]:
        """The runs that tables report."""
        return [entry for entry in self.runs if not entry.trial]


def standing(project: Project, store: Store, name: str) -> Standing:
    """Where the queue `name` stands. Runs that the experiment does not ask for any more are counted apart."""
    entries, older = present(project, store, Queue(store, name))
    at_work = tuple(_at_work(store, name, entry) for entry in entries if entry.status == "running")
    return Standing(name, tuple(entries), older, at_work, _left(entries, at_work))


def _at_work(store: Store, name: str, entry: Entry) -> AtWork:
    try:
        stages = [stage.key for stage in read_run(store, name, entry.run).stages]
    except ParibusError:
        stages = []
    key = next((key for key in stages if store.worker(key)), None)
    told = (store.progress(key) if key else None) or {}
    return AtWork(
        entry,
        key,
        told.get("step"),
        told.get("steps"),
        told.get("rate"),
        told.get("unit", ""),
        told.get("loss"),
        told.get("seconds_left"),
    )


def _left(entries: Sequence[Entry], at_work: Sequence[AtWork]) -> float | None:
    """What the runs that ended took, for each that is left, shared by the workers."""
    took = [
        entry.finished - entry.started
        for entry in entries
        if entry.status in ("done", "pruned") and entry.finished and entry.started and entry.attempt == 1
    ]
    left = [entry for entry in entries if entry.status in ("waiting", "running", "lost")]
    if not left:
        return 0.0
    if not took or not at_work:
        return None
    each = fmean(took)
    done = sum(max(0.0, each - _remaining(work, each)) for work in at_work)
    return max(each * len(left) - done, *(work.seconds_left or 0.0 for work in at_work)) / len(at_work)


def _remaining(work: AtWork, each: float) -> float:
    return each if work.seconds_left is None else min(each, work.seconds_left)


def gpus() -> list[str]:
    """A line each GPU of this machine: name, use, memory; none without NVIDIA's tool."""
    told = nvidia.ask("index", "name", "utilization.gpu", "memory.used", "memory.total")
    return [f"GPU {index} {name}: {busy} % busy, {used} MiB of {total} MiB" for index, name, busy, used, total in told]
