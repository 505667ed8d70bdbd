"""The store: one finished folder a key.

    format.json              the version of this layout, and what tells this store from others
    stages/KEY/              a finished stage: stage.json, rows.jsonl and what the stage makes
    doing/KEY/               a stage in progress: out.OWNER/ becomes stages/KEY, scratch/ is for who resumes
    leases/NAME.json         who works on a stage or a run
    cards/                   who works on which card, and the memory that runs took (jobs/seats.py)
    slurm/TIME.PID/          what was submitted to Slurm (jobs/slurm.py)
    paused                   a worker waits for space on the disk, as of the file's time
    queue/NAME.journal       Optuna's journal of each queue
    runs/NAME/               what each queue was asked for, and declared; RUN.json: the resolved spec of each run
    logs/RUN.log             what a run's workers printed
    tables/                  tables as files
    provenance/DIGEST.json   commit, diff and package versions, once for all stages they apply to
    corrupt/                 stages that failed their checksum, set aside
    index-3                  what tables read of stages/, a cache (store/index.py)

Finished is a rename: a folder gets its name when all of it is written and synced, so resume, dedupe and "is it there?"
are one question.  A crash, a torn write or a full disk leaves at most a folder in doing/.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paribus.errors import Corrupt, DiskFull, LostLease, Stopped, StoreError
from paribus.files import TEMPORARY, sha256, sync_to_disk, temporary, write_atomically
from paribus.plan.stages import VERSIONS, Stage
from paribus.store.lease import Lease, holder, is_live, server_time, sweep

FORMAT = 1
RESERVE_BYTES = 64 * 2**20  # left free on the disk: with less, workers wait before they begin something
PAUSE_SECONDS = 1.0
MIRROR = "mirror"  # the name of the lease of whoever keeps MLflow up to date
OLD_SECONDS = 3600.0  # no small file takes so long to write: who began it is gone
_FULL = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def writing(root: Path, other: str = "") -> Iterator[None]:
    """Turn what a full or read-only disk raises into an error that says so; and what `other` says, any other."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            message = "no space left on the disk; free some and start again, nothing is lost"
            raise DiskFull(f"{root}: {message}") from error
        if error.errno in _READ_ONLY or other:
            what = "cannot be written" if error.errno in _READ_ONLY else other
            raise StoreError(f"{root}: {what} ({error.strerror}); set PARIBUS_STORE to another folder") from error
        raise


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn what a damaged file of a finished stage raises into an error that says so."""
    try:
        yield
    except ValueError as error:
        raise Corrupt(f"{path}: damaged ({error}); remove the folder and run again, it is computed anew") from error


def _checksum(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


class Store:
    """Finished stages by key. `lease_seconds` is the grace time after which a silent worker elsewhere is given up."""

    def __init__(self, root: Path, lease_seconds: float = 60.0) -> None:
        self.root = root
        self.lease_seconds = lease_seconds
        self._pausing = False
        self._verified: set[str] = set()
        self._check_format()

    def _check_format(self) -> None:
        path = self.root / "format.json"
        if self.root.exists() and not self.root.is_dir():
            raise StoreError(f"{self.root}: is no folder; name another one for the store (PARIBUS_STORE)")
        if not path.is_file():
            return
        try:
            found = json.loads(path.read_text())["format"]
        except (ValueError, KeyError, TypeError):
            raise StoreError(f'{path}: not readable; it should say {{"format": {FORMAT}}}') from None
        if found != FORMAT:
            raise StoreError(
                f"{path}: this store has format {found}, this version of paribus reads format {FORMAT}; "
                "update paribus or use another folder (PARIBUS_STORE)"
            )

    def prepare(self) -> None:
        """Make the folders; raises StoreError where that cannot be."""
        with writing(self.root, "cannot be made"):
            for name in ("stages", "doing", "leases", "runs", "provenance", "logs", "tables"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
            self._identify()
            probe = temporary(self.root / "probe")
            probe.write_text("paribus")
            probe.unlink()

    def _identify(self) -> None:
        """Make format.json, once, whoever else is at it."""
        path = self.root / "format.json"
        if path.is_file():
            return
        mine = temporary(path)
        write_atomically(mine, json.dumps({"format": FORMAT, "id": uuid.uuid4().hex}))
        with suppress(FileExistsError):
            path.hardlink_to(mine)
        mine.unlink()

    # --- reading ---

    @property
    def id(self) -> str:
        """What tells this store from others, wherever its folder is mounted. It must have been prepared."""
        path = self.root / "format.json"
        try:
            return str(json.loads(path.read_text())["id"])
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{path}: has no id of this store; take another folder (PARIBUS_STORE)") from error

    def keys(self) -> set[str]:
        """The keys of all finished stages."""
        try:
            return {entry.name for entry in os.scandir(self.root / "stages")}
        except FileNotFoundError:
            return set()

    def has(self, key: str) -> bool:
        """Whether stage `key` is finished."""
        return (self.root / "stages" / key / "stage.json").is_file()

    def folder(self, key: str) -> Path:
        """The folder of a finished stage."""
        return self.root / "stages" / key

    def record(self, key: str) -> dict[str, Any]:
        """What stage.json says: kind, version, spec, seed, inputs, outcome, times, worker, provenance, files."""
        path = self.folder(key) / "stage.json"
        with _whole(path):
            found: dict[str, Any] = json.loads(path.read_text())
            if found.get("key") != key:  # whoever moved the folder would have its numbers stand for another stage
                raise ValueError(f"it is of {found.get('key')}")
        return found

    def records(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The records of all finished stages (of one kind)."""
        for key in sorted(self.keys()):
            if (kind is None or key.startswith(kind + "-")) and self.has(key):
                yield self.record(key)

    def finished(self, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """The record and the rows of a stage; None unless it is finished. Corrupt where it does not match its checksum.

        Rows are measurements: metric, split, value, n, and whatever else the stage says.
        """
        try:
            record, path = self.record(key), self.folder(key) / "rows.jsonl"
        except FileNotFoundError:
            return None
        with _whole(path):
            content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != record.get("files", {}).get("rows.jsonl", {}).get("sha256"):
            self.set_aside(key)
            raise Corrupt(f"{path}: does not match its checksum; set aside in {self.root / 'corrupt'}, run it again")
        return record, [json.loads(line) for line in content.splitlines()]

    def rows(self, key: str) -> list[dict[str, Any]]:
        """The rows of a stage, none unless it is finished."""
        finished = self.finished(key)
        return finished[1] if finished else []

    def curve(self, key: str) -> list[dict[str, Any]]:
        """The learning curve of a stage, finished or in progress: a list of {"step": s, name: value, ...}."""
        for path in (self.folder(key) / "curve.jsonl", self.root / "doing" / key / "scratch" / "curve.jsonl"):
            if path.is_file():
                return read_jsonl(path)
        return []

    def progress(self, key: str) -> dict[str, Any] | None:
        """What a stage in progress says of itself (step, steps, rate, unit, loss, seconds_left), or None."""
        try:
            found: dict[str, Any] = json.loads((self.root / "doing" / key / "scratch" / "progress.json").read_text())
            return found
        except (OSError, ValueError):
            return None

    def worker(self, name: str) -> dict[str, Any] | None:
        """Who holds the lease on a stage or run and is alive: host, pid, job, silent_seconds; or None."""
        path = self.root / "leases" / f"{name}.json"
        return holder(path) if is_live(path, self.lease_seconds) else None

    def clock_skew(self) -> float:
        """Seconds by which this machine's clock is ahead of the one that stamps the store's files."""
        return time.time() - server_time(self.root / "leases")

    def verified(self, key: str) -> Path:
        """The folder of a finished stage after its checksums were found right (once a process)."""
        folder = self.folder(key)
        if key not in self._verified:
            try:
                files = self.record(key)["files"]
            except (Corrupt, FileNotFoundError) as error:
                self.set_aside(key)
                raise Corrupt(f"{folder}: its record is damaged; set aside in {self.root / 'corrupt'}") from error
            for name, wanted in files.items():
                path = folder / name
                if not path.is_file() or _checksum(path) != wanted:
                    self.set_aside(key)
                    raise Corrupt(f"{path}: does not match its checksum; set aside in {self.root / 'corrupt'}")
            self._verified.add(key)
        return folder

    def set_aside(self, key: str) -> None:
        """Move a damaged stage out of the way; whoever needs it computes it again."""
        corrupt = self.root / "corrupt"
        with writing(self.root), suppress(FileNotFoundError):  # another worker may have found it first
            corrupt.mkdir(exist_ok=True)
            self.folder(key).rename(corrupt / f"{key}.{time.time_ns()}")

    @property
    def free(self) -> int:
        """The bytes that are free on the disk."""
        return shutil.disk_usage(self.root).free

    def lacking(self, more: int = 0) -> int:
        """The bytes that the disk lacks for `more` to be written."""
        return max(0, RESERVE_BYTES + more - self.free)

    @property
    def paused(self) -> bool:
        """Whether a worker waits for space on the disk."""
        try:
            return time.time() - (self.root / "paused").stat().st_mtime < 3 * PAUSE_SECONDS
        except OSError:
            return False

    # --- writing ---

    def pauses(self, more: int = 0) -> bool:
        """Whether the disk lacks space for `more` bytes; if so, says so once, and takes a moment. Ask until it is not.

        Better than to run into the end of the disk: what others write there may not be whole.
        """
        lacking, mark = self.lacking(more), self.root / "paused"
        with suppress(OSError):
            if lacking:
                mark.touch()
            elif self._pausing:
                mark.unlink(missing_ok=True)
        if lacking and not self._pausing:
            print(f"paused: {self.root}: the disk lacks {lacking / 2**20:,.0f} MB, free some", file=sys.stderr)
        if lacking:
            time.sleep(PAUSE_SECONDS)
        self._pausing = lacking > 0
        return self._pausing

    def lease(self, name: str) -> Lease | None:
        """A lease on `name` if nobody alive holds it, else None. Release it when done."""
        with writing(self.root):
            lease = Lease(self.root / "leases", name, self.lease_seconds)
            return lease if lease.acquire() else None

    def sweep(self, over: Collection[str]) -> None:
        """Remove what dead workers left: of finished stages, leases on runs of which `over` has the keys, small files.

        Not what they left of stages that are not finished, which is for who resumes.
        """
        if (self.root / "leases").is_dir():
            with writing(self.root):
                sweep(self.root / "leases", self.lease_seconds, lambda name: name in over or self.has(name))
                for folder in (self.root / "doing").glob("*"):
                    if self.has(folder.name) and (lease := self.lease(folder.name)):
                        if self.has(folder.name):  # still: it may have been set aside meanwhile, and begun anew
                            shutil.rmtree(folder, ignore_errors=True)
                        lease.release()
                for path in self.half_written():
                    path.unlink(missing_ok=True)
                if not self.paused:
                    (self.root / "paused").unlink(missing_ok=True)

    def half_written(self) -> list[Path]:
        """The small files that killed writers were at, outside of stages."""
        written: dict[Path, float] = {}
        for folder in ("", "*/", "runs/*/", "cards/*/"):
            for path in self.root.glob(folder + TEMPORARY):
                with suppress(FileNotFoundError):  # its writer has finished
                    written[path] = path.stat().st_mtime
        now = server_time(self.root / "leases") if written else 0.0
        return [path for path, at in written.items() if now - at > OLD_SECONDS and path.is_file()]

    def claim(self, stage: Stage, stop: Callable[[], bool] = lambda: False) -> "Work | None":
        """The right to compute `stage`, or None while another live worker holds it; `stop` says whether to go on."""
        lease = self.lease(stage.key)
        return Work(self, stage, lease, stop) if lease else None

    def provenance(self, digest: str) -> dict[str, Any]:
        """Commit, diff and package versions recorded under `digest`; nothing where they are gone or damaged."""
        try:
            found: dict[str, Any] = json.loads((self.root / "provenance" / f"{digest}.json").read_text())
            return found
        except (FileNotFoundError, ValueError):
            return {}

    def record_provenance(self, content: Mapping[str, Any]) -> str:
        """Keep `content` once and return the digest stages refer to it by."""
        text = json.dumps(content, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if not self.provenance(digest):
            with writing(self.root):
                write_atomically(self.root / "provenance" / f"{digest}.json", text)
        return digest


class Measured:
    """Measurements, in the order they were made."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def may_stop(self) -> None:
        """Called where it is safe to stop."""

    def row(self, metric: str, value: float, *, split: str | None = None, n: int | None = None, **more: Any) -> None:
        """Record one measurement, a finite number; `n` is the number of items it is taken over."""
        if not math.isfinite(value):
            raise ValueError(f"{metric} is {value}: not a measurement")
        self.rows.append({"metric": metric, "split": split, "value": value, "n": n, **more})


class Work(Measured):
    """A stage being computed. Use as a context: it ends committed, or with everything but scratch/ removed.

    out: what becomes the finished folder, this worker's alone.  scratch: checkpoints, the live curve and shards, kept
    for whoever resumes.
    """

    def __init__(self, store: Store, stage: Stage, lease: Lease, stop: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self.store, self.stage, self._lease, self._stop = store, stage, lease, stop
        self.folder = store.root / "doing" / stage.key
        self.out = self.folder / f"out.{lease.owner}"
        self.scratch = self.folder / "scratch"

    def __enter__(self) -> "Work":
        try:
            with writing(self.store.root):
                for left in self.folder.glob("out.*"):
                    shutil.rmtree(left, ignore_errors=True)
                self.out.mkdir(parents=True)
                self.scratch.mkdir(exist_ok=True)
                first = self.scratch / "first_started"
                if not first.is_file():
                    write_atomically(first, str(time.time()))
                self.first_started = float(first.read_text())
        except BaseException:
            self._lease.release()
            raise
        self.started = time.time()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Asked first: without what was half-written there is room again.
        full = error is not None and not isinstance(error, StoreError) and self._disk_is_full(error)
        shutil.rmtree(self.out, ignore_errors=True)
        try:
            with self._lease.held():
                if not any(path.name != "first_started" for path in self.scratch.glob("*")):
                    shutil.rmtree(self.folder, ignore_errors=True)
        except LostLease:
            if isinstance(error, Exception):
                raise  # it explains the error: files were moved away under this worker
        finally:
            self._lease.release()
        if full:
            with writing(self.store.root):
                raise OSError(errno.ENOSPC, "no space left on device") from error

    @property
    def stopping(self) -> bool:
        """Whether to end when it is safe: somebody asked for it, or another worker took this over."""
        return self._lease.lost or self._stop()

    def may_stop(self) -> None:
        """Say that it is safe to stop here; raises Stopped if so."""
        if self.stopping:
            raise Stopped

    def _disk_is_full(self, error: BaseException) -> bool:
        """Libraries report a full disk in words of their own; the disk itself knows."""
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if not isinstance(error, Exception):
            return False
        disk = os.statvfs(self.store.root)
        return disk.f_bavail * disk.f_frsize < 65536

    def commit(self, provenance: str, outcome: str = "done", **more: Any) -> None:
        """Finish: write rows and record, sync, rename. LostLease if another worker took over."""
        with writing(self.store.root):
            (self.out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in self.rows))
            record = {
                "key": self.stage.key,
                "kind": self.stage.kind,
                "version": VERSIONS[self.stage.kind],
                "spec": self.stage.spec.model_dump(mode="json"),
                "seed": self.stage.seed,
                "inputs": dict(self.stage.inputs),
                "outcome": outcome,
                "first_started": self.first_started,
                "started": self.started,
                "finished": time.time(),
                "provenance": provenance,
                **more,
                "files": {
                    str(path.relative_to(self.out)): _checksum(path)
                    for path in sorted(self.out.rglob("*"))
                    if path.is_file()
                },
            }
            for path in self.out.rglob("*"):
                sync_to_disk(path)
            write_atomically(self.out / "stage.json", json.dumps(record, indent=1))
            sync_to_disk(self.out)
            target = self.store.folder(self.stage.key)
            with self._lease.held():
                if not self.store.has(self.stage.key):
                    self.store.set_aside(self.stage.key)  # a folder without its record is no finished stage
                    self.out.rename(target)
                    sync_to_disk(target.parent)
            shutil.rmtree(self.folder, ignore_errors=True)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a torn last line (its writer was killed) is left out."""
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
