"""Who is working on what: a lease is a small file with a heartbeat.

A lease is stale when its process is gone (seen at once on the same host) or its heartbeat is older than the grace
time (another host, or a process that was stopped), both by the file server's clock: hosts whose own clocks differ
agree. Claims, takeovers and commits happen under one flock, so exactly one worker wins; a worker that lost its lease
while asleep finds out before it can commit.
"""

import fcntl
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from paribus.errors import LostLease
from paribus.files import temporary


def _me() -> dict[str, Any]:
    started = psutil.Process().create_time()
    return {"host": socket.gethostname(), "pid": os.getpid(), "started": started, "job": slurm_job(os.environ)}


def slurm_job(environment: Mapping[str, str]) -> str | None:
    """The Slurm job that a process belongs to, as squeue calls it: JOB or ARRAY_TASK."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array else environment.get("SLURM_JOB_ID")


def server_time(folder: Path) -> float:
    """Seconds since the epoch by the clock that stamps files in `folder`: on a shared folder the file server's."""
    path = folder / ".clock"
    try:
        path.touch(0o666)
        return path.stat().st_mtime
    except OSError:  # a store that can only be read
        return time.time()


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the file lock at `path`; the kernel frees it when the holder dies."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child forked meanwhile would keep a lock that is only closed
        os.close(descriptor)


class Lease:
    """A claim on `name`, kept alive by a thread until released."""

    def __init__(self, folder: Path, name: str, grace_seconds: float) -> None:
        self.name = name
        self._path = folder / f"{name}.json"
        self._lock = folder / ".lock"
        self._grace = grace_seconds
        self.owner = uuid.uuid4().hex
        self.lost = False
        """Another worker took the lease over; seen by the heartbeat."""
        self._stop = threading.Event()

    def acquire(self) -> bool:
        """Take the lease if nobody holds it or its holder is gone."""
        with exclusive(self._lock):
            if is_live(self._path, self._grace):
                return False
            partial = temporary(self._path)
            try:
                partial.write_text(json.dumps({"owner": self.owner, **_me()}))  # not synced: it dies with the machine
                partial.replace(self._path)
            finally:
                partial.unlink(missing_ok=True)
        threading.Thread(target=self._beat, daemon=True, name=f"lease {self.name}").start()
        return True

    def _beat(self) -> None:
        while not self._stop.wait(self._grace / 4):
            try:
                if not self._is_mine():
                    self.lost = True
                    return
                os.utime(self._path)
            except OSError:
                pass  # unreachable for now: `held` will tell before anything is committed

    def _is_mine(self) -> bool:
        try:
            return bool(json.loads(self._path.read_text())["owner"] == self.owner)
        except (FileNotFoundError, ValueError, KeyError):
            return False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do something only this lease's holder may do; nobody can take the lease over meanwhile."""
        with exclusive(self._lock):
            if not self._is_mine():
                raise LostLease(f"{self.name}: another worker took this over; this result is dropped")
            yield

    def release(self) -> None:
        """Give the lease up; harmless if it was lost."""
        self._stop.set()
        with exclusive(self._lock):
            if self._is_mine():
                self._path.unlink(missing_ok=True)


def sweep(folder: Path, grace_seconds: float, over: Callable[[str], bool]) -> None:
    """Remove leases on what is `over`, by name, whose holders died after they had ended it and before they gave it up.
    """
    with exclusive(folder / ".lock"):
        for path in folder.glob("*.json"):
            if over(path.stem) and not is_live(path, grace_seconds):
                path.unlink(missing_ok=True)


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds the lease at `path`, or None. Adds `silent_seconds`, the time since the last heartbeat."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        found["silent_seconds"] = server_time(path.parent) - path.stat().st_mtime
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return None  # torn by a power cut: as good as none, since leases are written by rename


def is_live(path: Path, grace_seconds: float) -> bool:
    """Whether somebody holds the lease at `path` and is alive."""
    found = holder(path)
    if found is None or found["silent_seconds"] > grace_seconds:
        return False
    if found["host"] != socket.gethostname():
        return True
    try:
        process = psutil.Process(found["pid"])
        same = abs(process.create_time() - found["started"]) < 1.0
        return same and process.status() != psutil.STATUS_ZOMBIE  # killed, but its parent has not looked yet
    except psutil.NoSuchProcess:
        return False
