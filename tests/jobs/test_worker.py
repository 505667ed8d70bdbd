"""A worker says how each run ended, whatever went wrong in it."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paribus.errors import DiskFull, Stopped
from paribus.jobs import worker
from paribus.jobs.queue import Queue
from paribus.jobs.runs import remember
from paribus.jobs.worker import work
from paribus.plan.plan import plan
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store

ROOT = Path(__file__).parents[2]
CPU = Runtime(device="cpu")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(ROOT)
    found = Store(tmp_path / "results")
    found.prepare()
    return found


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue of two runs."""
    planned = plan(find(), "masking", "debug", 1, {})
    remember(store, planned)
    found = Queue(store, planned.name)
    assert found.add(planned.runs)["queued"] == 2
    return found


def test_a_run_whose_evaluation_lacks_its_loss_has_failed_and_the_worker_goes_on(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None: ...

    monkeypatch.setattr("paribus.jobs.worker.execute", nothing)
    assert work(find(), store, [queue.name], CPU) == 2
    assert [(entry.status, entry.reason) for entry in queue.entries()] == [("failed", "StopIteration: ")] * 2


def test_a_worker_that_is_to_end_puts_its_run_back_and_takes_no_other(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[int] = []

    def interrupted(context: Any, *_: Any) -> None:
        assert not context.stop()
        heard.append(15)
        assert context.stop()
        raise Stopped

    monkeypatch.setattr("paribus.jobs.worker.execute", interrupted)
    assert work(find(), store, [queue.name], CPU, stop=lambda: bool(heard)) == 1
    assert [(entry.status, entry.attempt) for entry in queue.entries()] == [("waiting", 1), ("waiting", 0)]


def test_a_run_that_a_user_cancels_is_cancelled_and_the_worker_goes_on(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(context: Any, *_: Any) -> None:
        queue.cancel()
        assert context.stop()
        raise Stopped

    monkeypatch.setattr("paribus.jobs.worker.execute", cancelled)
    assert work(find(), store, [queue.name], CPU) == 1
    assert [entry.status for entry in queue.entries()] == ["cancelled", "cancelled"]


def test_a_worker_takes_over_as_soon_as_its_project_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "paribus.toml").write_text("lease_seconds = 5\n")
    asked = {"queues": [], "store": str(tmp_path / "results"), "runtime": {}, "cards": [], "packed": False}
    stores: list[Store] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(asked)))
    monkeypatch.setattr(worker, "Interrupt", lambda *_: SimpleNamespace(exit_code=0))
    monkeypatch.setattr(worker, "work", lambda project, store, *_: stores.append(store))
    assert worker.main() == 0
    assert [store.lease_seconds for store in stores] == [5.0]


def test_a_run_that_meets_the_end_of_the_disk_is_put_back(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise DiskFull("no space left")

    monkeypatch.setattr("paribus.jobs.worker.execute", full)
    with pytest.raises(DiskFull):
        work(find(), store, [queue.name], CPU)
    assert [entry.status for entry in queue.entries()] == ["waiting", "waiting"]
