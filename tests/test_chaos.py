"""The chaos drill: an experiment of many short runs whose workers, queue, disk and MLflow keep failing.

At the end every run is in the table exactly once, its rows are those of an undisturbed execution bit for bit, and
nothing is left behind. `pytest -m drill tests/test_chaos.py`; CHAOS_EVENTS=2000 makes it longer.
"""

import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlflow
import psutil
import pytest
from tests.disks import full_until, small_disk
from tests.small_project import MASKS, OFTEN, SmallProject

from paribus.jobs.queue import Queue, entries

pytestmark = pytest.mark.drill(first=True)

QUEUE = "masks@debug"
WORKERS = 4
EVENTS = int(os.environ.get("CHAOS_EVENTS", "0"))
PATIENCE_SECONDS = 1800


class Laboratory(SmallProject):
    """A small project, the processes that work on it, and what disturbs them."""

    def __init__(self, folder: Path, seeds: int, port: int) -> None:
        super().__init__(folder, f"http://127.0.0.1:{port}")
        self.seeds = seeds
        self.port, self._log = port, (folder / "log").open("a")
        self._work: subprocess.Popen[str] | None = None
        self._mlflow: subprocess.Popen[bytes] | None = None
        self._asleep: list[tuple[float, psutil.Process]] = []
        self.starts = 0

    def keep_working(self) -> None:
        """Start `paribus work` unless it runs."""
        if self._work is None or self._work.poll() is not None:
            self.starts += 1
            self._work = self.start("work", *OFTEN, "--workers", str(WORKERS), output=self._log)

    def kill_work(self) -> None:
        """Kill `paribus work`, whose workers go on by themselves."""
        assert self._work
        self._work.kill()
        self._work.wait()

    def suspend(self, process: psutil.Process, seconds: float) -> None:
        """SIGSTOP, for some seconds."""
        process.suspend()
        self._asleep.append((time.monotonic() + seconds, process))

    def wake(self, at: float) -> None:
        """Let the suspended go on whose seconds are over at time `at`."""
        for pair in [pair for pair in self._asleep if pair[0] <= at]:
            self._asleep.remove(pair)
            with suppress(psutil.Error):
                pair[1].resume()

    def finish(self) -> None:
        """Wait until `paribus work` has ended by itself, and the workers of one that was killed have."""
        assert self._work
        self._work.wait(PATIENCE_SECONDS)
        psutil.wait_procs(self.workers(), PATIENCE_SECONDS)
        self.paribus("work")  # there is nothing to do but to tidy up

    def done(self) -> int:
        """The runs that are done."""
        return sum(key.startswith("finetune-") for key in self.store.keys())

    def workers(self) -> list[psutil.Process]:
        """The processes that work on runs and on data stages, whoever started them."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if {"paribus.jobs.worker", "paribus.execute"} & set(words):
                    if process.environ().get("PARIBUS_STORE") == str(self.store.root):
                        found.append(process)
        return found

    def start_mlflow(self) -> None:
        """The server that runs are mirrored to."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self.folder / 'mlflow.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self._mlflow = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=environment, start_new_session=True
        )

    def wait_for_mlflow(self) -> None:
        """Until the server answers, which takes it some seconds."""
        began = time.monotonic()
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert time.monotonic() - began < PATIENCE_SECONDS, self.said()
            time.sleep(0.5)

    def stop_mlflow(self) -> None:
        """Kill the server and what it started."""
        assert self._mlflow
        with suppress(ProcessLookupError):
            os.killpg(self._mlflow.pid, signal.SIGKILL)
        self._mlflow.wait()

    def said(self) -> str:
        """The end of what everything printed."""
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End what is left."""
        if self._work:
            self._work.kill()
            self._work.wait()
        for process in self.workers():
            with suppress(psutil.Error):
                process.kill()
        if self._mlflow:
            self.stop_mlflow()
        self._log.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def disturb(laboratory: Laboratory, events: int, draws: random.Random, special: dict[int, Callable[[], None]]) -> Any:
    """Signal a random worker again and again, and do what is `special` at its place; how often each happened.

    Runs get on between events, but not so far ahead of them that the experiment ends first.
    """
    happened: Counter[str] = Counter()
    last, began, total = 0.0, time.monotonic(), 2 * laboratory.seeds
    while happened.total() < events:
        laboratory.keep_working()
        now = time.monotonic()
        assert now - began < PATIENCE_SECONDS, f"{happened}: {laboratory.said()}"
        laboratory.wake(now)
        ahead = laboratory.done() / total > happened.total() / events
        workers = laboratory.workers()
        if now - last > (0.3 if ahead else 2.0) and workers:
            last, victim = now, draws.choice(workers)
            name = draws.choices(["kill -9", "SIGTERM", "SIGINT", "SIGSTOP"], [5, 2, 1, 2])[0]
            with suppress(psutil.Error):
                match name:
                    case "kill -9":
                        victim.kill()
                    case "SIGTERM":
                        victim.terminate()
                    case "SIGINT":
                        victim.send_signal(signal.SIGINT)
                    case "SIGSTOP":
                        # The first sleeps for longer than its lease lasts.
                        laboratory.suspend(victim, 70 if not happened[name] else draws.uniform(0.2, 6))
                happened[name] += 1
                if happened.total() in special:
                    special[happened.total()]()
        time.sleep(0.05)
    laboratory.wake(math.inf)
    return happened


@pytest.mark.parametrize(("storage", "seeds", "events"), [("journal", 6, 40), ("postgresql", 30, 200)])
def test_nothing_is_lost_and_no_number_moves_whatever_fails(
    tmp_path: Path, request: pytest.FixtureRequest, storage: str, seeds: int, events: int
) -> None:
    postgres = request.getfixturevalue("postgres") if storage == "postgresql" else None
    events = EVENTS or events
    asked = [*MASKS, "--seeds", str(seeds)]
    quiet = SmallProject(tmp_path / "quiet")
    laboratory = Laboratory(tmp_path / "chaos", seeds, free_port())
    try:
        with small_disk(laboratory.store.root, 300) as small:
            quiet.paribus("run", *asked, "--workers", "2")
            if postgres:
                postgres.drop()
            laboratory.start_mlflow()
            laboratory.paribus("queue", *asked)
            outage = threading.Timer(60, laboratory.start_mlflow)

            def mlflow_goes_for_a_minute() -> None:
                laboratory.stop_mlflow()
                outage.start()

            def storage_restarts() -> None:
                if postgres:
                    postgres.stop()
                    time.sleep(3)
                    postgres.start()

            def still_patient() -> None:
                assert time.monotonic() - began < PATIENCE_SECONDS, laboratory.said()
                # Nobody notices a full disk while the only worker left is asleep.
                laboratory.wake(time.monotonic())
                laboratory.keep_working()
                time.sleep(0.5)

            def disk_fills() -> None:
                if not small:
                    return
                full_until(laboratory.store, lambda: "paused: disk" in laboratory.paribus("status"), still_patient)

            special = {
                events // 8: storage_restarts,
                events // 4: mlflow_goes_for_a_minute,
                events // 3: disk_fills,
                events // 2: laboratory.kill_work,
                events * 2 // 3: storage_restarts,
            }
            began = time.monotonic()
            happened = disturb(laboratory, events, random.Random(0), special)
            print(f"{storage}: {dict(happened)} in {time.monotonic() - began:.0f} s, {laboratory.done()} runs done")
            while {"waiting", "running", "lost"} & {entry.status for _, entry in entries(laboratory.store, [QUEUE])}:
                still_patient()
            laboratory.finish()
            outage.join()
            laboratory.wait_for_mlflow()
            print(f"all done after {time.monotonic() - began:.0f} s, `paribus work` started {laboratory.starts} times")
            laboratory.paribus("sync")
            check(laboratory, quiet)
    finally:
        laboratory.close()


def check(laboratory: Laboratory, quiet: SmallProject) -> None:
    """Everything once, the same bits as undisturbed, and nothing left behind."""
    root, runs = laboratory.store.root, 2 * laboratory.seeds
    stands = [entry for _, entry in entries(laboratory.store, [QUEUE])]
    assert Counter(entry.status for entry in stands) == {"done": runs}, [e.reason for e in stands if e.reason]
    assert len({(entry.arm, entry.seed) for entry in stands}) == runs
    assert f"{runs} of {runs} runs are done" in laboratory.paribus("table", *MASKS)
    assert laboratory.results() == quiet.results()
    states = Counter(trial.state.name for trial in Queue(laboratory.store, QUEUE)._study.trials)
    assert states == {"COMPLETE": runs}
    assert [path.name for path in (root / "leases").glob("*.json")] == []
    assert [path.name for path in (root / "doing").iterdir()] == []
    assert list(root.glob("cards/*/[0-9]*.json")) == []
    assert laboratory.workers() == []
    client = mlflow.MlflowClient(f"http://127.0.0.1:{laboratory.port}")
    found = client.search_runs([e.experiment_id for e in client.search_experiments()], max_results=5000)
    assert found and {run.info.status for run in found} == {"FINISHED"}
    assert max(Counter(run.data.tags["paribus.id"] for run in found).values()) == 1
    print(json.dumps({"mlflow runs": len(found), "stages": len(laboratory.results())}))
