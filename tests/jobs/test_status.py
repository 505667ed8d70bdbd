"""Where everything stands: what is shown, what is counted apart, how long is left."""

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console

from paribus.errors import ParibusError
from paribus.files import write_atomically
from paribus.jobs import logs, plans
from paribus.jobs.plans import Statuses, enqueue
from paribus.jobs.queue import Queue
from paribus.jobs.status import gpus, standing
from paribus.plan.plan import plan
from paribus.project import Project, find
from paribus.store.store import Store
from paribus.views import status_view

EXPERIMENT = """
question: q
expect: e
base: bert-relative
factors: [masking-rate]
levels: {masking-rate: ["15", "40"]}
seeds: 2
"""
NAME = "rates@debug"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "paribus.toml").write_text("")
    (tmp_path / "experiments/rates.yaml").write_text(EXPERIMENT)
    return find(tmp_path)


@pytest.fixture
def store(project: Project) -> Store:
    found = Store(project.store)
    enqueue(plan(project, "rates", "debug", results=found), found)
    return found


def shown(project: Project, store: Store, width: int = 80) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(status_view(store, [standing(project, store, NAME)], []))
    return capture.get()


def test_before_any_worker_everything_waits_and_nothing_is_foretold(project: Project, store: Store) -> None:
    found = standing(project, store, NAME)
    assert [entry.status for entry in found.reported] == ["waiting"] * 4
    assert (found.older, found.at_work, found.seconds_left) == (0, (), None)
    assert "4 runs: 4 waiting" in shown(project, store)


def test_the_grid_shows_each_run_and_what_is_at_work(project: Project, store: Store) -> None:
    queue = Queue(store, NAME)
    claims = [claim for _ in range(3) if (claim := queue.claim())]
    claims[0].done(0.0)
    claims[1].failed("KeyError: 'x'\nmore")
    stage = next(stage for stage in claims[2].run.stages if stage.kind == "pretrain")
    work = store.claim(stage)
    assert work
    with work:
        progress = {"step": 30, "steps": 120, "rate": 2500.0, "unit": "tokens", "loss": 4.5, "seconds_left": 90.0}

        write_atomically(work.scratch / "progress.json", json.dumps(progress))
        found = standing(project, store, NAME)
        text = shown(project, store)
    (at,) = found.at_work
    assert (at.entry.run, at.stage, at.share, at.loss) == (claims[2].run.key, stage.key, 0.25, 4.5)
    assert "1 running, 1 waiting, 1 failed" in text.replace("1 done, ", "") and "25%" in text and "30/120" in text
    assert f"{claims[1].run.key} (40, seed 0) failed: KeyError: 'x'" in text and "more" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_what_is_left_follows_from_what_was_measured(project: Project, store: Store) -> None:
    queue = Queue(store, NAME)
    first = queue.claim()
    assert first
    time.sleep(0.2)
    first.done(0.0)
    assert standing(project, store, NAME).seconds_left is None  # nobody works
    claim = queue.claim()
    left = standing(project, store, NAME).seconds_left
    took = queue.entries()[0].finished or 0, queue.entries()[0].started or 0
    assert claim and left == pytest.approx(3 * (took[0] - took[1]))


def test_runs_of_an_older_version_of_the_experiment_are_counted_apart(project: Project, store: Store) -> None:
    (project.root / "experiments/rates.yaml").write_text(EXPERIMENT.replace('"40"', '"30"'))
    newer = find(project.root)
    enqueue(plan(newer, "rates", "debug", results=store), store)
    found = standing(newer, store, NAME)
    assert found.older == 2 and {entry.arm for entry in found.runs} == {"15", "30"}
    assert "2 runs of an older version of the experiment are not shown" in shown(newer, store, 200)


def test_runs_of_an_older_version_are_counted_while_they_are_worked_at_and_not_once_they_ended(
    project: Project, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(store, NAME)
    claims = {claim.run.arm: claim for _ in range(2) if (claim := queue.claim())}
    (project.root / "experiments/rates.yaml").write_text(EXPERIMENT.replace('"40"', '"30"'))
    statuses = Statuses(project, store, [NAME])
    assert Counter(statuses()) == {"waiting": 2, "running": 2}
    claims["40"].failed("its rate is too high")
    claims["15"].failed("the disk was full")
    with monkeypatch.context() as patch:
        patch.setattr(plans, "plan", lambda *_: pytest.fail("planned again though the queue holds the same runs"))
        assert Counter(statuses()) == {"waiting": 2, "failed": 1}
    enqueue(plan(project, "rates", "debug", results=store), store)
    assert Counter(statuses()) == {"waiting": 4, "failed": 1}


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "ablations").mkdir()
    (tmp_path / "paribus.toml").write_text("")
    levels = 'levels: {plain: {objective.rate: 0.15}, "[red]x[/]": {objective.rate: 0.3}}'
    (tmp_path / "ablations/odd.yaml").write_text(f"source: s\nbase: plain\n{levels}\n")
    (tmp_path / "experiments/rates.yaml").write_text(EXPERIMENT.split("factors")[0] + "factors: [odd]\nseeds: 1\n")
    project = find(tmp_path)
    store = Store(project.store)
    enqueue(plan(project, "rates", "debug", results=store), store)
    assert "[red]x[/]" in shown(project, store)


def test_gpus_are_listed_by_the_drivers_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, NVIDIA H100, 97, 40000, 81559'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpus() == ["GPU 0 NVIDIA H100: 97 % busy, 40000 MiB of 81559 MiB"]


def test_a_log_is_followed_until_its_run_has_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.05)
    claim = Queue(store, NAME).claim()
    assert claim
    path = logs.log_path(store, claim.run.key)
    path.write_text("begun\n")

    def work() -> None:
        with path.open("a") as stream:
            for line in ("one\n", "two\n"):
                time.sleep(0.05)
                stream.write(line)
                stream.flush()
        claim.done(0.0)

    worker = threading.Thread(target=work)
    worker.start()
    text = "".join(logs.read(store, claim.run.key[:9], follow=True))
    worker.join()
    assert text == "begun\none\ntwo\n"


def test_a_log_that_nobody_will_write_is_not_waited_for(store: Store) -> None:
    queue = Queue(store, NAME)
    run = queue.entries()[0].run
    queue.cancel([run])
    with pytest.raises(ParibusError, match=f"{run}: no worker took it, and none will: cancelled"):
        next(logs.read(store, run, follow=True))
