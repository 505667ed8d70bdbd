"""Where a queue is kept: a journal file in the store, or a PostgreSQL database. The one place that opens it.

The journal is Optuna's, a file a study, appended under a lock of our own.
Optuna's own journal locks are files that outlive their holder (everybody waits 30 seconds for a killed worker), and a
line torn by a killed writer makes the study unloadable for ever (optuna/optuna#5138). A flock dies with its holder, and
the next writer cuts the torn line off.
"""

import fcntl
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock  # private: pinned by a test

from paribus.errors import StoreError
from paribus.files import file_name
from paribus.store.lease import exclusive
from paribus.store.store import Store, writing

SUFFIX = ".journal"
PLAN = "plan.json"
"""In a queue's folder below runs/: what it was asked for."""
CONNECT_SECONDS = 10
OUTAGE_SECONDS = 900.0


class FlockLock(BaseJournalFileLock):
    """Exclusive right to append to `journal`; whole lines only once it is held."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._lock = journal.with_name(journal.name + ".flock")
        self._held = ExitStack()

    def acquire(self) -> bool:
        """Wait for the lock, then cut off what a killed writer left of its last line."""
        with ExitStack() as stack:
            stack.enter_context(exclusive(self._lock))
            heal(self._journal)
            self._held = stack.pop_all()
        return True

    def release(self) -> None:
        """Let the next one append."""
        self._held.close()


def heal(journal: Path) -> None:
    """Cut `journal` after its last whole line. Only the holder of its lock may."""
    with journal.open("rb+") as stream:
        if stream.seek(0, os.SEEK_END) == 0:
            return
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            stream.truncate(journal.read_bytes().rfind(b"\n") + 1)


def check_flock(path: Path) -> None:
    """Raise StoreError unless one flock on `path` keeps a second one out: NFS and Lustre can be mounted without."""
    with path.open("ab") as one, path.open("ab") as other:
        try:
            fcntl.flock(one, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that two processes may check at once
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError as error:
            reason = f"flock fails ({error.strerror})"
        else:
            reason = "flock keeps nobody out"
    raise StoreError(
        f"{path}: {reason} on this file system, so two workers could take one run; "
        "set PARIBUS_STORE to a local disk, NFS 4 or Lustre mounted with flock"
    )


def queues(store: Store) -> list[str]:
    """The names of the queues in `store`: those that were ever asked for a run."""
    return sorted(unquote(path.parent.name) for path in (store.root / "runs").glob(f"*/{PLAN}"))


@dataclass(frozen=True)
class Opened:
    """Optuna's storage of a queue, and the lock under which whatever is read and written is one step to all others."""

    storage: BaseStorage
    lock: Callable[[], AbstractContextManager[None]]
    where: str
    """A file, or a URL without its password."""


def open_storage(store: Store, queue: str) -> Opened:
    """The storage of `queue`: what PARIBUS_STORAGE names, else a journal in `store`, made if need be."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = os.environ.get("PARIBUS_STORAGE")
    if url:
        check_url(url)
    if not (store.root / "queue").is_dir():  # else what is there can be read though the disk is full
        store.prepare()
    with writing(store.root):
        (store.root / "queue").mkdir(exist_ok=True)
    return _database(url, queue) if url else _journal(store, queue)


def _journal(store: Store, queue: str) -> Opened:
    path = store.root / "queue" / f"{file_name(queue)}{SUFFIX}"
    with writing(store.root):
        check_flock(path)
        try:
            found = JournalStorage(JournalFileBackend(str(path), FlockLock(path)))
        except ValueError as error:
            raise StoreError(
                f"{path}: damaged ({error}); move it away and queue the experiment again, finished stages are kept"
            ) from error
    lock = path.with_suffix(".lock")
    return Opened(found, lambda: exclusive(lock), str(path))


# --- PostgreSQL ---


def check_url(url: str) -> None:
    """StoreError unless `url` is one of PostgreSQL. Never says the URL, which may hold a password."""
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        return
    reason = (
        "SQLite hands one trial to two workers (163 times in 1,600 trials with 8 workers)"
        if scheme == "sqlite"
        else "expected postgresql://USER@HOST/DATABASE"
    )
    raise StoreError(f"PARIBUS_STORAGE: found a URL of kind {scheme!r}, but {reason}; unset it to use the journal")


def public(url: str) -> str:
    """`url` without user and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme.partition('+')[0]}://{parts.hostname or ''}{port}{parts.path}"


def _database(url: str, queue: str) -> Opened:
    import sqlalchemy

    found, where = _connect(url), public(url)
    # Of a queue's own name in this database: no folder's locks are needed to claim.
    key = int.from_bytes(hashlib.sha256(queue.encode()).digest()[:8], signed=True)

    @contextmanager
    def lock() -> Iterator[None]:
        with found.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(:key)"), {"key": key})
            try:
                yield
            finally:  # the server frees it by itself when this process dies
                connection.execute(sqlalchemy.text("SELECT pg_advisory_unlock(:key)"), {"key": key})

    return Opened(optuna.storages.get_storage(found), lock, where)


@cache
def _connect(url: str) -> RDBStorage:
    """Optuna's tables at `url`, made if need be; one pool of connections a process."""
    import sqlalchemy

    try:
        where = public(url)  # a port that is no number raises here
        parsed = sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")
    except (ValueError, sqlalchemy.exc.ArgumentError):
        raise StoreError("PARIBUS_STORAGE: not a URL; expected postgresql://USER@HOST:PORT/DATABASE") from None
    options = {"pool_pre_ping": True, "connect_args": {"connect_timeout": CONNECT_SECONDS}}
    try:
        engine = sqlalchemy.create_engine(parsed, **options)
        # Eight workers that start together would make the same tables at once.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_lock(0)"))
            found = RDBStorage(parsed.render_as_string(hide_password=False), engine_kwargs=options)
        engine.dispose()
    except ImportError as error:
        raise StoreError(f"PARIBUS_STORAGE: {error}; `pip install 'paribus[postgresql]'` brings the driver") from error
    except Exception as error:
        if not is_outage(error):
            raise
        raise StoreError(f"PARIBUS_STORAGE: {where} cannot be used: {_first_line(error)}") from None
    return found


def is_outage(error: Exception) -> bool:
    """Whether a database is at fault: away, restarting, refusing; not what was asked of it."""
    return isinstance(error, StorageInternalError) or type(error).__module__.startswith("sqlalchemy.")


P = ParamSpec("P")
T = TypeVar("T")


def patiently(method: Callable[P, T]) -> Callable[P, T]:
    """Ask again while the database is away, for OUTAGE_SECONDS. What is asked must bear to be asked twice."""

    @wraps(method)
    def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        since: float | None = None
        while True:
            try:
                found = method(*args, **kwargs)
            except Exception as error:
                if not is_outage(error):
                    raise
                if since is None:
                    since = time.monotonic()
                    print(f"the queue's database is away ({_first_line(error)}); waiting for it", file=sys.stderr)
                elif time.monotonic() - since > OUTAGE_SECONDS:
                    raise StoreError(f"the queue's database is away: {_first_line(error)}") from error
                time.sleep(1.0)
                continue
            if since is not None:
                print("the queue's database is back", file=sys.stderr)
            return found

    return ask


def _first_line(error: Exception) -> str:
    """What the database said, without SQL or address."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return lines[0] if lines else type(cause).__name__
