# ruff: noqa: A005  -- imports are absolute, so this shadows nothing
"""The queue: one Optuna study an experiment@scale, a trial for each of its runs that was ever taken.

    waiting -> running -> done | pruned | failed | diverged | cancelled

What waits is the plan, a file in the store (runs/NAME/plan.json); a run becomes a trial when a worker takes it, so a
study is as small as the work that was done. A run goes back to waiting when it is preempted or its worker is gone: the
same trial, one write, so no death can lose it. A retry is a new trial. Every change is made under one lock a queue, and
whoever runs holds the run's lease in the store: so a dead worker is noticed, and a run that two experiments share is
worked on once.

Optuna's `ask` is not used, since it invents a trial when none waits; nor its heartbeat, which a journal does not have.
Where a study is stored is in storage.py, what a worker executes in runs.py, the worker's loop in worker.py.
"""

import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, cast, get_args

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from paribus.errors import ParibusError, StoreError
from paribus.files import file_name, write_atomically
from paribus.jobs.runs import QueuedRun, read_run, write_run
from paribus.jobs.storage import PLAN, is_outage, open_storage, patiently, queues
from paribus.plan.plan import PlannedRun
from paribus.spec.base import canonical, digest
from paribus.spec.load import suggest
from paribus.store.lease import Lease, slurm_job
from paribus.store.store import Store, writing

Status = Literal["waiting", "running", "lost", "done", "pruned", "failed", "diverged", "cancelled"]
"""lost: running, but its worker is gone; `reap` puts it back to waiting."""
Final = Literal["done", "pruned", "failed", "diverged", "cancelled"]
OVER = get_args(Final)

RETRYABLE = ("failed", "diverged", "cancelled")
ALIKE = 2
"""So many runs of one arm that fail with the same words stop the arm's other runs."""
DEATHS = 100
"""A run whose worker died so often has failed: it may be what kills them."""


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
    """Why it failed, or where it diverged or was pruned."""
    worker: str | None
    """host:pid of the last worker that took it, with its GPU and Slurm job."""
    started: float | None
    """When that was."""
    finished: float | None
    trial: bool
    """Whether it tunes; then to diverge is an answer, no failure."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A line of the plan: a run that was asked for."""

    run: str
    arm: str
    seed: int
    trial: bool
    priority: int
    needs: tuple[str, ...]
    """The keys of its stages up to its fine-tunings, which other runs may share."""
    spec: str
    """The digest of what it is but for its seed: an arm's runs of one spec fail alike, those of a corrected one not."""
    turn: int = 0
    """How often it was asked for again: only a trial of this turn says where it stands."""
    stopped: str | None = None
    """Why it shall not be taken, though nobody has tried."""


