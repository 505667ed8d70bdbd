"""Workers as jobs of a Slurm cluster, submitted through submitit; what is left to do is in the queue, never in a job.

    slurm/TIME.PID/JOB_*    one submission's script, pickles and logs, named by submitit

Slurm's warning (USR2, before the time limit or at a preemption) reaches every process of a job. The workers put their
runs back as at SIGTERM; then submitit's own handler asks Slurm to queue the job again. A job that Slurm requeues or
kills without a word loses at most one checkpoint interval: the next worker takes its run over by the lease.

States come from squeue, since sacct needs a database that small clusters do not have.
"""

import contextlib
import io
import os
import pickle
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from paribus.errors import ParibusError
from paribus.jobs.cards import ANYWHERE
from paribus.jobs.pool import POLL_SECONDS, drain
from paribus.project import Project, find
from paribus.spec.run import Runtime
from paribus.store.store import Store, writing

SQUEUE_SECONDS = 10.0
"""Between two questions to Slurm, whose controller is shared."""
KILL_SECONDS = 600.0
"""How long a job that was told to end (SIGTERM) waits for Slurm to end or requeue it, before it ends by itself."""
SIGNAL_SECONDS = 120
"""How long before its time limit a job is warned, at most half the limit; `--slurm signal_delay_s=N` sets another."""
REQUEUES = 100_000
"""After how many time limits submitit would not requeue a job any more: never."""
# What would break how jobs are started, stopped and found again.
RESERVED = (
    *("array", "error", "gpus_per_task", "map_count", "nodes", "ntasks_per_node", "num_gpus", "output", "requeue"),
    *("signal", "stderr_to_stdout", "use_srun"),
)


