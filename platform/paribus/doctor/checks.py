"""What can be wrong with a machine, a store or a cluster, looked at before a run finds out."""

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement

from paribus import nvidia
from paribus.errors import ParibusError
from paribus.files import write_atomically
from paribus.jobs.plans import Statuses
from paribus.jobs.pool import SKEW_SECONDS
from paribus.jobs.queue import names
from paribus.jobs.storage import open_storage
from paribus.project import PACKAGE, Project
from paribus.store.lease import server_time
from paribus.store.store import Store
from paribus.tracking.mirror import public, tracking_uri

Status = Literal["ok", "warning", "failed"]

VARIABLES = ("PARIBUS_DATA", "PARIBUS_STORAGE", "PARIBUS_STORE")
"""The environment variables that paribus reads."""
LITTLE_BYTES, FEW_BYTES = 10 << 30, 512 << 20
"""Free space below which a disk is worth a warning, and below which no run should start."""
SLOW_SECONDS = 1.0
"""An fsync that takes longer makes every checkpoint wait."""
ANSWER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Check:
    """What was found; unless it is ok, also what to do."""

    name: str
    status: Status
    said: str


def examine(project: Project, store: Store) -> Iterator[Check]:
    """All checks, in an order in which the first failure may explain later ones."""
    for check in CHECKS:
        name = check.__name__.removeprefix("_").replace("_", " ")
        try:
            status, said = check(project, store)
        except ParibusError as error:
            status, said = "failed", str(error)
        except OSError as error:
            status, said = "failed", f"{store.root}: {error.strerror or error}"
        yield Check(name, status, said)


# --- software and devices --------------------------------------------------------------------------------------------


def _packages(project: Project, store: Store) -> tuple[Status, str]:
    python = f"Python {platform.python_version()}"
    try:
        required = [Requirement(text) for text in importlib.metadata.requires("paribus") or ()]
    except importlib.metadata.PackageNotFoundError:
        return "warning", f"{python}; paribus runs without being installed, so what it requires is not known"
    installed = {dist.name.lower().replace("_", "-"): dist.version for dist in importlib.metadata.distributions()}
    wrong = [
        f"{need.name} {installed.get(need.name.lower(), 'missing')} (needs {need.specifier})"
        for need in required
        if not need.marker or need.marker.evaluate({"extra": ""})
        if not need.specifier.contains(installed.get(need.name.lower(), "0"), prereleases=True)
    ]
    if wrong:
        return "failed", f"{python}; {', '.join(wrong)}; `pip install -e .` mends it"
    tested = PACKAGE.parents[1] / "constraints.txt"
    if not tested.is_file():
        return "ok", f"{python}, all packages in the ranges that paribus asks for"
    pins = dict(line.split("==") for line in tested.read_text().splitlines() if "==" in line)
    other = [
        f"{name} {found} (tested: {version})"
        for name, version in pins.items()
        if (found := installed.get(name.lower().replace("_", "-"), version).partition("+")[0]) != version
    ]
    if other:
        shown = ", ".join(other[:4]) + (f" and {len(other) - 4} more" if len(other) > 4 else "")
        return "warning", f"{python}; other versions than tested: {shown}; `pip install -c constraints.txt -e .`"
    return "ok", f"{python}, all packages as in constraints.txt"


def _bytecode(project: Project, store: Store) -> tuple[Status, str]:
    try:
        torch = importlib.util.find_spec("torch")  # loads nothing
        if torch is None or torch.origin is None:
            return "warning", "torch is not installed"
        if Path(importlib.util.cache_from_source(torch.origin)).is_file():
            return "ok", "torch's is kept"
    except NotImplementedError:  # of a Python that was built to keep none
        return "ok", "this Python keeps none at all"
    except ValueError:  # of a torch that was loaded before, and does not say from where
        return "ok", "not known"
    command = shlex.join([sys.executable, "-m", "compileall", "-q", str(Path(torch.origin).parents[1])])
    why = "none of torch's is kept, so every worker compiles it anew, for seconds"
    where = "where that folder is read-only, set PYTHONPYCACHEPREFIX and unset PYTHONDONTWRITEBYTECODE"
    return "warning", f"{why}; `{command}`, or {where}"


# Every GPU computes something: a torch built without its architecture says so only then.
PROBE = """
import json, torch
gpus = []
for i in range(torch.cuda.device_count()):
    device = torch.device("cuda", i)
    assert (torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)).sum().item() == 64.0**3
    about = torch.cuda.get_device_properties(device)
    with torch.cuda.device(device):
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    free = torch.cuda.mem_get_info(device)[0]
    gpus.append({"name": about.name, "capability": f"{about.major}.{about.minor}", "bf16": bf16, "free": free})
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpus": gpus}))
"""


def _devices(project: Project, store: Store) -> tuple[Status, str]:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, cwd=tempfile.gettempdir())
    if done.returncode != 0:
        return "failed", f"torch: {done.stderr.strip().splitlines()[-1]}; install torch for this machine's driver"
    found = json.loads(done.stdout.splitlines()[-1])
    return judge_devices(found, _cards(), os.environ)


