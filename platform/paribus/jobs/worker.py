"""The worker: take a run, execute its stages, tell the queue, until none is left.

One process a worker, started by pool.py as `python -m paribus.jobs.worker`; what it prints goes to the log of the run.
"""

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paribus.errors import DiskFull, LostLease, ParibusError, Stopped, StoreError
from paribus.execute import Context, PretrainingEnded, environment, execute
from paribus.interrupt import STOPPING, Interrupt
from paribus.jobs.cards import ANYWHERE, Card, Slot
from paribus.jobs.logs import log_path
from paribus.jobs.queue import Claim, Queue
from paribus.jobs.seats import Seat
from paribus.jobs.tuning import advance, prune
from paribus.plan.tuning import validation_loss
from paribus.project import Project, find
from paribus.spec.run import Runtime
from paribus.store.store import Store, writing

ASK_SECONDS = 1.0  # between looks at whether a user wants the run to stop


def work(
    project: Project,
    store: Store,
    names: Sequence[str],
    runtime: Runtime,
    slot: Slot = ANYWHERE,
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Take runs of the queues `names`, the highest priority first, until none waits or `stop` says so; how many.

    While trials that others work on may make more runs known, it waits for them.
    """
    code = environment(project)["code"]
    queues: list[Queue] = []
    seat = Seat(store, slot, runtime)
    taken = 0
    while not stop():
        if store.pauses():
            continue
        queues = queues or [Queue(store, name, code, runtime.allow_other_code) for name in names]
        for queue in queues:
            queue.reap()
        more = [advance(store, queue) for queue in queues]
        tops = {queue.name: top for queue in queues if (top := queue.top()) is not None}
        inviting = sorted((queue for queue in queues if queue.name in tops), key=lambda queue: -tops[queue.name])
        claim = _claim(inviting, seat)
        if claim is None and any(more):
            time.sleep(ASK_SECONDS)
            continue
        if claim is None:
            if not tops:
                return taken
            time.sleep(ASK_SECONDS)  # what waits is being worked on for another experiment: it is ours when that ends
            continue
        taken += 1
        with writing(store.root), logged(log_path(store, claim.run.key)):
            try:
                one(project, store, claim, runtime, seat, stop)
            except LostLease as error:  # the run is another worker's now
                print(error, file=sys.stderr)
            finally:
                _get_up(seat)
    return taken


def _claim(queues: Sequence[Queue], seat: Seat) -> Claim | None:
    """The first run of the first queue that has one, if the seat has room for it."""
    for queue in queues:
        if claim := queue.claim(seat.take):
            return claim
        if seat.full:
            break
    seat.leave()
    return None


def _get_up(seat: Seat) -> None:
    """Say what the run took of the card, and give it back."""
    if "torch" in sys.modules:  # who never loaded it took nothing
        from paribus.train.memory import free, peak_mb

        seat.look(peak_mb())
        free()
    seat.leave()


def one(
    project: Project,
    store: Store,
    claim: Claim,
    runtime: Runtime,
    seat: Seat,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Execute one run and say how it ended."""
    run = claim.run
    print(f"{run.key}: {run.queue}, arm {run.arm}, seed {run.seed}, attempt {claim.attempt}", file=sys.stderr)
    stages = run.stages
    cancelled = _sparing(claim.cancel_requested)
    try:
        ends = lambda: stop() or cancelled()  # noqa: E731
        execute(Context(project, store, runtime, run.run, ends, prune, seat.look), stages)
        rows = store.rows(next(stage.key for stage in stages if stage.kind == "evaluate"))
        # An imported encoder may come without a vocabulary head, and so without a loss to be ranked by.
        loss = math.inf if run.run.pretrained and not rows else validation_loss(rows)
    except Stopped:
        if stop():  # somebody else shall go on from the last checkpoint
            claim.preempted()
            print(f"{run.key}: preempted", file=sys.stderr)
        else:
            claim.cancelled()
    except PretrainingEnded as error:
        (claim.pruned if error.outcome == "pruned" else claim.diverged)(error.step)
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
def logged(path: Path) -> Iterator[None]:
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
    """Work as standard input says: {"queues": [...], "store": ..., "runtime": {...}, "cards": [...], "packed": ...}."""
    stop = Interrupt(*STOPPING)
    os.environ.pop("SLURM_NTASKS", None)  # a worker is one process: Lightning must not take it for a task, nor requeue
    asked = json.load(sys.stdin)
    runtime = Runtime.model_validate(asked["runtime"])
    try:
        slot = Slot(tuple(Card(**card) for card in asked["cards"]), asked["packed"])
        project = find()
        store = Store(Path(asked["store"]), project.settings.lease_seconds)
        work(project, store, asked["queues"], runtime, slot, stop)
    except ParibusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, DiskFull) else 2  # a fresh worker waits for room
    return stop.exit_code


if __name__ == "__main__":
    sys.exit(main())
