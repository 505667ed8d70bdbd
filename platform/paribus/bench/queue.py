# ruff: noqa: A005  -- imports are absolute, so this shadows nothing
"""What the queue costs: runs drained a second by workers that do nothing with them, and the time of one claim."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

from paribus.jobs.queue import Queue
from paribus.jobs.storage import public
from paribus.plan.plan import plan
from paribus.project import find
from paribus.store.store import Store

EXPERIMENT, SCALE = "masking", "debug"
FEW, MANY = 10, 2000

# What a worker of the benchmark does: wait for the start, then take runs and give them back done.
WORKER = """
import json, sys, time
from pathlib import Path
from paribus.jobs.queue import Queue
from paribus.store.store import Store
queue = Queue(Store(Path(sys.argv[1])), sys.argv[2])
print("ready", flush=True)
input()
taken, seconds = [], []
while True:
    began = time.perf_counter()
    claim = queue.claim()
    seconds.append(time.perf_counter() - began)
    if claim is None:
        break
    taken.append(claim.run.key)
    claim.done(0.0)
print(json.dumps([taken, seconds]))
"""


def measure(runs: int, workers: int, url: str | None) -> None:
    """Print the figures of the journal and, where `url` names one, of a PostgreSQL database."""
    print(f"{workers} workers, {runs} runs; {os.cpu_count()} cores")
    for where in (None, *([url] if url else ())):
        print(public(where) if where else "journal file")
        with tempfile.TemporaryDirectory() as folder:
            _storage(where, lambda: _drain(Path(folder), runs, workers))
            _storage(where, lambda: _latency(Path(folder)))


def _storage(url: str | None, act: Callable[[], None]) -> None:
    os.environ.pop("PARIBUS_STORAGE", None)
    if url:
        os.environ["PARIBUS_STORAGE"] = url
    act()


def _filled(root: Path, name: str, runs: int) -> Queue:
    """A queue of `runs` waiting runs in a store of its own. Its study is named after the folder, so it is new."""
    queue = Queue(Store(root / name), f"bench-{root.name}-{name}@{SCALE}")
    arms = 2
    queue.add(plan(find(), EXPERIMENT, SCALE, seeds=-(-runs // arms)).runs[:runs])
    return queue


def _drain(root: Path, runs: int, workers: int) -> None:
    queue = _filled(root, "drain", runs)
    command = [sys.executable, "-c", WORKER, str(root / "drain"), queue.name]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(workers)
    ]
    for worker in started:
        assert worker.stdout and worker.stdout.readline() == "ready\n"
    began = time.perf_counter()
    for worker in started:
        assert worker.stdin
        worker.stdin.write("\n")
        worker.stdin.flush()
    answers = [json.loads(worker.communicate()[0]) for worker in started]
    took = time.perf_counter() - began
    counts = Counter(run for taken, _ in answers for run in taken)
    done = sum(entry.status == "done" for entry in queue.entries())
    print(
        f"  drained {runs / took:.1f} runs a second; {len(counts)} of {runs} runs taken, "
        f"{sum(counts.values()) - len(counts)} of them twice, {done} done"
    )
    print(f"  a claim among {workers} workers: {_spread([s for _, seconds in answers for s in seconds])}")


def _latency(root: Path) -> None:
    for missing in (FEW, MANY):
        queue = _filled(root, f"latency-{missing}", missing)
        seconds = []
        for _ in range(FEW):
            began = time.perf_counter()
            claim = queue.claim()
            seconds.append(time.perf_counter() - began)
            assert claim
            claim.preempted()
        print(f"  a claim by one worker, {missing} runs missing: {_spread(seconds)}")


def _spread(seconds: list[float]) -> str:
    cuts = quantiles(seconds, n=100)
    return f"median {1000 * cuts[49]:.1f} ms, 99 % below {1000 * cuts[98]:.1f} ms"