def _cards() -> list[str]:
    """What nvidia-smi lists, "name, driver"; nothing where there is no such program."""
    return [", ".join(card) for card in nvidia.ask("name", "driver_version")]


def judge_devices(torch: Mapping[str, object], cards: list[str], environment: Mapping[str, str]) -> tuple[Status, str]:
    """What to say of the GPUs that torch sees, beside the cards that nvidia-smi lists."""
    gpus = torch["gpus"]
    assert isinstance(gpus, list)
    build = f"torch {torch['version']}"
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not gpus and cards and visible is None:
        fault = "was built without CUDA" if torch["cuda"] is None else f"for CUDA {torch['cuda']} does not see it"
        return "failed", f"nvidia-smi lists {cards[0]} (driver), but {build} {fault}; install torch for that driver"
    if not gpus:
        hidden = f", hidden by CUDA_VISIBLE_DEVICES={visible}" if cards else ""
        return "ok", f"{build}, no GPU{hidden}"
    names = Counter(f"{gpu['name']} (capability {gpu['capability']})" for gpu in gpus)
    driver = cards[0].rpartition(", ")[2] if cards else "unknown"
    said = f"{build}, {', '.join(f'{count} x {name}' for name, count in names.items())}, driver {driver}"
    if not all(gpu["bf16"] for gpu in gpus):
        return "warning", f"{said}; no bf16 in hardware: set precision fp32, the scales small and up take bf16"
    return "ok", f"{said}, bf16, {min(gpu['free'] for gpu in gpus) / 2**30:.0f} GiB free"


def _variables(project: Project, store: Store) -> tuple[Status, str]:
    there = {name: value for name, value in sorted(os.environ.items()) if name.startswith("PARIBUS_")}
    unknown = [name for name in there if name not in VARIABLES]
    said = ", ".join(f"{name}={public(value)}" for name, value in there.items()) or "none is set"
    if unknown:
        return "warning", f"{said}; paribus reads only {', '.join(VARIABLES)}: unset {', '.join(unknown)}"
    return "ok", said


# --- where results go ------------------------------------------------------------------------------------------------


def _disk(project: Project, store: Store) -> tuple[Status, str]:
    status: Status = "ok"
    said = []
    for what, path in (("store", there(store.root)), ("temporary files", Path(tempfile.gettempdir()))):
        disk = os.statvfs(path)
        free = disk.f_bavail * disk.f_frsize
        said.append(f"{free / 2**30:.1f} GiB free for {what} ({path})")
        if free < FEW_BYTES or (disk.f_files and disk.f_favail < 1000):
            status = "failed"
        elif free < LITTLE_BYTES and status == "ok":
            status = "warning"
    return status, ", ".join(said) + ("" if status == "ok" else "; free some, or set PARIBUS_STORE and TMPDIR")


