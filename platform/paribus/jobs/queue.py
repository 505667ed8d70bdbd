# ruff: noqa: A005  -- imports are absolute, so this shadows nothing
"""The queue: one Optuna study an experiment@scale, a trial for each of its runs.

    waiting -> running -> done | failed | diverged | cancelled

A run goes back to waiting when it is preempted or its worker is gone: the same trial, one write, so no death can lose
it. A retry is a new trial. Every change is made under one file lock a queue, and whoever runs holds the run's lease in
the store: so a dead worker is noticed, and a run that two experiments share is worked on once.

Optuna's `ask` is not used, since it invents a trial when none waits; nor its heartbeat, which a journal does not have.
How a study is stored is in journal.py, what a worker executes in runs.py, the worker's loop in worker.py.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from paribus.errors import ParibusError
from paribus.jobs.journal import file_name, queues, storage
from paribus.jobs.runs import QueuedRun, read_run, write_run
from paribus.plan.plan import PlannedRun
from paribus.spec.load import suggest
from paribus.store.lease import Lease, exclusive
from paribus.store.store import Store, writing

Status = Literal["waiting", "running", "lost", "done", "failed", "diverged", "cancelled"]
"""lost: running, but its worker is gone; `reap` puts it back to waiting."""
Final = Literal["done", "failed", "diverged", "cancelled"]

RETRYABLE = ("failed", "diverged", "cancelled")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a run stands. Times are seconds since the epoch."""

    run: str
    arm: str
    seed: int
    status: Status
    attempt: int
    """How often a worker took it, retries included."""
    reason: str | None
    """Why it failed or where it diverged."""
    worker: str | None
    """host:pid of the last worker that took it."""
    started: float | None
    """When that was."""
    finished: float | None
    trial: bool
    """Whether it tunes; then to diverge is an answer, no failure."""


class Queue:
    """The runs of one experiment@scale, `name`. Opening it makes it."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._store = store
        self._storage = storage(store, name)
        self._lock = store.root / "queue" / f"{file_name(name)}.lock"
        with self._changing():
            try:
                self._study = optuna.load_study(study_name=name, storage=self._storage)
            except KeyError:
                self._study = optuna.create_study(study_name=name, storage=self._storage)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is read and written inside is one step to every other worker."""
        with writing(self._store.root), exclusive(self._lock):
            yield

    # --- what users ask for ---

    def add(self, runs: Iterable[PlannedRun], priority: int = 0) -> Counter[str]:
        """Queue the runs that are new here, in their order; higher `priority` goes first.

        Returns how many were `queued`, and how many were left alone by their status: a failed run waits for `retry`.
        A done run is queued again if one of its stages has left the store, which is the truth.
        """
        finished = self._store.keys()
        counts: Counter[str] = Counter()
        with self._changing():
            known = {key: self._status(trial) for key, trial in self._latest().items()}
            for run in runs:
                write_run(self._store, self.name, run)
                status = known.get(run.key)
                if status is None or (status == "done" and any(stage.key not in finished for stage in run.stages)):
                    self._enqueue(run.key, run.arm.label, run.seed, run.trial, priority)
                    known[run.key] = "waiting"
                    counts["queued"] += 1
                else:
                    counts[status] += 1
        return counts

    def cancel(self, runs: Iterable[str] | None = None) -> int:
        """Cancel `runs` (keys; default: all): at once if they wait, else their worker is asked to; how many."""
        count = 0
        with self._changing():
            for trial in self._latest(runs).values():
                status = self._status(trial)
                if status == "running":
                    self._storage.set_trial_user_attr(trial._trial_id, "cancel", True)
                elif status in ("waiting", "lost"):
                    self._finish(trial._trial_id, "cancelled")
                else:
                    continue
                count += 1
        return count

    def retry(self, runs: Iterable[str] | None = None) -> int:
        """Queue again those of `runs` (keys; default: all) that failed, diverged or were cancelled; how many."""
        with self._changing():
            chosen = [trial for trial in self._latest(runs).values() if self._status(trial) in RETRYABLE]
            for trial in chosen:
                told = trial.user_attrs
                self._enqueue(*(told[key] for key in ("run", "arm", "seed", "trial", "priority", "attempt")))
        return len(chosen)

    def entries(self) -> list[Entry]:
        """Where each run stands, in the order they were first queued."""
        return [
            Entry(
                run=run,
                arm=trial.user_attrs["arm"],
                seed=trial.user_attrs["seed"],
                status=self._status(trial),
                attempt=trial.user_attrs["attempt"],
                reason=trial.user_attrs.get("reason"),
                worker=trial.user_attrs.get("worker"),
                started=_seconds(trial.datetime_start),
                finished=_seconds(trial.datetime_complete),
                trial=trial.user_attrs["trial"],
            )
            for run, trial in self._latest().items()
        ]

    # --- what workers do ---

    def claim(self) -> "Claim | None":
        """The next waiting run, by priority and then in the order of queueing; None if there is none to take.

        A run that another experiment's worker holds is passed over.
        """
        with self._changing():
            waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            for trial in sorted(waiting, key=lambda trial: (-trial.user_attrs["priority"], trial.number)):
                try:
                    run = read_run(self._store, self.name, trial.user_attrs["run"])
                except ParibusError as error:
                    self._finish(trial._trial_id, "failed", str(error))
                    continue
                lease = self._store.lease(run.key)
                if lease:
                    return self._start(trial, run, lease)
        return None

    def reap(self) -> int:
        """Put the runs whose worker is gone back to waiting. Returns how many there were."""
        with self._changing():
            lost = [trial for trial in self._latest().values() if self._status(trial) == "lost"]
            for trial in lost:
                self._put_back(trial._trial_id)
        return len(lost)

    def _start(self, trial: FrozenTrial, run: QueuedRun, lease: Lease) -> "Claim":
        attempt = trial.user_attrs["attempt"] + 1
        try:
            self._storage.set_trial_user_attr(trial._trial_id, "attempt", attempt)
            self._storage.set_trial_user_attr(trial._trial_id, "worker", f"{socket.gethostname()}:{os.getpid()}")
            if not self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                raise RuntimeError(f"trial {trial.number} of {self.name} was taken outside the queue's lock")
        except BaseException:
            lease.release()
            raise
        return Claim(self, trial._trial_id, run, attempt, lease)

    def _put_back(self, trial_id: int) -> None:
        """Back to waiting, unless its cancellation was asked for meanwhile."""
        if self._cancel_requested(trial_id):
            self._finish(trial_id, "cancelled")
        else:
            self._storage.set_trial_state_values(trial_id, TrialState.WAITING)

    def _finish(self, trial_id: int, status: Final, reason: str | None = None, value: float | None = None) -> None:
        """End a trial. What it says of itself comes first: Optuna lets nobody touch a finished trial."""
        self._storage.set_trial_user_attr(trial_id, "reason", reason)
        self._storage.set_trial_user_attr(trial_id, "status", status)
        if value is None:
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)
        else:
            self._storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [value])

    # --- how a run is a trial ---

    def _enqueue(self, run: str, arm: str, seed: int, trial: bool, priority: int, attempt: int = 0) -> None:
        told = {"run": run, "arm": arm, "seed": seed, "trial": trial, "priority": priority, "attempt": attempt}
        self._study.enqueue_trial({"arm": arm, "seed": seed}, user_attrs=told)

    def _latest(self, runs: Iterable[str] | None = None) -> dict[str, FrozenTrial]:
        """The last trial of each of `runs` (default: all), in the order they were first queued."""
        latest = {trial.user_attrs["run"]: trial for trial in self._study.get_trials(deepcopy=False)}
        if runs is None:
            return latest
        wanted = set(runs)
        if unknown := wanted - latest.keys():
            raise ParibusError(f"{self.name}: no run is called {min(unknown)!r}; `paribus status` lists them")
        return {run: trial for run, trial in latest.items() if run in wanted}

    def _status(self, trial: FrozenTrial) -> Status:
        if trial.state is TrialState.WAITING:
            return "waiting"
        if trial.state is TrialState.RUNNING:
            return "running" if self._store.worker(trial.user_attrs["run"]) else "lost"
        return cast(Status, trial.user_attrs["status"])

    def _cancel_requested(self, trial_id: int) -> bool:
        return bool(self._storage.get_trial(trial_id).user_attrs.get("cancel"))


