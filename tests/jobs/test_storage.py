"""The journal: what survives a killed writer, what is refused as a storage, what we use of Optuna's insides."""

import errno
import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from optuna.exceptions import StorageInternalError
from optuna.storages.journal._file import BaseJournalFileLock

from paribus.errors import StoreError
from paribus.jobs import storage as storages
from paribus.jobs.queue import Queue
from paribus.jobs.storage import FlockLock, heal, open_storage, queues
from paribus.plan.plan import plan
from paribus.project import find
from paribus.store.store import Store

ROOT = Path(__file__).parents[2]

ROOT = Path(__file__).parents[2]


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
    assert Queue(store, "masking@debug")._study.user_attrs["written"] == "after"
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_the_lock_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    path.touch()
    script = (
        "import sys; from pathlib import Path; from paribus.jobs.storage import FlockLock\n"
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
        open_storage(store, "masking@debug")


def test_a_file_system_whose_locks_keep_nobody_out_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages.fcntl, "flock", lambda *_: None)
    with pytest.raises(StoreError, match="keeps nobody out"):
        open_storage(store, "masking@debug")


def test_a_file_system_without_locks_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(storages.fcntl, "flock", no_locks)
    with pytest.raises(StoreError, match=r"flock fails \(No locks available\)"):
        open_storage(store, "masking@debug")


@pytest.mark.parametrize(
    ("url", "reason"),
    [("sqlite:///queue.db", "hands one trial to two workers"), ("mysql://me:secret@db/queue", "expected postgresql://USER@HOST/DATABASE")],
)
def test_another_storage_is_refused_with_the_reason(
    store: Store, monkeypatch: pytest.MonkeyPatch, url: str, reason: str
) -> None:
    monkeypatch.setenv("PARIBUS_STORAGE", url)
    with pytest.raises(StoreError, match=reason) as error:
        open_storage(store, "masking@debug")
    assert "secret" not in str(error.value)
    assert not store.root.exists()


def test_queues_are_listed_by_name_whatever_the_name(store: Store) -> None:
    names = ["../outside@debug", "masking@debug", "mäsking 2@tiny"]
    run, _ = plan(find(ROOT), "masking", "debug", seeds=1).runs
    for name in names:
        Queue(store, name).add([run])
    assert queues(store) == names
    assert {path.parent for path in store.root.rglob("*.journal")} == {store.root / "queue"}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://me:secret@127.0.0.1:1/queue", r"postgresql://127\.0\.0\.1:1/queue cannot be used: .*refused"),
        ("postgresql://me:secret@127.0.0.1:port/queue", "not a URL; expected postgresql://USER@HOST:PORT/DATABASE"),
    ],
)
def test_a_database_that_cannot_be_used_is_named_without_its_password(
    store: Store, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setenv("PARIBUS_STORAGE", url)
    with pytest.raises(StoreError, match=message) as error:
        open_storage(store, "masking@debug")
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_an_outage_is_waited_out_and_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(storages.time, "sleep", lambda seconds: None)
    failures = iter([StorageInternalError("SELECT ..."), StorageInternalError("SELECT ...")])

    @storages.patiently
    def ask() -> str:
        for failure in failures:
            raise failure from ConnectionRefusedError("connection refused\nis it running?")
        return "answer"

    assert ask() == "answer"
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "the queue's database is away (connection refused); waiting for it",
        "the queue's database is back",
    ]


def test_a_restart_of_the_database_loses_nothing_and_fails_nobody(
    store: Store, postgres: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = Queue(store, "masking@debug")
    queue.add(plan(find(ROOT), "masking", "debug", seeds=1).runs)
    claim = queue.claim()
    assert claim
    postgres.stop()
    assert not claim.cancel_requested()
    starter = threading.Timer(0.5, postgres.start)
    starter.start()
    claim.done(0.5)
    starter.join()
    assert [entry.status for entry in queue.entries()] == ["done", "waiting"]
    assert "waiting for it" in capsys.readouterr().err


def test_an_outage_without_end_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storages, "OUTAGE_SECONDS", 0.0)
    monkeypatch.setattr(storages.time, "sleep", lambda seconds: None)

    @storages.patiently
    def ask() -> None:
        raise StorageInternalError("gone")

    with pytest.raises(StoreError, match="the queue's database is away: gone"):
        ask()


def test_a_store_without_a_queue_lists_none(store: Store) -> None:
    assert queues(store) == []