class Worker:
    """What a task of a job does: run one worker on the queues `names` until they are empty."""

    def __init__(self, project: Project, store: Store, names: Sequence[str], runtime: Runtime) -> None:
        self._project, self._store = project.root, store.root.resolve()
        self._names, self._runtime = tuple(names), runtime

    def __call__(self) -> None:
        received: list[int] = []

        def look() -> None:
            if received:
                raise _Signalled

        def note(number: int, _: FrameType | None) -> None:
            received.append(number)

        project = find(self._project)
        store = Store(self._store, project.settings.lease_seconds)
        signal.signal(signal.SIGTERM, note)
        requeue = signal.signal(signal.SIGUSR2, note)  # submitit's: pickles checkpoint(), requeues and exits
        try:
            drain(project, store, self._names, [ANYWHERE], self._runtime, look)
            look()  # the signal may have come since
        except _Signalled:  # the worker has saved and put its run back
            told_to_end = time.monotonic()
            # After SIGTERM alone Slurm has the last word: it kills the job, or warns and requeues it.
            while signal.SIGUSR2 not in received and time.monotonic() - told_to_end < KILL_SECONDS:
                time.sleep(POLL_SECONDS)
            if signal.SIGUSR2 in received and callable(requeue):
                requeue(signal.SIGUSR2, None)

    def checkpoint(self) -> Any:
        """What submitit starts when the job comes back: the same, since the rest is in the queue."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _Signalled(Exception):
    """Slurm wants the job to end."""


# --- submitting ------------------------------------------------------------------------------------------------------


def submit(worker: Worker, store: Store, workers: int, settings: dict[str, Any]) -> list[str]:
    """Submit jobs that together run `workers` workers, one a GPU; their ids. `settings`: see `parameters`."""
    executor = _executor(store)
    asked = {name: value for name, value in settings.items() if name not in executor._valid_parameters()}
    executor.update_parameters(
        **{name: value for name, value in settings.items() if name not in asked},
        additional_parameters={"requeue": True, **asked},
    )
    tasks = settings.get("gpus_per_node", 1)
    try:
        # submitit prints what sbatch said before it raises it.
        with writing(store.root), contextlib.redirect_stderr(io.StringIO()):
            return [job.job_id for job in executor.submit_array([worker] * (workers // tasks))]
    except BaseException as error:
        shutil.rmtree(executor.folder, ignore_errors=True)
        if type(error).__name__ not in ("FailedJobError", "FailedSubmissionError"):
            raise
        lines = [line.removeprefix("sbatch: ").removeprefix("error: ") for line in str(error).strip().splitlines()]
        raise ParibusError(f"sbatch: {'; '.join(lines) or 'failed'}") from None


def _executor(store: Store) -> Any:
    if shutil.which("sbatch") is None:
        raise ParibusError("--launcher slurm: no sbatch here; submit from a machine of a Slurm cluster")
    try:
        import submitit
    except ImportError:
        raise ParibusError("--launcher slurm: needs submitit; pip install 'paribus[slurm]'") from None
    folder = store.root.resolve() / "slurm" / f"{time.strftime('%Y%m%d-%H%M%S')}.{os.getpid()}"
    return submitit.SlurmExecutor(folder, max_num_timeout=REQUEUES)


def parameters(workers: int, limit: str, gpus_per_node: int, more: Iterable[str], **named: Any) -> dict[str, Any]:
    """What submitit is told: sbatch's options with underscores, and submitit's signal_delay_s and setup.

    `limit` is the time limit as Slurm writes it, `more` are key=value of the user's, `named` those with an option of
    their own (None: not given).
    """
    if gpus_per_node and workers % gpus_per_node:
        raise ParibusError(
            f"--workers {workers}: expected a multiple of --gpus-per-node {gpus_per_node}: a worker for each GPU"
        )
    minutes = time_limit(limit)
    found: dict[str, Any] = {
        "job_name": "paribus",
        "time": minutes,
        "signal_delay_s": min(SIGNAL_SECONDS, minutes * 30),
        "array_parallelism": workers,
        **{name: value for name, value in named.items() if value is not None},
    }
    if gpus_per_node:
        found |= {"gpus_per_node": gpus_per_node, "ntasks_per_node": gpus_per_node, "gpus_per_task": 1}
    for text in more:
        key, equals, value = text.partition("=")
        name = key.strip().removeprefix("--").replace("-", "_")
        if not name or not equals:
            raise ParibusError(f"--slurm {text}: expected key=value, an option of sbatch without its dashes")
        if name in RESERVED or name in ("gpus_per_node", "time"):
            raise ParibusError(f"--slurm {key}: paribus sets this itself" + _option(name))
        if name == "setup":
            found.setdefault("setup", []).append(value)
        else:
            found[name] = True if value == "true" else value
    return found


def _option(name: str) -> str:
    return f", by --{name.replace('_', '-')}" if name in ("gpus_per_node", "time") else ""


def time_limit(text: str) -> int:
    """Minutes of a time limit as Slurm writes it: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; a begun minute counts."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not re.fullmatch(r"(\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2})", text):
        raise ParibusError(f"--time {text}: expected minutes, H:M:S or D-H:M:S, as 30, 4:00:00 or 1-12:00:00")
    weights = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    seconds = int(days or 0) * 86400 + sum(int(part) * weight for part, weight in zip(parts, weights, strict=False))
    if seconds == 0:
        raise ParibusError(f"--time {text}: expected more than no time")
    return -(-seconds // 60)


# --- looking ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Job:
    """Where a job stands."""

    id: str
    state: str
    """squeue's word; of a job that it no longer knows COMPLETED, FAILED or ENDED (killed, cancelled or timed out)."""
    alive: bool
    """Whether it may still take runs."""
    where: str
    """Its nodes, or what it waits for."""
    said: str
    """Of a job that ended badly the end of its stderr."""


ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT")


def jobs(store: Store) -> list[Job]:
    """The jobs of the last submission, and those of earlier ones that are still alive."""
    folders = [folder for folder in sorted((store.root / "slurm").glob("*")) if folder.is_dir()]
    known = {folder: _ids(folder) for folder in folders}
    unfinished = [job for folder, ids in known.items() for job in ids if not _results(folder, job)]
    listed = _squeue(int(time.monotonic() / SQUEUE_SECONDS)) if unfinished else {}
    found = [_job(folder, id, listed.get(id)) for folder, ids in known.items() for id in ids]
    last = set(known[folders[-1]]) if folders else set()
    return [job for job in found if job.alive or job.id in last]


def _ids(folder: Path) -> list[str]:
    """The jobs whose files are in `folder`, in the order of submission."""
    names = [path.name.removesuffix("_submitted.pkl") for path in folder.glob("*_submitted.pkl")]
    return sorted(names, key=lambda name: [int(part) for part in name.split("_")])


def _results(folder: Path, job: str) -> list[Path]:
    """What submitit wrote when tasks of a job ended, well or not; nothing where they were killed."""
    return list(folder.glob(f"{job}_*_result.pkl"))


def _job(folder: Path, id: str, listed: tuple[str, str, str] | None) -> Job:
    state, reason, nodes = listed or ("", "", "")
    if state and state not in ENDED:
        return Job(id, state, True, nodes or reason, "")
    outcomes = [pickle.loads(path.read_bytes()) for path in _results(folder, id)]
    failures = [trace for outcome, trace in outcomes if outcome == "error"]
    if outcomes and not failures:
        return Job(id, "COMPLETED", False, nodes, "")
    said = failures[0].strip().splitlines()[-1] if failures else _last_lines(folder, id)
    return Job(id, state or ("FAILED" if failures else "ENDED"), False, nodes, said)


def _last_lines(folder: Path, job: str, count: int = 2) -> str:
    """The end of a job's stderr, without what submitit says of its own doing."""
    lines = [
        line.strip()
        for path in sorted(folder.glob(f"{job}_*_log.err"))
        for line in path.read_text(errors="replace").splitlines()
        if line.strip() and not line.startswith("submitit ")
    ]
    return "; ".join(lines[-count:])


@lru_cache(maxsize=1)
def _squeue(_moment: int) -> dict[str, tuple[str, str, str]]:
    """State, reason and nodes of the user's jobs by id, as squeue has them at `_moment`."""
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T|%r|%N"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ParibusError(f"squeue: {error}") from None
    if done.returncode != 0:
        raise ParibusError(f"squeue: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    found = {}
    for line in done.stdout.splitlines():
        id, state, reason, nodes = line.split("|")
        found[id] = state, reason, nodes
    return found


def wait(store: Store, ids: Sequence[str], look: Callable[[], None]) -> None:
    """Until the jobs `ids` have ended; `look` is called a few times a second. They outlive whoever waits."""
    while any(job.alive for job in jobs(store) if job.id in ids):
        look()
        time.sleep(POLL_SECONDS)


def cancel(store: Store) -> list[str]:
    """Cancel the store's jobs that are alive; their workers put their runs back. Returns their ids."""
    alive = [job.id for job in jobs(store) if job.alive]
    if alive:
        done = subprocess.run(["scancel", *alive], capture_output=True, text=True)
        if done.returncode != 0:
            raise ParibusError(f"scancel: {done.stderr.strip()}")
    return alive
