"""What the platform adds to a run: seconds of a warm worker outside training and evaluating, by what they go to."""

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from paribus import execute
from paribus.evaluate import finetune, held_out
from paribus.jobs import worker
from paribus.jobs.cards import ANYWHERE
from paribus.jobs.logs import log_path
from paribus.jobs.plans import enqueue
from paribus.jobs.queue import Queue
from paribus.jobs.seats import Seat
from paribus.objectives import pretrain
from paribus.plan.plan import plan
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.lease import Lease
from paribus.store.store import Store, Work
from paribus.train.checkpoint import Checkpoints
from paribus.train.lightning import pl
from paribus.train.watch import Watch

COMPUTE = "training and evaluation"
# What is timed, and what its time counts as; what is inside another counts as itself alone.
PARTS: tuple[tuple[Any, str, str], ...] = (
    (pl.loops.fit_loop._FitLoop, "run", COMPUTE),
    (held_out, "held_out", COMPUTE),
    (finetune, "predict", COMPUTE),
    (Queue, "claim", "claim"),
    (Queue, "_ended", "end of the run"),
    (Store, "verified", "inputs verified"),
    (Store, "claim", "lease of a stage"),
    (Lease, "release", "lease of a stage"),
    (Work, "commit", "commit of a stage"),
    (execute, "environment", "provenance"),
    (pretrain, "build_objective", "modules built"),
    (pretrain, "load", "rows loaded"),
    (pl.Trainer, "__init__", "Trainer made"),
    (pl.Trainer, "fit", "Trainer set up"),
    (Checkpoints, "save", "checkpoints"),
    (Watch, "_write", "curve and progress"),
)


class Clock:
    """Seconds by part. A part that begins stops the clock of the one around it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._parts = ["the rest"]
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside as `name`."""
        self._turn()
        self._parts.append(name)
        try:
            yield
        finally:
            self._turn()
            self._parts.pop()

    def take(self) -> dict[str, float]:
        """What was counted since the last time."""
        self._turn()
        taken, self.seconds = dict(self.seconds), defaultdict(float)
        return taken

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    def wrap(self, owner: Any, attribute: str, part: str) -> None:
        """Let every call of a function count as `part`."""
        inner = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                return inner(*args, **kwargs)

        setattr(owner, attribute, timed)


def measure(runs: int) -> None:
    """Run one debug run to warm the process up, then `runs` more, and print the median of each part."""
    clock = Clock()
    for owner, attribute, part in PARTS:
        clock.wrap(owner, attribute, part)
    project = find()
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.prepare()
        found = plan(project, "masking", "debug", seeds=-(-(runs + 1) // 2), results=store)
        enqueue(found, store)
        queue = Queue(store, found.name)
        runtime = Runtime(device="cpu")
        seat = Seat(store, ANYWHERE, runtime)
        taken = []
        for _ in range(runs + 1):
            clock.take()
            claim = queue.claim()
            assert claim
            with worker.logged(log_path(store, claim.run.key)):
                worker.one(project, store, claim, runtime, seat)
            taken.append(clock.take())
            if queue.entries()[len(taken) - 1].status != "done":
                raise RuntimeError(log_path(store, claim.run.key).read_text())
    warm = taken[1:]
    outside = [sum(seconds for part, seconds in run.items() if part != COMPUTE) for run in warm]
    print(f"{runs} runs at scale debug in a warm worker, medians in seconds")
    print(f"{median(outside):7.3f}  outside {COMPUTE} ({min(outside):.3f} to {max(outside):.3f})")
    parts = {part for run in warm for part in run} - {COMPUTE}
    for part in sorted(parts, key=lambda part: -median(run.get(part, 0.0) for run in warm)):
        print(f"{median(run.get(part, 0.0) for run in warm):7.3f}    {part}")
    print(f"{median(run[COMPUTE] for run in warm):7.3f}  {COMPUTE}")
