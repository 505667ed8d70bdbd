"""The journal: what survives a killed writer, what is refused as a storage, what we use of Optuna's insides."""

import errno
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
from optuna.storages.journal._file import BaseJournalFileLock

from paribus.errors import StoreError
from paribus.jobs import journal
from paribus.jobs.journal import FlockLock, heal, queues, storage
from paribus.jobs.queue import Queue
from paribus.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_optunas_private_lock_class_still_has_the_two_methods_that_ours_replaces() -> None:
    assert BaseJournalFileLock.__abstractmethods__ == {"acquire", "release"}
    assert issubclass(FlockLock, BaseJournalFileLock)


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"", b""), (b"{}\n", b"{}\n"), (b'{}\n{"op', b"{}\n"), (b'{"op', b""), (b"{}\n\0\0", b"{}\n")],
)
def test_healing_keeps_whole_lines_only(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "x.journal"
    path.write_bytes(before)
    heal(path)
    assert path.read_bytes() == after


def test_a_line_torn_by_a_killed_writer_is_gone_after_the_next_write(store: Store) -> None:
    queue = Queue(store, "masking@debug")
    path = store.root / "queue" / "masking@debug.journal"
    with path.open("a") as stream:
        stream.write('{"op_code": 8, "wor')
    queue._study.set_user_attr("written", "after")
    assert Queue(store, "masking@debug")._study.user_attrs == {"written": "after"}
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_the_lock_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    path.touch()
    script = (
        "import sys; from pathlib import Path; from paribus.jobs.journal import FlockLock\n"
        "lock = FlockLock(Path(sys.argv[1])); lock.acquire(); print('held', flush=True); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder, (tmp_path / "x.journal.flock").open("a") as lock:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.kill()
        holder.wait()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_damaged_journal_is_named_in_one_line(store: Store) -> None:
    Queue(store, "masking@debug")
    path = store.root / "queue" / "masking@debug.journal"
    path.write_text("not a journal\n" + path.read_text())
    with pytest.raises(StoreError, match=r"masking@debug\.journal: damaged .*queue the experiment again"):
        storage(store, "masking@debug")


def test_a_file_system_whose_locks_keep_nobody_out_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal.fcntl, "flock", lambda *_: None)
    with pytest.raises(StoreError, match="keeps nobody out"):
        storage(store, "masking@debug")


def test_a_file_system_without_locks_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(journal.fcntl, "flock", no_locks)
    with pytest.raises(StoreError, match=r"flock fails \(No locks available\)"):
        storage(store, "masking@debug")


@pytest.mark.parametrize(
    ("url", "reason"),
    [("sqlite:///queue.db", "hands one trial to two workers"), ("postgresql://me:secret@db/queue", "only the journal")],
)
def test_another_storage_is_refused_with_the_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    monkeypatch.setenv("PARIBUS_STORAGE", url)
    with pytest.raises(StoreError, match=reason) as error:
        storage(store, "masking@debug")
    assert "secret" not in str(error.value)
    assert not store.root.exists()


def test_queues_are_listed_by_name_whatever_the_name(store: Store) -> None:
    names = ["../outside@debug", "masking@debug", "mäsking 2@tiny"]
    for name in names:
        storage(store, name)
    assert queues(store) == names
    assert {path.parent for path in store.root.rglob("*.journal")} == {store.root / "queue"}


def test_a_store_without_a_queue_lists_none(store: Store) -> None:
    assert queues(store) == []
