"""MLflow kept up to date while workers run."""

import sys
import threading
from collections.abc import Sequence

from paribus.plan.plan import Plan, again
from paribus.project import Project
from paribus.store.store import Store
from paribus.tracking.mirror import sync, tracking_uri

LOOK_SECONDS = 5.0


class Mirroring:
    """Keeps MLflow up to date from a thread of this process while workers run; the last look is at the end."""

    def __init__(self, project: Project, store: Store, plans: Sequence[Plan]) -> None:
        self._project, self._store, self._plans = project, store, plans
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror")

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sync()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._sync()

    def _sync(self) -> None:
        for plan in self._plans:
            outage = self._outage(again(plan, self._project, self._store))
            if outage and outage not in self._said:
                print(f"mlflow: {outage}; `paribus sync` will catch up", file=sys.stderr)
                self._said.add(outage)

    def _outage(self, plan: Plan) -> str:
        """Bring MLflow up to date with `plan`, one process at a time; why it could not be, if so."""
        lease = self._store.lease("mirror")
        if lease is None:
            return ""  # another command is at it
        try:
            return sync(plan, self._store, tracking_uri(self._project), live=True).outage
        finally:
            lease.release()
