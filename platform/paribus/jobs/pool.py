"""Workers as processes of this machine."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict

from paribus.errors import ParibusError
from paribus.jobs.cards import Slot
from paribus.jobs.queue import entries
from paribus.project import Project
from paribus.spec.run import Runtime
from paribus.store.store import Store

POLL_SECONDS = 0.25
POOLS = 4
SKEW_SECONDS = 10.0
"""Clocks further apart are worth a line."""


class Pool:
    """A worker process a slot on the queues `names`. A worker that dies is not replaced: the others take its run."""

    def __init__(
        self, project: Project, store: Store, names: Sequence[str], slots: Sequence[Slot], runtime: Runtime
    ) -> None:
        asked = {"queues": list(names), "store": str(store.root.resolve()), "runtime": runtime.model_dump(mode="json")}
        # The threads of libraries that count cores by themselves; torch's own are set in the worker.
        environment = {**os.environ, "OMP_NUM_THREADS": str(runtime.threads), "TOKENIZERS_PARALLELISM": "true"}
        # Workers run in the project's folder, so a path relative to this one would lead elsewhere.
        environment |= {"PARIBUS_STORE": str(store.root.resolve()), "PARIBUS_DATA": str(project.data.resolve())}
        self._errors = [tempfile.TemporaryFile() for _ in slots]
        self._workers = []
        for slot, errors in zip(slots, self._errors, strict=True):
            worker = subprocess.Popen(
                [sys.executable, "-m", "paribus.jobs.worker"],
                stdin=subprocess.PIPE,
                stderr=errors,
                cwd=project.root,
                env={**environment, **slot.environment},
            )
            assert worker.stdin
            worker.stdin.write(json.dumps({**asked, **asdict(slot)}).encode())
            worker.stdin.close()
            self._workers.append(worker)

    def wait(self, look: Callable[[], None]) -> None:
        """Until every worker has ended; `look` is called a few times a second. Raises what a worker could not mend."""
        try:
            while any(worker.poll() is None for worker in self._workers):
                look()
                try:
                    next(worker for worker in self._workers if worker.poll() is None).wait(POLL_SECONDS)
                except (subprocess.TimeoutExpired, StopIteration):
                    pass
        except BaseException:
            self.stop()
            raise
        for worker, errors in zip(self._workers, self._errors, strict=True):
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            if worker.returncode == 2:
                raise ParibusError(said.splitlines()[-1].removeprefix("error: "))
            if worker.returncode != 0:
                print(f"a worker ended with code {worker.returncode}\n{said[-2000:]}", file=sys.stderr)

    def stop(self) -> None:
        """Ask every worker to put its run back and wait until it has."""
        for worker in self._workers:
            if worker.poll() is None:
                worker.terminate()
        for worker in self._workers:
            worker.wait()


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
    # A worker that was killed leaves its run behind; give it to fresh workers, but not for ever.
    for _ in range(POOLS):
        Pool(project, store, names, slots, runtime).wait(look)
        if not {"waiting", "lost"} & {entry.status for _, entry in entries(store, names)}:
            return
