"""A store with finished, missing and diverged runs under hostile names, served as users serve it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paribus.jobs.plans import enqueue
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Stage
from paribus.project import Project, find
from paribus.store.store import Store

HOSTILE = "<script>alert(1)</script>%_&#$ \u202e\U0001f600 '\"=1+1"
FILES = {
    "paribus.toml": "",
    "ablations/hostile.yaml": f"""
source: a test
base: plain
levels:
  plain: {{objective.rate: 0.15}}
  {json.dumps(HOSTILE, ensure_ascii=False)}: {{objective.rate: 0.3}}
  {json.dumps("long" * 75)}: {{objective.rate: 0.4}}
""",
    "experiments/hostile.yaml": f"""
question: {json.dumps("Does " + HOSTILE + " hurt?", ensure_ascii=False)}
expect: {json.dumps("no " + HOSTILE, ensure_ascii=False)}
base: bert-relative
factors: [hostile]
seeds: 3
""",
    "experiments/masks.yaml": """
question: Does drawing a fresh mask at every visit beat a fixed set of masks?
expect: no measurable difference
reproduces: roberta-table1
base: bert-relative
factors: [masking]
seeds: 4
""",
}


def measure(run: PlannedRun, stage: Stage) -> list[tuple[str, str | None, float]]:
    """Numbers by hand: each later arm is a little better."""
    match stage.kind:
        case "pack":
            return [("unigram_loss", "test", 6.0), ("unigram_bits_per_byte", "test", 2.5)]
        case "pretrain":
            return [("train_loss", "train", 4.6), ("parameters", None, 1234567.0)]
        case "evaluate":
            loss = 4.5 + 0.02 * run.seed + 0.003 * run.seed**2 - (0.0 if run.arm.baseline else 0.1)
            return [("loss", "validation", loss), ("loss", "test", loss), ("perplexity", "test", 90.0)]
    return []


def finish(store: Store, run: PlannedRun, outcome: str = "done") -> None:
    """Finish every stage of a run with numbers by hand."""
    for stage in run.stages:
        if store.has(stage.key):
            continue
        work = store.claim(stage)
        assert work
        with work:
            for metric, split, value in measure(run, stage):
                work.row(metric, value, split=split, n=100)
            if stage.kind == "pretrain":
                points = [
                    {"step": step, "time": 1.0, "train/loss": 4 + 2 / step, "train/tokens": step * 1000}
                    for step in range(1, 41)
                ]
                (work.out / "curve.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))
            provenance = store.record_provenance(
                {"commit": "c0ffee", "dirty": False, "diff": "", "paribus": "0.1.0", "packages": {}}
            )
            work.commit(provenance, outcome if stage.kind == "pretrain" else "done")
        if stage.kind == "pretrain" and outcome == "diverged":
            return


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("pages")
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return find(folder)


@pytest.fixture(scope="session")
def store(project: Project) -> Store:
    """`masks`: one run missing. `hostile`: one diverged."""
    found = Store(project.store)
    found.prepare()
    for name in ("masks", "hostile"):
        planned = plan(project, name, "debug", None, None, found)
        enqueue(planned, found)
        for run in planned.runs:
            if (name, run.arm.label, run.seed) == ("hostile", HOSTILE, 2):
                finish(found, run, "diverged")
            elif (name, run.arm.label, run.seed) != ("masks", "dynamic", 3):
                finish(found, run)
    return found


@pytest.fixture(scope="session")
def planned(project: Project, store: Store) -> Callable[[str], Plan]:
    return lambda name: plan(project, name, "debug", None, None, store)


@pytest.fixture(scope="session")
def server(project: Project, store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `paribus ui` over that store, its runs mirrored."""
    paribus = [sys.executable, "-m", "paribus"]
    subprocess.run([*paribus, "sync"], cwd=project.root, check=True, capture_output=True)
    publish = [*paribus, "publish", "hostile", "--scale", "debug"]
    subprocess.run(publish, cwd=project.root, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as stream:
        started = subprocess.Popen(
            [*paribus, "ui", "--port", str(port)],
            cwd=project.root,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/paribus/papers", timeout=5).read()
                break
            except OSError:
                assert started.poll() is None, log.read_text()
                time.sleep(0.2)
        else:
            pytest.fail(log.read_text())
        yield address
    finally:
        os.killpg(started.pid, 15)
        started.wait(20)


@pytest.fixture(scope="session")
def browser() -> Iterator[object]:
    """A headless Chromium from the system."""
    playwright = pytest.importorskip("playwright.sync_api")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if binary is None:
        pytest.skip("needs a Chromium on this machine")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=binary, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tmp_path / "page.html"
