"""Work in shards: made by as many processes as there are cores, kept in a folder each, taken in order.

A shard is a function of its task alone, so its content is the same whoever makes it, and one that is there already, of
a worker that was killed, is not made again.
"""

import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TypeVar

from paribus.errors import DataError
from paribus.files import sync_to_disk

T = TypeVar("T")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Shards:
    """The shards in `folder`. Use as a context: it ends their makers. `may_stop` is called between shards."""

    def __init__(self, folder: Path, workers: int | None = None, may_stop: Callable[[], None] = lambda: None) -> None:
        self._folder, self._workers, self._may_stop = folder, workers or cores(), may_stop
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Shards":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        if kind and issubclass(kind, DataError):  # nobody will go on with these
            shutil.rmtree(self._folder, ignore_errors=True)

    def of(self, name: str, make: Callable[[T, Path], None], tasks: Iterable[T]) -> Iterator[Path]:
        """The folders of a shard a task, in order; those that are not there are filled by `make`.

        A few are made ahead. `make` and the tasks must be picklable.
        """
        numbered = enumerate(tasks)
        first = list(islice(numbered, 2))
        alone = len(first) < 2 or self._workers == 1  # a process takes a second to start
        coming: deque[tuple[Path, Future[None] | None]] = deque()
        for number, task in chain(first, numbered):
            self._may_stop()
            path, made = self._folder / f"{name}.{number}", None
            if not path.is_dir():
                if alone:
                    _write(make, task, path)
                else:
                    made = self._submit(_write, make, task, path)
            coming.append((path, made))
            if len(coming) > 2 * self._workers:
                yield self._ready(*coming.popleft())
        while coming:
            self._may_stop()
            yield self._ready(*coming.popleft())

    def _submit(self, *call: Any) -> "Future[None]":
        if self._pool is None:
            # Not forked: polars hangs after a fork.
            self._pool = ProcessPoolExecutor(self._workers, get_context("spawn"), _begin)
        return self._pool.submit(*call)

    def _ready(self, path: Path, made: "Future[None] | None") -> Path:
        try:
            if made:
                made.result()
        except BrokenProcessPool:
            self._may_stop()  # whoever stops this process may have stopped those as well
            raise
        return path


def _write(make: Callable[[T, Path], None], task: T, path: Path) -> None:
    """Fill a folder and give it its name."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        make(task, partial)
        for file in [*partial.iterdir(), partial]:
            sync_to_disk(file)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if not path.is_dir():  # else a worker that has lost its lease was still at it
            raise


def _begin() -> None:
    """Let this process end when the one that started it was killed; Ctrl-C is the other's to answer."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many processes as cores
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
