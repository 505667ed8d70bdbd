"""What the workers of a run printed: a file a run, whoever took it."""

import time
from collections.abc import Iterator
from pathlib import Path

from paribus.errors import ParibusError
from paribus.jobs.queue import OVER, Queue
from paribus.jobs.runs import find_run
from paribus.store.store import Store

POLL_SECONDS = 0.3
LOOK_SECONDS = 2.0


def log_path(store: Store, run: str) -> Path:
    """The log of a run."""
    return store.root / "logs" / f"{run}.log"


def read(store: Store, beginning: str, last: int | None = None, follow: bool = False) -> Iterator[str]:
    """The log of the one run whose key begins so (its `last` lines), then, with `follow`, what is added to it.

    Follows from worker to worker until the run has ended. ParibusError where there is no such run.
    """
    run = find_run(store, beginning)
    path = log_path(store, run.key)
    if not path.is_file() and not follow:
        raise ParibusError(f"{run.key}: no worker took it yet; `paribus work {run.queue}` does")
    queue, looked, ended = Queue(store, run.queue), 0.0, False
    while not path.is_file():
        for entry in queue.entries():
            if entry.run == run.key and entry.status in OVER:
                raise ParibusError(f"{run.key}: no worker took it, and none will: {entry.status} {entry.reason or ''}")
        time.sleep(LOOK_SECONDS)
    with path.open(encoding="utf-8", errors="replace") as stream:
        text = stream.read()
        yield text if last is None else "".join(text.splitlines(keepends=True)[-last:])
        while follow and not ended:
            if time.monotonic() - looked > LOOK_SECONDS:
                ended = any(entry.run == run.key and entry.status in OVER for entry in queue.entries())
                looked = time.monotonic()
            if more := stream.read():  # after the look, so that the last words are not missed
                yield more
            elif not ended:
                time.sleep(POLL_SECONDS)
