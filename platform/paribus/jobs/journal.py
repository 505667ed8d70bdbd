"""Where a queue is kept: an Optuna journal file a study, appended under a lock of our own. The one place that opens it.

Optuna's own journal locks are files that outlive their holder (everybody waits 30 seconds for a killed worker), and a
line torn by a killed writer makes the study unloadable for ever (optuna/optuna#5138). A flock dies with its holder, and
the next writer cuts the torn line off.
"""

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock  # private: pinned by a test

from paribus.errors import StoreError
from paribus.store.lease import exclusive
from paribus.store.store import Store, writing

SUFFIX = ".journal"


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


def file_name(queue: str) -> str:
    """The name of a queue (experiment@scale) as a file name."""
    return quote(queue, safe="@ ")


def queues(store: Store) -> list[str]:
    """The names of the queues in `store`."""
    return sorted(unquote(path.name.removesuffix(SUFFIX)) for path in (store.root / "queue").glob(f"*{SUFFIX}"))


def storage(store: Store, queue: str) -> JournalStorage:
    """The Optuna storage of `queue`: a journal in `store`, made if need be. PARIBUS_STORAGE must not name another."""
    if url := os.environ.get("PARIBUS_STORAGE"):
        scheme = urlsplit(url).scheme  # not the whole URL, which may hold a password
        reason = (
            "SQLite hands one trial to two workers (163 times in 1,600 trials with 8 workers)"
            if scheme.startswith("sqlite")
            else "only the journal file in the store is supported so far"
        )
        raise StoreError(f"PARIBUS_STORAGE: found a URL of kind {scheme!r}, but {reason}; unset it to use the journal")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    store.prepare()
    path = store.root / "queue" / f"{file_name(queue)}{SUFFIX}"
    with writing(store.root):
        path.parent.mkdir(exist_ok=True)
        check_flock(path)
        try:
            return JournalStorage(JournalFileBackend(str(path), FlockLock(path)))
        except ValueError as error:
            raise StoreError(
                f"{path}: damaged ({error}); move it away and queue the experiment again, finished stages are kept"
            ) from error
