"""Mirroring while workers run: an outage delays nobody, is said once, and what was missed arrives afterwards."""

import errno
import socket
import time
from pathlib import Path

import pytest

from paribus.errors import SpecError
from paribus.plan.plan import Plan, plan
from paribus.project import Project, find
from paribus.store.lease import Lease
from paribus.store.store import Store
from paribus.tracking import live
from paribus.tracking.live import Mirroring
from paribus.tracking.mirror import Counts


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "paribus.toml").write_text("")
    return find(tmp_path)


def mirroring(project: Project, monkeypatch: pytest.MonkeyPatch, outages: list[str]) -> Mirroring:
    """One whose looks, 10 ms apart, meet these outages."""
    store = Store(project.store)
    store.prepare()
    met = iter(outages)
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live, "sync", lambda *_: Counts(outage=next(met, outages[-1])))
    return Mirroring(project, store, [plan(project, "masking", "debug", results=store)])


def test_an_outage_and_its_end_are_said_once_each(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with mirroring(project, monkeypatch, ["", "it is down", "it is down", "it is still down", "", ""]):
        time.sleep(0.3)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "mlflow: it is down; the runs go on, and it is asked again",
        "mlflow: is back, and gets what it missed",
    ]


def test_an_experiment_that_is_edited_meanwhile_and_does_not_plan_is_said_and_looked_at_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([SpecError("mine.yaml: no such key"), None])

    def again(found: Plan, *_: object) -> Plan:
        if error := next(looks, None):
            raise error
        return found

    monkeypatch.setattr(live, "again", again)
    with mirroring(project, monkeypatch, [""]):
        time.sleep(0.3)
    assert capsys.readouterr().err.splitlines() == [
        "mlflow: mine.yaml: no such key; the runs go on, and it is asked again",
        "mlflow: is back, and gets what it missed",
    ]


def test_a_full_disk_is_said_and_looked_at_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread goes on: what raises in it would be a traceback, and nothing more sent."""
    mirror, acquire = mirroring(project, monkeypatch, [""]), Lease.acquire
    looks = iter([OSError(errno.ENOSPC, "No space left on device"), OSError(errno.ESTALE, "Stale file handle"), None])

    def acquire_or_fail(lease: Lease) -> bool:
        if error := next(looks, None):
            raise error
        return acquire(lease)

    monkeypatch.setattr(Lease, "acquire", acquire_or_fail)
    with mirror:
        time.sleep(0.3)
    full, back = capsys.readouterr().err.splitlines()
    assert full.startswith(f"mlflow: {project.store}: no space left on the disk")
    assert back == "mlflow: is back, and gets what it missed"


def test_what_is_missing_at_the_end_is_said(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with mirroring(project, monkeypatch, ["it is down"]):
        time.sleep(0.1)
    assert "mlflow lacks what came last; `paribus sync` brings it up to date" in capsys.readouterr().err


def test_a_server_that_takes_connections_and_never_answers_delays_the_end_by_little(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(project.store)
    store.prepare()
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live, "PATIENCE_SECONDS", 0.2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()

        def hang(*_: object) -> Counts:
            with socket.create_connection(deaf.getsockname()) as asked:
                asked.settimeout(1.0)
                try:
                    asked.recv(1)
                except OSError:
                    return Counts(outage="it does not answer")
            raise AssertionError

        monkeypatch.setattr(live, "sync", hang)
        mirror = Mirroring(project, store, [plan(project, "masking", "debug", results=store)])
        with mirror:
            time.sleep(1.3)  # one look has found out
            began = time.monotonic()
        assert time.monotonic() - began < 0.9
