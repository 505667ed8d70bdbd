"""The worker: take a run, execute its stages, tell the queue, until none is left.

One process a worker, started by pool.py as `python -m paribus.jobs.worker`; what it prints goes to the log of the run.
"""

import json
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paribus import __version__
from paribus.errors import DiskFull, LostLease, ParibusError, Stopped, StoreError
from paribus.execute import Context, PretrainingDiverged, execute
from paribus.files import sha256
from paribus.interrupt import Interrupt
from paribus.jobs.queue import Claim, Queue
from paribus.jobs.tuning import advance
from paribus.plan.stages import Stages
from paribus.plan.tuning import validation_loss
from paribus.project import PACKAGE, Project, find
from paribus.spec.base import digest
from paribus.spec.run import Runtime
from paribus.store.store import Store, writing

ASK_SECONDS = 1.0  # between looks at whether a user wants the run to stop


def work(
    project: Project, store: Store, names: Sequence[str], runtime: Runtime, stop: Callable[[], bool] = lambda: False
) -> int:
    """Take runs of the queues `names`, the highest priority first, until none waits or `stop` says so; how many.

    While trials that others work on may make more runs known, it waits for them.
    """
    queues: list[Queue] = []
    taken = 0
    while not stop():
        if store.pauses():
            continue
        queues = queues or [Queue(store, name, program(project), runtime.allow_other_code) for name in names]
        for queue in queues:
            queue.reap()
        more = [advance(store, queue) for queue in queues]
        tops = {queue.name: top for queue in queues if (top := queue.top()) is not None}
        inviting = sorted((queue for queue in queues if queue.name in tops), key=lambda queue: -tops[queue.name])
        claim = next((claim for queue in inviting if (claim := queue.claim())), None)
        if claim is None and any(more):
            time.sleep(ASK_SECONDS)
            continue
        if claim is None:
            if not tops:
                return taken
            time.sleep(ASK_SECONDS)  # what waits is being worked on for another experiment: it is ours when that ends
            continue
        taken += 1
        with writing(store.root), _logged(log_path(store, claim.run.key)):
            try:
                _one(project, store, claim, runtime, stop)
            except LostLease as error:  # the run is another worker's now
                print(error, file=sys.stderr)
    return taken


def program(project: Project) -> str:
    """The code that decides a number, in a few words: version, and a digest of the package and the user's variants."""
    files = sorted(PACKAGE.rglob("*.py"))
    if project.settings.variants:
        files.append(project.root / project.settings.variants)
    text = "".join(sha256(path) for path in files)
    return f"paribus {__version__} (code {digest(text)[:8]})"


def log_path(store: Store, run: str) -> Path:
    """The log of a run."""
    return store.root / "logs" / f"{run}.log"


def _one(project: Project, store: Store, claim: Claim, runtime: Runtime, stop: Callable[[], bool]) -> None:
    """Execute one run and say how it ended."""
    run = claim.run
    print(f"{run.key}: {run.queue}, arm {run.arm}, seed {run.seed}, attempt {claim.attempt}", file=sys.stderr)
    stages = Stages(run.run).at(run.seed)
    cancelled = _sparing(claim.cancel_requested)
    try:
        execute(Context(project, store, runtime, run.run, lambda: stop() or cancelled()), stages)
        rows = store.rows(next(stage.key for stage in stages if stage.kind == "evaluate"))
        # An imported encoder may come without a vocabulary head, and so without a loss to be ranked by.
        loss = math.inf if run.run.pretrained and not rows else validation_loss(rows)
    except Stopped:
        if stop():  # somebody else shall go on from the last checkpoint
            claim.preempted()
            print(f"{run.key}: preempted", file=sys.stderr)
        else:
            claim.cancelled()
    except PretrainingDiverged as error:
        claim.diverged(error.step)
    except StoreError:  # no fault of the run: it goes on when the disk is writable again
        claim.preempted()
        raise
    except ParibusError as error:
        print(f"error: {error}", file=sys.stderr)
        claim.failed(str(error))
    except Exception as error:
        traceback.print_exc()
        claim.failed(f"{type(error).__name__}: {error}".splitlines()[0])
    else:
        claim.done(loss)
        print(f"{run.key}: done", file=sys.stderr)


def _sparing(question: Callable[[], bool]) -> Callable[[], bool]:
    """`question`, asked at most once in ASK_SECONDS; in between the answer is the last one."""
    answer, asked = False, 0.0

    def ask() -> bool:
        nonlocal answer, asked
        if time.monotonic() - asked >= ASK_SECONDS:
            answer, asked = question(), time.monotonic()
        return answer

    return ask


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """What this process and its children print goes to the end of `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, number in zip(saved, (1, 2), strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)


def main() -> int:
    """Work as standard input says: {"queues": [...], "store": ..., "runtime": {...}}."""
    stop = Interrupt(signal.SIGINT, signal.SIGTERM)
    asked = json.load(sys.stdin)
    runtime = Runtime.model_validate(asked["runtime"])
    try:
        work(find(), Store(Path(asked["store"]), runtime.lease_seconds), asked["queues"], runtime, stop)
    except ParibusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, DiskFull) else 2  # a fresh worker waits for room
    return stop.exit_code


if __name__ == "__main__":
    sys.exit(main())
