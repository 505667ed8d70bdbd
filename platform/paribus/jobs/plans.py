"""Plans into the queues and out of them again."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from paribus.errors import ParibusError
from paribus.jobs.queue import OVER, Entry, Queue, entries
from paribus.jobs.runs import asked, remember
from paribus.jobs.tuning import write_tuning
from paribus.plan.plan import Plan, plan
from paribus.project import Project
from paribus.store.declared import declare
from paribus.store.store import Store


def enqueue(found: Plan, store: Store, priority: int | None = None, again: bool = False) -> Counter[str]:
    """Queue what is missing; how many runs were `queued`, and how many left alone by their status.

    `priority`: higher goes first, also for what waits already; None leaves it as it is.

    `again`: also what failed or was cancelled before (what diverged would diverge again).
    """
    queue = Queue(store, found.name)
    remember(store, found)
    declare(store, found)
    runs = found.known
    if again:
        keys = {run.key for run in runs}
        queue.retry(e.run for e in queue.entries() if e.run in keys and e.status in ("failed", "cancelled"))
    for tuning in found.tunings:
        write_tuning(store, found.name, tuning, found.seeds, priority)
    return queue.add(runs, priority)


def present(project: Project, store: Store, queue: Queue) -> tuple[list[Entry], int]:
    """Where the runs stand that the experiment asks for as it is now, and how many older ones there are beside."""
    all_entries = queue.entries()
    problems: list[str] = []
    plans = queued(project, store, [queue.name], problems.append)
    wanted = {run.key for plan in plans for run in plan.known}
    found = [entry for entry in all_entries if entry.run in wanted or problems]
    return found, len(all_entries) - len(found)


class Statuses:
    """The status of each run in the queues `names` when called, those of an older version only until they end.

    Planning takes longer than a look, so what is asked for is found out anew once the queues hold other runs.
    """

    def __init__(self, project: Project, store: Store, names: Sequence[str]) -> None:
        self._project, self._store, self._names = project, store, names
        self._known: set[tuple[str, str]] = set()
        self._wanted: set[tuple[str, str]] = set()

    def __call__(self) -> list[str]:
        """As it is now."""
        found = entries(self._store, self._names)
        if (known := {(name, entry.run) for name, entry in found}) != self._known:
            here = {name: present(self._project, self._store, Queue(self._store, name))[0] for name in self._names}
            self._wanted = {(name, entry.run) for name, those in here.items() for entry in those}
            self._known = known
        return [e.status for name, e in found if (name, e.run) in self._wanted or e.status not in OVER]


def retry(project: Project, store: Store, name: str) -> tuple[int, list[str]]:
    """Queue again what failed or was cancelled in `name`; how many runs, and what to say of them and of others.

    Runs that only an older version of the experiment asks for would fail as they did: its correction made others.
    """
    queue = Queue(store, name)
    found, older = present(project, store, queue)
    asked = {entry.run for entry in found}
    failed = Counter(entry.reason for entry in found if entry.status == "failed")
    count = queue.retry(asked)
    told = [f"{number} failed: {reason}" for reason, number in failed.most_common()]
    if failed:
        told.append("they fail again unless that was mended")
    if diverged := [entry.run for entry in queue.entries() if entry.run in asked and entry.status == "diverged"]:
        told.append(f"runs that diverged are left alone ({len(diverged)} there): that is a result, and in the store")
    if older:
        told.append(f"runs of an older version of the experiment are left alone ({older} there)")
    return count, told


def _complain(problem: str) -> None:
    print(problem, file=sys.stderr)


def queued(
    project: Project, store: Store, names: Iterable[str], complain: Callable[[str], None] = _complain
) -> list[Plan]:
    """What the queues were asked for, planned again; what no longer plans is left out, and why it is said."""
    found = []
    for name in names:
        experiment, _, scale = name.rpartition("@")
        try:
            asks = asked(store, name)
        except ParibusError as error:
            asks = []
            complain(f"{name} is left out: {error}")
        else:
            if not asks:
                complain(f"{name} is left out: what it was asked for is gone; queue the experiment again")
        for told in asks:
            try:
                found.append(plan(project, experiment, scale, told["seeds"], told["overrides"], store))
            except ParibusError as error:
                complain(f"{name} is left out: {error}")
    return found