class Claim:
    """The right to work on `run`, for as long as this process lives or until one of the five ends below.

    Each end raises LostLease if another worker took the run over, after this one was silent for too long.
    """

    def __init__(self, queue: Queue, trial_id: int, run: QueuedRun, attempt: int, lease: Lease) -> None:
        self.run, self.attempt = run, attempt
        self._queue, self._trial_id, self._lease = queue, trial_id, lease

    def cancel_requested(self) -> bool:
        """Whether a user wants this run to stop. Cheap: reads what was appended to the journal since."""
        return self._queue._cancel_requested(self._trial_id)

    def done(self, value: float) -> None:
        """Finished; `value` is what Optuna ranks runs by (lower is better)."""
        self._end("done", value=value)

    def failed(self, reason: str) -> None:
        """It cannot be finished; `reason` in one line."""
        self._end("failed", reason)

    def diverged(self, step: int) -> None:
        """The loss left the realm of numbers at `step`."""
        self._end("diverged", f"at step {step}")

    def cancelled(self) -> None:
        """Stopped because a user asked for it."""
        self._end("cancelled")

    def preempted(self) -> None:
        """Stopped by the machine: the run waits for the next worker, at its old place."""
        with self._ending():
            self._queue._put_back(self._trial_id)

    def _end(self, status: Final, reason: str | None = None, value: float | None = None) -> None:
        with self._ending():
            self._queue._finish(self._trial_id, status, reason, value)

    @contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            with self._queue._changing(), self._lease.held():
                yield
        finally:
            self._lease.release()


def _seconds(moment: datetime | None) -> float | None:
    return moment.timestamp() if moment else None


def names(store: Store, asked: Iterable[str] | None) -> list[str]:
    """The queues that `asked` (names with or without a scale; None: all) means."""
    there = queues(store)
    if not asked:
        return there
    found = []
    for name in asked:
        matching = [queue for queue in there if queue == name or queue.rpartition("@")[0] == name]
        if not matching:
            raise ParibusError(f"no queue is called {name!r}" + suggest(name, there))
        found += matching
    return found


def entries(store: Store, queues: Iterable[str]) -> list[tuple[str, Entry]]:
    """Where each run of `queues` stands, with its queue."""
    return [(name, entry) for name in queues for entry in Queue(store, name).entries()]
