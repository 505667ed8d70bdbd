"""A worker says how each run ended, whatever went wrong in it."""

from pathlib import Path
from typing import Any

import pytest

from paribus.jobs.queue import Queue
from paribus.jobs.runs import remember
from paribus.jobs.worker import work
from paribus.plan.plan import plan
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store

ROOT = Path(__file__).parents[2]


def test_a_run_whose_evaluation_lacks_its_loss_has_failed_and_the_worker_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None: ...

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("paribus.jobs.worker.execute", nothing)
    store = Store(tmp_path / "results")
    store.prepare()
    planned = plan(find(), "masking", "debug", 1, {})
    remember(store, planned)
    queue = Queue(store, planned.name)
    queue.add(planned.runs)
    assert work(find(), store, [planned.name], Runtime(device="cpu")) == len(planned.runs) == 2
    assert [(entry.status, entry.reason) for entry in queue.entries()] == [("failed", "StopIteration: ")] * 2
