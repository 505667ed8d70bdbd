"""MLflow kept up to date while workers run."""

import sys
import threading
import time
from collections.abc import Sequence
from functools import partial

from paribus.errors import ParibusError
from paribus.jobs.plans import queued
from paribus.project import Project
from paribus.store.store import MIRROR, Store
from paribus.tracking.mirror import sync, table_of, tracking_uri

LOOK_SECONDS = 5.0
SHARE = 0.05
"""Of the time that looks may take: to plan many queues takes a second."""
PATIENCE_SECONDS = 5.0
"""What a server that hangs may cost at the end."""


class Mirroring:
    """Keeps MLflow up to date from a thread of this process while workers run; the last look is at the end.

    Each look is at what the queues `names` ask for by then, as `paribus sync` sees it: a process that went on with what
    it planned before an experiment was edited would bring the older version back.

    A server that is down or slow delays nobody: what it misses is in the store, and the next look catches up. That it
    went, and that it is back, is said once each.
    """

    def __init__(self, project: Project, store: Store, names: Sequence[str]) -> None:
        self._project, self._store, self._names = project, store, names
        self._stop = threading.Event()
        self._outage, self._left_out = "", set[str]()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._outage:
            self._thread.join(PATIENCE_SECONDS)
        else:
            self._thread.join()
        if self._outage:
            print("mlflow lacks what came last; `paribus sync` brings it up to date", file=sys.stderr)

    def _run(self) -> None:
        took = 0.0
        while not self._stop.wait(max(LOOK_SECONDS, took / SHARE)):
            began = time.monotonic()
            self._sync()
            took = time.monotonic() - began
        self._sync(last=True)

    def _sync(self, last: bool = False) -> None:
        """Bring MLflow up to date, one process at a time; the tables, which take a while, once at the end."""
        try:
            if lease := self._store.lease(MIRROR):
                try:
                    self._say(self._outage_now(last))
                finally:
                    lease.release()
        except (ParibusError, OSError) as error:  # the disk is full, a file is damaged
            self._say(str(error))

    def _outage_now(self, last: bool) -> str:
        """Send what is new of every plan; why that could not be, or nothing."""
        problems: list[str] = []
        for found in queued(self._project, self._store, self._names, problems.append):
            table = partial(table_of, found, self._project, self._store)
            did = sync(found, self._store, tracking_uri(self._project), True, table if last else None)
            if did.outage:
                return did.outage
        for problem in set(problems) - self._left_out:
            print(f"mlflow: {problem}; it is looked at again", file=sys.stderr)
            self._left_out.add(problem)
        return problems[0] if last and problems else ""

    def _say(self, outage: str) -> None:
        if outage and not self._outage:
            print(f"mlflow: {outage}; the runs go on, and it is asked again", file=sys.stderr)
        elif self._outage and not outage:
            print("mlflow: is back, and gets what it missed", file=sys.stderr)
        self._outage = outage