def there(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    return next(folder for folder in (path.resolve(), *path.resolve().parents) if folder.is_dir())


def _renames(project: Project, store: Store) -> tuple[Status, str]:
    with _scratch(store) as folder:
        path, contents = folder / "file", [letter * 65536 for letter in "ab"]
        write_atomically(path, contents[0])

        def replace() -> None:
            for i in range(50):
                write_atomically(path, contents[i % 2])

        writer = threading.Thread(target=replace)
        writer.start()
        torn = 0
        while writer.is_alive():
            try:
                torn += path.read_text() not in contents
            except OSError:
                torn += 1
        writer.join()
        (folder / "doing").mkdir()
        (folder / "doing" / "stage.json").touch()
        (folder / "doing").rename(folder / "stages")
        if torn or not (folder / "stages" / "stage.json").is_file():
            return "failed", f"a file that is replaced is for a moment not there or not whole: {_elsewhere(store)}"
    return "ok", f"files and folders are replaced at once on {_file_system(there(store.root))}"


LOCKER = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


def _locks(project: Project, store: Store) -> tuple[Status, str]:
    with _scratch(store) as folder:
        path = folder / "lock"
        command = [sys.executable, "-c", LOCKER, str(path)]
        other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            assert other.stdout
            if other.stdout.readline() != b"held\n":
                return "failed", f"flock is refused by {_file_system(folder)}: {_elsewhere(store)}"
            with path.open("a") as stream:
                if _lock(stream.fileno()):
                    return "failed", f"flock keeps no other process out, so two could take one run: {_elsewhere(store)}"
                other.kill()
                other.wait()
                until = time.monotonic() + ANSWER_SECONDS
                while not _lock(stream.fileno()):
                    if time.monotonic() > until:
                        return "failed", f"a killed process keeps its flock: {_elsewhere(store)}"
                    time.sleep(0.01)
        finally:
            other.kill()
            other.communicate()
    return "ok", "flock keeps other processes of this machine out, and ends with its holder"


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _syncs(project: Project, store: Store) -> tuple[Status, str]:
    with _scratch(store) as folder:
        (folder / "file").write_bytes(os.urandom(1 << 20))
        start = time.perf_counter()
        for path in (folder / "file", folder):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        seconds = time.perf_counter() - start
    if seconds > SLOW_SECONDS:
        return "warning", f"an fsync of 1 MiB takes {seconds:.1f} s, so checkpoints are slow: {_elsewhere(store)}"
    return "ok", f"an fsync of 1 MiB takes {seconds * 1000:.0f} ms"


def _clock(project: Project, store: Store) -> tuple[Status, str]:
    with _scratch(store) as folder:
        return judge_clock(time.time() - server_time(folder))


def judge_clock(skew: float) -> tuple[Status, str]:
    """What to say of a clock that is `skew` seconds ahead of the one that stamps the store's files."""
    if abs(skew) > SKEW_SECONDS:
        order = "ahead of" if skew > 0 else "behind"
        told = f"this machine is {abs(skew):,.0f} s {order} the clock that stamps the store's files"
        return "warning", f"{told}; leases go by the latter, but times in records are off: start NTP here"
    return "ok", f"within {SKEW_SECONDS:.0f} s of the clock that stamps the store's files"


def _letter_case(project: Project, store: Store) -> tuple[Status, str]:
    with _scratch(store) as folder:
        (folder / "a").touch()
        if (folder / "A").exists():
            return "warning", "file names ignore case: give experiments names that differ in more than case"
    return "ok", "file names keep upper and lower case apart"


def _leftovers(project: Project, store: Store) -> tuple[Status, str]:
    left = store.half_written()
    begun = [folder.name for folder in store.root.glob("doing/*")]
    doing = [key for key in begun if not store.has(key) and not store.worker(key)]
    said = f"{len(doing)} interrupted stages wait for a worker" if doing else "no stage was left in the middle"
    if left:
        told = f"{said}; {len(left)} files of killed writers, as {left[0]}"
        return "warning", f"{told}: the next `paribus work` removes them"
    return "ok", said


def _queues(project: Project, store: Store) -> tuple[Status, str]:
    url = os.environ.get("PARIBUS_STORAGE")
    where = open_storage(store, "").where if url else "journals"  # asked even where nothing was queued yet
    known = names(store, None)
    counts: Counter[str] = Counter()
    for name in known:
        try:
            counts += Counter(Statuses(project, store, [name])())
        except ParibusError:
            raise
        except Exception as error:  # Optuna raises whatever its reader stumbles over
            told = f"{name} does not open ({type(error).__name__}: {error})"
            return "failed", f"{told}; move its files in {store.root / 'queue'} away and queue the experiment again"
    lines = ", ".join(f"{count} {status}" for status, count in counts.items())
    return "ok", f"{where}: {len(known)} opened" + (f", runs: {lines}" if lines else "")


def _mlflow(project: Project, store: Store) -> tuple[Status, str]:
    uri = tracking_uri(project)
    if uri.startswith(("http://", "https://")):
        try:
            with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_SECONDS):
                return "ok", f"{public(uri)} answers"
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return (
                "failed",
                f"{public(uri)} does not answer ({reason}); runs lose nothing, `paribus sync` sends them later",
            )
    if not uri.startswith("sqlite:///"):
        return "ok", f"{public(uri)} (not looked at)"
    path = Path(uri.removeprefix("sqlite:///"))
    if not path.is_file():
        return "ok", f"{path} will be made"
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        connection.execute("select count(*) from experiments").fetchone()
        connection.close()
    except sqlite3.Error as error:
        return "failed", f"{path}: {error}; move it away, `paribus sync` builds it anew from the store"
    return "ok", f"{path} opens"


def _slurm(project: Project, store: Store) -> tuple[Status, str]:
    if shutil.which("sbatch") is None:
        return "ok", "no sbatch here"
    command = ["sinfo", "--noheader", "--format=%P %a %l %D nodes %G"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return "warning", f"sbatch is here, but no cluster answers: {done.stderr.strip().splitlines()[-1]}"
    partitions = ", ".join(line.strip() for line in done.stdout.splitlines())
    if not any(dist.name == "submitit" for dist in importlib.metadata.distributions()):
        return "warning", f"{partitions}; --launcher slurm needs submitit: pip install 'paribus[slurm]'"
    return "ok", partitions


@contextmanager
def _scratch(store: Store) -> Iterator[Path]:
    """A folder of one's own beside the files of the store, or where they will be."""
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=there(store.root)) as folder:
        yield Path(folder)


def _file_system(path: Path) -> str:
    """The type of the file system that `path` is on."""
    mounts = [p for p in psutil.disk_partitions(all=True) if path.resolve().is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "this file system"


def _elsewhere(store: Store) -> str:
    return f"set PARIBUS_STORE to a local disk, NFS 4 or Lustre mounted with flock, found {store.root}"


CHECKS: tuple[Callable[[Project, Store], tuple[Status, str]], ...] = (
    *(_packages, _devices, _bytecode, _variables, _disk, _renames, _locks, _syncs, _clock, _letter_case, _leftovers),
    *(_queues, _mlflow, _slurm),
)