class Queue:
    """The runs of one experiment@scale, `name`. Opening it makes it.

    `code` says what program the workers here run, see `Queue.claim`; `any_code`: whether others may join in.
    """

    def __init__(self, store: Store, name: str, code: str = "", any_code: bool = False) -> None:
        self.name = name
        self._store, self._code = store, code
        self._joined = any_code or not code
        self._opened = open_storage(store, name)
        self._storage = self._opened.storage
        self._path = store.root / "runs" / file_name(name) / PLAN
        self._plan: list[Asked] = []
        self._read_at: tuple[int, int] | None = None
        self._study = self._open()

    @patiently
    def _open(self) -> optuna.Study:
        with self._changing():
            try:
                study = optuna.load_study(study_name=self.name, storage=self._storage)
            except KeyError:
                study = optuna.create_study(study_name=self.name, storage=self._storage)
                study.set_user_attr("store", self._store.id)
            owner = study.user_attrs.get("store", self._store.id)
        if owner != self._store.id:
            raise StoreError(
                f"{self._opened.where}: {self.name} is of the store with id {owner}, but {self._store.root} has id "
                f"{self._store.id}; point PARIBUS_STORE to that one, or PARIBUS_STORAGE to a database of this one's"
            )
        return study

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """What is read and written inside is one step to every other worker."""
        with writing(self._store.root), self._opened.lock():
            yield

    # --- what users ask for ---

    @patiently
    def add(self, runs: Iterable[PlannedRun], priority: int | None = None) -> Counter[str]:
        """Queue the runs that are new here, in their order; higher `priority` goes first (None: as before, else 0).

        Returns how many were `queued`, and how many were left alone by their status: a failed run waits for `retry`.
        A done run is queued again if one of its stages has left the store, which is the truth.
        """
        finished = self._store.keys()
        counts: Counter[str] = Counter()
        with self._changing():
            plan = {asked.run: asked for asked in self._read()}
            known = {run: self._status(plan[run], trial) for run, trial in self._latest().items()}
            for run in runs:
                write_run(self._store, self.name, run)
                status, asked = known.get(run.key), plan.get(run.key)
                if asked is None:
                    needs = tuple(stage.key for stage in run.stages if stage.kind != "finetune")
                    spec = digest(canonical(run.arm.run))
                    plan[run.key] = Asked(run.key, run.arm.label, run.seed, run.trial, priority or 0, needs, spec)
                    status = None
                else:
                    new = asked.priority if priority is None else priority
                    plan[run.key] = replace(asked, arm=run.arm.label, priority=new)
                if status == "done" and any(stage.key not in finished for stage in run.stages):
                    plan[run.key] = replace(plan[run.key], turn=plan[run.key].turn + 1)
                    status = None
                if status is None:
                    counts["queued"] += 1
                    known[run.key] = "waiting"
                else:
                    counts[status] += 1
            self._write(plan.values())
        return counts

    @patiently
    def cancel(self, runs: Iterable[str] | None = None) -> int:
        """Cancel `runs` (keys; default: all): at once if they wait, else their worker is asked to; how many."""
        count = 0
        with self._changing():
            plan, latest = self._chosen(runs), self._latest()
            for asked in plan:
                trial = latest[asked.run]
                status = self._status(asked, trial)
                if status == "running" and trial:
                    self._storage.set_trial_user_attr(trial._trial_id, "cancel", True)
                elif status in ("waiting", "lost"):
                    if trial is None or trial.state.is_finished():
                        self._add_trial(asked, trial, TrialState.FAIL, end=_end("cancelled"))
                    else:
                        self._finish(trial._trial_id, "cancelled")
                else:
                    continue
                count += 1
        return count

    @patiently
    def retry(self, runs: Iterable[str] | None = None) -> int:
        """Queue again those of `runs` (keys; default: all) that failed, diverged or were cancelled; how many.

        Not those whose pretraining is in the store as one that diverged: they would end so again at once.
        """
        with self._changing():
            latest = self._latest()
            status = {asked: self._status(asked, latest[asked.run]) for asked in self._chosen(runs)}
            chosen = {asked.run for asked, at in status.items() if at in RETRYABLE and not self._is_settled(asked, at)}
            self._write(
                replace(asked, turn=asked.turn + 1, stopped=None) if asked.run in chosen else asked
                for asked in self._read()
            )
        return len(chosen)

    def _is_settled(self, asked: Asked, status: Status) -> bool:
        """Whether that a run diverged is a result in the store."""
        return status == "diverged" and any(key.startswith("pretrain-") and self._store.has(key) for key in asked.needs)

    @patiently
    def entries(self) -> list[Entry]:
        """Where each run stands, in the order they were first queued."""
        plan, latest = self._read(), self._latest()
        return [self._entry(asked, latest[asked.run]) for asked in plan]

    def _entry(self, asked: Asked, trial: FrozenTrial | None) -> Entry:
        taken: dict[str, Any] = trial.user_attrs.get("taken", {}) if trial else {}
        mine = trial is not None and trial.user_attrs["turn"] == asked.turn
        end: dict[str, Any] = trial.user_attrs.get("end", {}) if trial and mine else {}
        return Entry(
            run=asked.run,
            arm=asked.arm,
            seed=asked.seed,
            status=self._status(asked, trial),
            attempt=taken.get("attempt", 0),
            reason=end.get("reason") or asked.stopped,
            worker=taken.get("worker"),
            started=taken.get("time"),
            finished=end.get("time"),
            trial=asked.trial,
        )

    # --- what workers do ---

    @patiently
    def top(self) -> int | None:
        """The highest priority of what waits; None if nothing does."""
        return max((asked.priority for asked, _ in self._waiting()), default=None)

    @patiently
    def claim(self, fits: Callable[[QueuedRun], bool] = lambda run: True) -> "Claim | None":
        """The next waiting run, by priority and then in the order of queueing; None if there is none to take.

        A run that another experiment's worker holds is passed over, and one that would only wait for a stage that
        somebody is computing goes after its equals. One that does not fit here now is waited for, and nothing
        behind it goes first. ParibusError where a live worker of this queue runs other code.
        """
        with self._changing():
            waiting = self._waiting()
            if waiting:
                self._check_code()
            leased = {path.stem for path in (self._store.root / "leases").glob("*.json")}
            made = {key for asked, _ in waiting for key in asked.needs if key in leased and self._store.worker(key)}
            waiting.sort(key=lambda each: (-each[0].priority, not made.isdisjoint(each[0].needs)))
            for asked, trial in waiting:
                try:
                    run = read_run(self._store, self.name, asked.run)
                except ParibusError as error:
                    self._add_trial(asked, trial, TrialState.FAIL, end=_end("failed", str(error)))
                    continue
                if not fits(run):
                    return None
                lease = self._store.lease(run.key)
                if lease:
                    return self._start(asked, trial, run, lease)
        return None

    def _waiting(self) -> list[tuple[Asked, FrozenTrial | None]]:
        latest = self._latest()
        return [
            (asked, latest[asked.run])
            for asked in self._read()
            if self._status(asked, latest[asked.run], look=False) == "waiting"
        ]

    @patiently
    def reap(self) -> int:
        """Put the runs whose worker is gone back to waiting. Returns how many there were."""
        with self._changing():
            latest = self._latest()
            lost = [a for a in self._read() if latest[a.run] and self._status(a, latest[a.run]) == "lost"]
            for asked in lost:
                trial = cast(FrozenTrial, latest[asked.run])
                deaths = trial.user_attrs.get("deaths", 0) + 1
                if deaths >= DEATHS:
                    self._finish(trial._trial_id, "failed", f"its worker died {deaths} times")
                    continue
                self._storage.set_trial_user_attr(trial._trial_id, "deaths", deaths)
                self._put_back(trial._trial_id)
        return len(lost)

    def _check_code(self) -> None:
        """Asked before the first run: whoever works on this queue runs what this worker runs."""
        if self._joined:
            return
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            taken = trial.user_attrs["taken"]
            if taken["code"] not in ("", self._code) and self._store.worker(trial.user_attrs["run"]):
                raise ParibusError(
                    f"{self.name}: {taken['worker']} works on it with {taken['code']}, this worker would with "
                    f"{self._code}; install the same, or join it with `paribus work --allow-other-code`"
                )
        self._joined = True

    def _start(self, asked: Asked, trial: FrozenTrial | None, run: QueuedRun, lease: Lease) -> "Claim":
        attempt = (trial.user_attrs.get("taken", {}).get("attempt", 0) if trial else 0) + 1
        worker = " ".join(filter(None, (f"{socket.gethostname()}:{os.getpid()}", place())))
        taken = {"attempt": attempt, "worker": worker, "time": time.time(), "code": self._code}
        try:
            if trial is None or trial.state.is_finished():
                trial_id = self._add_trial(asked, trial, TrialState.RUNNING, taken=taken)
            else:
                trial_id = trial._trial_id
                self._storage.set_trial_user_attr(trial_id, "taken", taken)
                if not self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                    raise RuntimeError(f"trial {trial.number} of {self.name} was taken outside the queue's lock")
        except BaseException:
            lease.release()
            raise
        return Claim(self, trial_id, run, attempt, lease)

    def _put_back(self, trial_id: int) -> None:
        """Back to waiting, unless its cancellation was asked for meanwhile."""
        if self._cancel_requested(trial_id):
            self._finish(trial_id, "cancelled")
        elif self._storage.get_trial(trial_id).state is TrialState.RUNNING:
            self._storage.set_trial_state_values(trial_id, TrialState.WAITING)

    def _finish(self, trial_id: int, status: Final, reason: str | None = None, value: float | None = None) -> None:
        """End a trial. What it says of itself comes first: Optuna lets nobody touch a finished trial."""
        try:
            self._storage.set_trial_user_attr(trial_id, "end", _end(status, reason))
            if status == "pruned":
                self._storage.set_trial_state_values(trial_id, TrialState.PRUNED)
            elif value is None:
                self._storage.set_trial_state_values(trial_id, TrialState.FAIL)
            else:
                self._storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [value])
        except UpdateFinishedTrialError:
            # Asked a second time, since the answer to the first was lost with the connection.
            if self._storage.get_trial(trial_id).user_attrs["end"]["status"] != status:
                raise

    @patiently
    def _ended(self, trial_id: int, lease: Lease, status: Final, reason: str | None, value: float | None) -> None:
        with self._changing(), lease.held():
            self._finish(trial_id, status, reason, value)
            if status == "failed":
                self._stop_arm(self._storage.get_trial(trial_id).user_attrs["run"], reason)

    @patiently
    def _preempted(self, trial_id: int, lease: Lease) -> None:
        with self._changing(), lease.held():
            self._put_back(trial_id)

    def _stop_arm(self, run: str, reason: str | None) -> None:
        """Leave the rest of the arm that `run` is of alone, if it fails each time with the same words."""
        latest = self._latest()
        plan = self._read()
        spec = next((asked.spec for asked in plan if asked.run == run), None)  # None: the plan was deleted meanwhile
        alike = [
            asked
            for asked in plan
            if asked.spec == spec
            and (entry := self._entry(asked, latest[asked.run])).status == "failed"
            and entry.reason == reason
            and not asked.stopped
        ]
        if len(alike) < ALIKE:
            return
        waiting = {asked.run for asked, _ in self._waiting() if asked.spec == spec}
        if waiting:
            why = f"not tried: {len(alike)} runs of this arm failed alike: {reason}"
            self._write(replace(asked, stopped=why) if asked.run in waiting else asked for asked in plan)
            print(f"{self.name}: arm {alike[0].arm} is stopped, {len(waiting)} runs {why}", file=sys.stderr)

    # --- the plan, and how a run is a trial ---

    def _read(self) -> list[Asked]:
        """The plan. Read again when the file changed."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return []
        at = stat.st_mtime_ns, stat.st_ino
        if at != self._read_at:
            try:
                told = json.loads(self._path.read_text(encoding="utf-8"))
                self._plan = [Asked(**{**line, "needs": tuple(line["needs"])}) for line in told]
            except (ValueError, TypeError, KeyError) as error:
                raise StoreError(f"{self._path}: damaged ({error}); remove it and queue again") from error
            self._read_at = at
        return self._plan

    def _write(self, plan: Iterable[Asked]) -> None:
        plan = list(plan)
        if plan != self._read():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps([asdict(asked) for asked in plan]))

    def _chosen(self, runs: Iterable[str] | None) -> list[Asked]:
        """Those of the plan that `runs` names (default: all)."""
        plan = self._read()
        if runs is None:
            return plan
        wanted = set(runs)
        if unknown := wanted - {asked.run for asked in plan}:
            raise ParibusError(f"{self.name}: no run is called {min(unknown)!r}; `paribus status --runs` lists them")
        return [asked for asked in plan if asked.run in wanted]

    def _add_trial(self, asked: Asked, before: FrozenTrial | None, state: TrialState, **more: Any) -> int:
        """A trial for a run, in one write; one that still waits from an earlier attempt is ended instead."""
        if before is not None and not before.state.is_finished():
            self._finish(before._trial_id, more["end"]["status"], more["end"]["reason"])
            return int(before._trial_id)
        if before is not None and "taken" not in more:
            more["taken"] = before.user_attrs.get("taken", {})
        told = {"run": asked.run, "arm": asked.arm, "seed": asked.seed, "turn": asked.turn, **more}
        return int(self._storage.create_new_trial(self._study._study_id, create_trial(state=state, user_attrs=told)))

    def _latest(self) -> dict[str, FrozenTrial | None]:
        """The last trial of each run, in the order of the plan; None where no worker took it yet."""
        found: dict[str, FrozenTrial | None] = dict.fromkeys(asked.run for asked in self._read())
        for trial in self._study.get_trials(deepcopy=False):
            if (run := trial.user_attrs.get("run")) in found and "turn" in trial.user_attrs:
                found[run] = trial  # others are of a plan that was deleted, or of an earlier version of paribus
        return found

    def _status(self, asked: Asked, trial: FrozenTrial | None, look: bool = True) -> Status:
        """Where a run stands; without `look` it is not asked whether its worker is still there."""
        if trial is None or trial.user_attrs["turn"] != asked.turn:
            return "failed" if asked.stopped else "waiting"
        if trial.state is TrialState.WAITING:
            return "failed" if asked.stopped else "waiting"
        if trial.state is TrialState.RUNNING:
            return "running" if not look or self._store.worker(asked.run) else "lost"
        return cast(Status, trial.user_attrs["end"]["status"])

    def _cancel_requested(self, trial_id: int) -> bool:
        return bool(self._storage.get_trial(trial_id).user_attrs.get("cancel"))


class Claim:
    """The right to work on `run`, for as long as this process lives or until one of the six ends below.

    Each end raises LostLease if another worker took the run over, after this one was silent for too long.
    """

    def __init__(self, queue: Queue, trial_id: int, run: QueuedRun, attempt: int, lease: Lease) -> None:
        self.run, self.attempt = run, attempt
        self._queue, self._trial_id, self._lease = queue, trial_id, lease

    def cancel_requested(self) -> bool:
        """Whether a user wants this run to stop. Cheap; while a database is away the answer is no."""
        try:
            return self._queue._cancel_requested(self._trial_id)
        except Exception as error:
            if not is_outage(error):
                raise
            return False

    def done(self, value: float) -> None:
        """Finished; `value` is what Optuna ranks runs by (lower is better)."""
        self._end("done", value=value)

    def failed(self, reason: str) -> None:
        """It cannot be finished; `reason` in one line."""
        self._end("failed", reason)

    def diverged(self, step: int) -> None:
        """The loss left the realm of numbers at `step`."""
        self._end("diverged", f"at step {step}")

    def pruned(self, step: int) -> None:
        """A trial that was ended early, at `step`, since others of its arm were better."""
        self._end("pruned", f"at step {step}")

    def cancelled(self) -> None:
        """Stopped because a user asked for it."""
        self._end("cancelled")

    def preempted(self) -> None:
        """Stopped by the machine: the run waits for the next worker, at its old place."""
        try:
            self._queue._preempted(self._trial_id, self._lease)
        finally:
            self._lease.release()

    def _end(self, status: Final, reason: str | None = None, value: float | None = None) -> None:
        try:
            self._queue._ended(self._trial_id, self._lease, status, reason, value)
        finally:
            self._lease.release()


def place() -> str:
    """Where this process is beyond its host: the card it was given, the Slurm job it runs in."""
    card, job = os.environ.get("CUDA_VISIBLE_DEVICES"), slurm_job(os.environ)
    return " ".join(filter(None, (card and f"GPU {card}", job and f"job {job}")))


def _end(status: Final, reason: str | None = None) -> dict[str, Any]:
    return {"status": status, "reason": reason, "time": time.time()}


def names(store: Store, asked: Iterable[str] | None, scales: Iterable[str] = ()) -> list[str]:
    """The queues that `asked` (names with or without a scale; None: all) means; `scales` that there are, for errors."""
    there = queues(store)
    if not asked:
        return there
    found = []
    for name in asked:
        matching = [queue for queue in there if queue == name or queue.rpartition("@")[0] == name]
        if not matching:
            _, at, scale = name.rpartition("@")
            if at and (known := list(scales)) and scale not in known:
                raise ParibusError(f"{name}: no scale is called {scale!r}" + suggest(scale, known))
            hint = suggest(name, there) or "; `paribus queue` makes one, `paribus status` lists them"
            raise ParibusError(f"no queue is called {name!r}" + hint)
        found += matching
    return found


def ended(store: Store, asked: Iterable[str]) -> tuple[list[str], dict[str, dict[str, int]]]:
    """What tables ask of the queues that are there: the keys of runs that failed; and the reported ones that are done.

    The latter is the queue's name to the key of a run to its seed.
    """
    failed: list[str] = []
    finished: dict[str, dict[str, int]] = {}
    there = queues(store)
    for name, entry in entries(store, [name for name in asked if name in there]):
        if entry.status == "failed":
            failed.append(entry.run)
        elif entry.status == "done" and not entry.trial:
            finished.setdefault(name, {})[entry.run] = entry.seed
    return failed, finished


def entries(store: Store, queues: Iterable[str]) -> list[tuple[str, Entry]]:
    """Where each run of `queues` stands, with its queue."""
    return [(name, entry) for name in queues for entry in Queue(store, name).entries()]
