"""Workers that die are replaced, as long as runs get done in between."""

import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from paribus.jobs import pool
from paribus.jobs.cards import ANYWHERE, Slot
from paribus.jobs.pool import Pool, _Worker
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store


def test_slots_that_were_left_empty_are_filled_again_once_a_run_got_done(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [1, 1, 1, 1, 0, 0]
    done = [0, 0, 0, 1]  # as each death finds it

    def start(self: Pool, slot: Slot) -> _Worker:
        process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({codes.pop(0)})"])
        return _Worker(process, tempfile.TemporaryFile(), slot)

    monkeypatch.setattr(Pool, "_start", start)
    monkeypatch.setattr(pool, "DEATHS", 1)
    monkeypatch.setattr(pool, "entries", lambda *_: [("queue", Mock(status="done"))] * done.pop(0))
    Pool(find(root), Store(tmp_path / "store"), [], [ANYWHERE] * 2, Runtime(device="cpu")).work(lambda: None)
    # The third death is one too many, the fourth comes after a run: both are made good.
    assert codes == [] and done == []


def test_a_signal_between_two_starts_leaves_no_worker_behind(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(self: Pool, slot: Slot) -> _Worker:
        if started:
            raise KeyboardInterrupt
        started.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return _Worker(started[0], tempfile.TemporaryFile(), slot)

    monkeypatch.setattr(Pool, "_start", start)
    with pytest.raises(KeyboardInterrupt):
        Pool(find(root), Store(tmp_path / "store"), [], [ANYWHERE] * 2, Runtime(device="cpu")).work(lambda: None)
    assert started[0].poll() is not None
