"""Leases: one holder at a time, the dead are replaced at once, the silent after the grace time."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from paribus.errors import LostLease
from paribus.store.lease import Lease, holder, is_live
from paribus.store.store import Store

Spawn = Callable[..., "subprocess.Popen[str]"]
HOUR = 3600.0


def write_lease(folder: Path, **told: object) -> Path:
    """A lease file as another worker would have written it; by default of this very process."""
    path = folder / "stage.json"
    me = {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}
    path.write_text(json.dumps({"owner": "other", **me, **told}))
    return path


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first, second = Lease(tmp_path, "stage", HOUR), Lease(tmp_path, "stage", HOUR)
    assert first.acquire() and not second.acquire()
    first.release()
    assert second.acquire()
    with pytest.raises(LostLease), first.held():
        pass
    second.release()


def test_releasing_a_lost_lease_does_not_free_the_other_ones(tmp_path: Path) -> None:
    first, second = Lease(tmp_path, "stage", HOUR), Lease(tmp_path, "stage", HOUR)
    assert first.acquire()
    (tmp_path / "stage.json").unlink()
    assert second.acquire()
    first.release()
    with second.held():
        pass
    second.release()


def test_a_dead_process_of_this_host_is_replaced_at_once(store: Store, spawn: Spawn) -> None:
    """At once, with a grace time of an hour; also while it is a zombie, since its parent may not look for long."""
    process = spawn("")
    assert process.stdout and process.stdout.read() == ""  # it has ended, but nobody has waited for it
    path = write_lease(store.root / "leases", pid=process.pid, started=psutil.Process(process.pid).create_time())
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert not is_live(path, HOUR)
    process.wait()
    assert not is_live(path, HOUR)
    lease = Lease(store.root / "leases", "stage", HOUR)
    assert lease.acquire()
    lease.release()


def test_a_process_that_was_given_the_pid_of_a_dead_one_is_not_taken_for_it(tmp_path: Path) -> None:
    assert not is_live(write_lease(tmp_path, started=psutil.Process().create_time() - 60), HOUR)
    assert is_live(write_lease(tmp_path), HOUR)


def test_a_worker_of_another_host_is_given_up_after_the_grace_time_only(tmp_path: Path) -> None:
    path = write_lease(tmp_path, host="elsewhere", pid=1)
    assert is_live(path, 60.0)
    os.utime(path, (time.time() - 61, time.time() - 61))
    assert not is_live(path, 60.0)


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
def test_a_host_whose_clock_is_wrong_takes_over_no_live_worker_and_every_silent_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    """Files are stamped by the file server's clock, here the true one; this host's own is an hour off."""
    path = write_lease(tmp_path, host="elsewhere", pid=1)
    silent = path.stat().st_mtime - 61
    true = time.time
    monkeypatch.setattr("paribus.store.lease.time.time", lambda: true() + skew)
    assert is_live(path, 60.0)
    os.utime(path, (silent, silent))
    assert not is_live(path, 60.0)


def test_a_lease_says_which_slurm_job_its_holder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(tmp_path, "stage", HOUR)
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)
    for variables, job in (
        ({}, None),
        ({"SLURM_JOB_ID": "8"}, "8"),
        ({"SLURM_JOB_ID": "8", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}, "7_1"),
    ):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert lease.acquire()
        assert (holder(tmp_path / "stage.json") or {})["job"] == job
        lease.release()


def test_a_torn_lease_file_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text('{"owner": "x')
    assert holder(tmp_path / "stage.json") is None
    lease = Lease(tmp_path, "stage", HOUR)
    assert lease.acquire()
    lease.release()


def test_a_stopped_process_is_taken_over_and_finds_out(store: Store, spawn: Spawn) -> None:
    sleeper = spawn(
        "lease = store.lease('stage')\n"
        "say('held')\n"
        "import time\n"
        "while not lease.lost:\n"
        "    time.sleep(0.01)\n"
        "try:\n"
        "    with lease.held():\n"
        "        say('mine')\n"
        "except LostLease:\n"
        "    say('lost')\n"
    )
    assert sleeper.stdout and sleeper.stdin
    assert sleeper.stdout.readline() == "held\n"
    assert store.lease("stage") is None
    sleeper.send_signal(signal.SIGSTOP)
    while (lease := store.lease("stage")) is None:
        time.sleep(0.01)
    sleeper.send_signal(signal.SIGCONT)
    sleeper.stdin.write("\n")
    sleeper.stdin.flush()
    assert sleeper.stdout.readline() == "lost\n"
    with lease.held():
        pass
    lease.release()


def test_a_heartbeat_keeps_a_lease_beyond_its_grace_time(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "stage", 0.2)
    assert lease.acquire()
    acquired = (tmp_path / "stage.json").stat().st_mtime_ns
    while (tmp_path / "stage.json").stat().st_mtime_ns == acquired:
        time.sleep(0.01)
    assert is_live(tmp_path / "stage.json", 0.2) and not lease.lost
    lease.release()
    assert holder(tmp_path / "stage.json") is None


def test_what_a_worker_left_that_died_after_its_work_was_over_is_swept_up_and_no_other_lease(store: Store) -> None:
    leases = store.root / "leases"
    living = store.lease("run-living")
    assert living
    for name in ("run-over", "run-lost"):
        lease = store.lease(name)
        assert lease
        lease._stop.set()
        told = json.loads((leases / f"{name}.json").read_text())
        (leases / f"{name}.json").write_text(json.dumps({**told, "pid": 2**22 + 1}))  # nobody has that number
    store.sweep({"run-over", "run-living"})
    assert sorted(path.stem for path in leases.glob("*.json")) == ["run-living", "run-lost"]
    living.release()
