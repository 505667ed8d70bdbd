"""Mirroring while workers run: an outage delays nobody, is said once, and what was missed arrives afterwards."""

import errno
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.files import write_atomically
from paribus.jobs.runs import remember
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


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, for a machine may have other work."""
    last = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < last
        time.sleep(0.01)


def mirroring(project: Project, monkeypatch: pytest.MonkeyPatch, outages: list[str]) -> Mirroring:
    """One whose looks, 10 ms apart, meet these outages, the last one until its end; each leaves the list."""
    store = queue(project)
    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live, "sync", lambda *_: Counts(outage=outages.pop(0) if outages[1:] else outages[0]))
    return Mirroring(project, store, ["masking@debug"])


def queue(project: Project) -> Store:
    """The project's store, asked for an experiment."""
    store = Store(project.store)
    store.prepare()
    remember(store, plan(project, "masking", "debug", results=store))
    return store


def test_an_outage_and_its_end_are_said_once_each(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outages = ["", "it is down", "it is down", "it is still down", "", ""]
    with mirroring(project, monkeypatch, outages):
        until(lambda: len(outages) == 1)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "mlflow: it is down; the runs go on, and it is asked again",
        "mlflow: is back, and gets what it missed",
    ]


def test_every_look_is_at_the_experiment_as_it_is_by_then(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was planned before an edit would come back among what MLflow shows; an edit may not plan at first."""
    store, file = Store(project.store), project.root / "experiments/mine.yaml"
    store.prepare()
    text = "{question: q, expect: e, base: bert-relative, factors: [masking], tasks: [], seeds: 1}"
    file.parent.mkdir()
    file.write_text(text)
    remember(store, plan(project, "mine", "debug", results=store))
    looks: list[tuple[Plan, bool]] = []

    def look(found: Plan, store: Store, uri: str, live: bool, table: object) -> Counts:
        looks.append((found, table is not None))
        return Counts()

    monkeypatch.setattr(live, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live, "sync", look)
    mirror = Mirroring(project, store, ["mine@debug"])
    with mirror:
        until(lambda: looks)
        write_atomically(file, "{no: such key}")
        until(lambda: mirror._left_out)
        before = len(looks)
        write_atomically(file, text.replace("}", ", set: {budget.train_tokens: 20480}}"))
        until(lambda: len(looks) > before)
    tokens = [found.baseline.run.budget.train_tokens for found, _ in looks]
    assert tokens[0] != tokens[-1] == 20480 and tokens == sorted(tokens, reverse=tokens[0] > 20480)
    assert [whole for _, whole in looks] == [False] * (len(looks) - 1) + [True]
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("mlflow: mine@debug is left out: ") and said.endswith("; it is looked at again")


def test_a_full_disk_is_said_and_looked_at_again(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread goes on: what raises in it would be a traceback, and nothing more sent."""
    outages = ["", ""]
    mirror, acquire = mirroring(project, monkeypatch, outages), Lease.acquire
    looks = iter([OSError(errno.ENOSPC, "No space left on device"), OSError(errno.ESTALE, "Stale file handle"), None])

    def acquire_or_fail(lease: Lease) -> bool:
        if error := next(looks, None):
            raise error
        return acquire(lease)

    monkeypatch.setattr(Lease, "acquire", acquire_or_fail)
    with mirror:
        until(lambda: len(outages) == 1)
    full, back = capsys.readouterr().err.splitlines()
    assert full.startswith(f"mlflow: {project.store}: no space left on the disk")
    assert back == "mlflow: is back, and gets what it missed"


def test_what_is_missing_at_the_end_is_said(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outages = ["it is down", "it is down"]
    with mirroring(project, monkeypatch, outages):
        until(lambda: len(outages) == 1)
    assert "mlflow lacks what came last; `paribus sync` brings it up to date" in capsys.readouterr().err


def test_a_server_that_takes_connections_and_never_answers_delays_the_end_by_little(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = queue(project)
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
        mirror = Mirroring(project, store, ["masking@debug"])
        with mirror:
            until(lambda: mirror._outage)  # one look has found out
            began = time.monotonic()
        assert time.monotonic() - began < 0.9
        mirror._thread.join()  # before its server is gone
