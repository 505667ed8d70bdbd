"""Workers as processes of this machine."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO, Any

from paribus.errors import ParibusError
from paribus.jobs import seats
from paribus.jobs.cards import Slot
from paribus.jobs.queue import OVER, entries
from paribus.project import Project
from paribus.spec.run import Runtime
from paribus.store.store import MIRROR, Store

POLL_SECONDS = 0.25
DEATHS = 4
SKEW_SECONDS = 10.0
"""Clocks further apart are worth a line."""


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    slot: Slot

    def said(self) -> str:
        """The end of what it printed outside of a run."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace").strip()[-2000:]


class Pool:
    """A worker process a slot on the queues `names`. One that dies is replaced, and its run taken up again.

    Not for ever: no more once DEATHS times as many as there are slots have died without a run done in between. Slots
    left empty so are filled again with the first death after a run is done.
    """

    def __init__(
        self, project: Project, store: Store, names: Sequence[str], slots: Sequence[Slot], runtime: Runtime
    ) -> None:
        self._project, self._store, self._names, self._count = project, store, names, len(slots)
        self._asked: dict[str, Any] = {
            "queues": list(names),
            "store": str(store.root.resolve()),
            "runtime": runtime.model_dump(mode="json"),
        }
        # The threads of libraries that count cores by themselves; torch's own are set in the worker.
        self._environment = {**os.environ, "OMP_NUM_THREADS": str(runtime.threads), "TOKENIZERS_PARALLELISM": "true"}
        # Workers run in the project's folder, so a path relative to this one would lead elsewhere.
        self._environment |= {"PARIBUS_STORE": self._asked["store"], "PARIBUS_DATA": str(project.data.resolve())}
        self._done = self._deaths = 0
        self._empty = list(slots)
        self._workers: list[_Worker] = []

    def _start(self, slot: Slot) -> _Worker:
        errors = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [sys.executable, "-m", "paribus.jobs.worker"],
            stdin=subprocess.PIPE,
            stderr=errors,
            cwd=self._project.root,
            env={**self._environment, **slot.environment},
        )
        assert process.stdin
        with suppress(BrokenPipeError), process.stdin:  # it may be dead already
            process.stdin.write(json.dumps({**self._asked, **asdict(slot)}).encode())
        return _Worker(process, errors, slot)

    def _fill(self) -> None:
        """A worker in every empty slot. Each is known before the next is started, so a signal in between stops it."""
        while self._empty:
            self._workers.append(self._start(self._empty.pop(0)))

    def work(self, look: Callable[[], None]) -> None:
        """Until every worker has ended; `look` is called a few times a second. Raises what a worker could not mend."""
        refused = ""
        try:
            self._fill()
            while self._workers:
                look()
                with suppress(subprocess.TimeoutExpired):
                    self._workers[0].process.wait(POLL_SECONDS)
                for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
                    self._workers.remove(worker)
                    if worker.process.returncode == 2:
                        refused = worker.said().splitlines()[-1].removeprefix("error: ")
                    elif worker.process.returncode != 0:
                        print(f"a worker ended with code {worker.process.returncode}\n{worker.said()}", file=sys.stderr)
                        self._empty.append(worker.slot)
                        if self._may_replace():
                            self._fill()
        except BaseException:
            self.stop()
            print("workers stopped: the same command goes on from the last checkpoints", file=sys.stderr)
            raise
        if refused:
            raise ParibusError(refused)

    def _may_replace(self) -> bool:
        done = sum(entry.status == "done" for _, entry in entries(self._store, self._names))
        self._deaths = self._deaths + 1 if done <= self._done else 1
        self._done = done
        return self._deaths <= DEATHS * self._count

    def stop(self) -> None:
        """Ask every worker to put its run back and wait until it has; interrupted once more, kill them."""
        try:
            for worker in self._workers:
                worker.process.terminate()
            for worker in self._workers:
                worker.process.wait()
        except BaseException:
            for worker in self._workers:
                worker.process.kill()
            raise


def drain(
    project: Project,
    store: Store,
    names: Sequence[str],
    slots: Sequence[Slot],
    runtime: Runtime,
    look: Callable[[], None],
) -> None:
    """Run workers until the queues `names` are empty; `look` is called meanwhile."""
    if abs(skew := store.clock_skew()) > SKEW_SECONDS:
        order = "ahead of" if skew > 0 else "behind"
        told = f"note: this machine's clock is {abs(skew):,.0f} s {order} the one that stamps files in {store.root}"
        print(f"{told}; leases go by the latter, but times in records are off", file=sys.stderr)
    Pool(project, store, names, slots, runtime).work(look)
    tidy(store, names)


def tidy(store: Store, names: Sequence[str]) -> None:
    """Remove what dead workers left, whatever killed them; nothing that a run of the queues `names` goes on from."""
    over = {entry.run for _, entry in entries(store, names) if entry.status in OVER}
    store.sweep(over | {MIRROR})
    seats.sweep(store)
