"""Tuning at work, with a loss that is a formula: who works, how many do and who dies changes no trial and no choice."""

import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.jobs import worker
from paribus.jobs.queue import Queue
from paribus.jobs.tuning import advance, prune, suggest, write_tuning
from paribus.plan.plan import Plan, plan
from paribus.plan.tuning import Search, Trial
from paribus.project import Project, find
from paribus.spec.experiment import HyperbandPruner, MedianPruner, NoPruner
from paribus.spec.run import Runtime
from paribus.store.store import Store

SEARCH = Search(path="optimizer.lr", low=1e-3, high=1.6e-2, log=True, seed=1000)
RUN: Any = None  # a suggestion does not look at it
TRIALS = 6
EXPERIMENT = f"""
question: q
expect: e
base: bert-relative
factors: [batch-size]
levels: {{batch-size: [bsz-256, bsz-2k]}}
seeds: 2
tune: {{path: optimizer.lr, low: {{times: 0.5}}, high: {{times: 8}}, trials: {TRIALS}}}
"""
# A worker whose runs take no time; it kills itself before its DIE-th run is evaluated.
FAKE = """
import math, os, signal, sys
from pathlib import Path
import paribus.jobs.worker as worker
from paribus.execute import PretrainingEnded
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store

die, evaluated = int(sys.argv[3]), 0

def execute(context, stages):
    global evaluated
    lr, batch = context.run.optimizer.lr, context.run.budget.batch_tokens
    for stage in stages:
        while not context.store.has(stage.key):
            work = context.store.claim(stage)
            if work is None:
                continue
            with work:
                if stage.kind == "evaluate":
                    evaluated += 1
                    if evaluated == die:
                        os.kill(os.getpid(), signal.SIGKILL)
                    work.row("loss", math.log(lr / (5e-3 * math.sqrt(batch / 1024))) ** 2, split="validation")
                diverged = stage.kind == "pretrain" and lr > 0.03
                work.commit("-", **({"outcome": "diverged", "diverged_step": 1} if diverged else {}))
        if stage.kind == "pretrain" and context.store.record(stage.key)["outcome"] == "diverged":
            raise PretrainingEnded("diverged", 1)

worker.execute = execute
worker.ASK_SECONDS = 0.05
worker.work(find(Path(sys.argv[1])), Store(Path(sys.argv[2])), ["sizes@debug"], Runtime())
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("project")
    (folder / "experiments").mkdir()
    (folder / "paribus.toml").write_text("")
    (folder / "experiments/sizes.yaml").write_text(EXPERIMENT)
    return find(folder)


def queued(project: Project, root: Path) -> Store:
    """A store in which the experiment is queued."""
    store = Store(root)
    found = plan(project, "sizes", "debug", results=store)
    queue = Queue(store, found.name)
    for tuning in found.tunings:
        write_tuning(store, found.name, tuning, found.seeds, 0)
    assert queue.add(found.trials) == {"queued": 6}
    return store


def workers(project: Project, store: Store, count: int, die: int = 0) -> list[int]:
    """Let `count` workers work to their end; their exit codes."""
    command = [sys.executable, "-c", FAKE, str(project.root), str(store.root), str(die)]
    started = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(count)]
    return [process.wait() for process in started]


def outcome(project: Project, store: Store) -> tuple[dict[str, list[tuple[float, float | None]]], list[str]]:
    """Each arm's trials in order, and the keys of all runs."""
    found = plan(project, "sizes", "debug", results=store)
    trials = {tuning.arm.label: [(t.value, t.loss) for t in tuning.trials] for tuning in found.tunings}
    return trials, [run.key for run in found.known]


@pytest.fixture(scope="module")
def undisturbed(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that one worker worked in."""
    store = queued(project, tmp_path_factory.mktemp("undisturbed"))
    assert workers(project, store, 1) == [0]
    return store


def finished(project: Project, store: Store) -> Plan:
    found = plan(project, "sizes", "debug", results=store)
    assert not found.untuned and {stage.key for run in found.runs for stage in run.stages} <= store.keys()
    return found


def test_each_arm_gets_as_many_trials_and_its_runs_the_best_of_them(project: Project, undisturbed: Store) -> None:
    found = finished(project, undisturbed)
    assert [tuning.done for tuning in found.tunings] == [TRIALS, TRIALS]
    assert len(found.runs) == 4
    for arm, tuning in zip(found.arms, found.tunings, strict=True):
        least = min((trial.loss, trial.value) for trial in tuning.trials if trial.loss is not None)
        assert tuning.best and (tuning.best.loss, tuning.best.value) == least
        assert {run.arm.run.optimizer.lr for run in found.runs if run.arm is arm} == {tuning.best.value}
    assert any(trial.loss == math.inf for tuning in found.tunings for trial in tuning.trials)


def test_every_trial_and_run_is_in_the_queue_once_and_done_or_diverged(project: Project, undisturbed: Store) -> None:
    found = finished(project, undisturbed)
    entries = {entry.run: entry for entry in Queue(undisturbed, found.name).entries()}
    assert entries.keys() == {run.key for run in found.known}
    assert {run.key: run.trial for run in found.known} == {e.run: e.trial for e in entries.values()}
    assert {entry.status for entry in entries.values()} == {"done", "diverged"}
    assert all(entry.trial for entry in entries.values() if entry.status == "diverged")
    assert {entry.attempt for entry in entries.values()} == {1}


def test_two_workers_try_and_choose_what_one_does(project: Project, undisturbed: Store, tmp_path: Path) -> None:
    store = queued(project, tmp_path)
    assert workers(project, store, 2) == [0, 0]
    finished(project, store)
    assert outcome(project, store) == outcome(project, undisturbed)


@pytest.mark.parametrize("die", [2, 8])
def test_killed_in_a_trial_and_resumed_it_tries_and_chooses_the_same(
    project: Project, undisturbed: Store, tmp_path: Path, die: int
) -> None:
    store = queued(project, tmp_path)
    assert workers(project, store, 1, die) == [-signal.SIGKILL]
    assert plan(project, "sizes", "debug", results=store).untuned
    assert workers(project, store, 1) == [0]
    finished(project, store)
    assert outcome(project, store) == outcome(project, undisturbed)


def test_a_worker_waits_for_trials_of_others_and_ends_when_a_failed_one_blocks_the_rest(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = queued(project, tmp_path)
    queue = Queue(store, "sizes@debug")
    claims = [claim for _ in range(6) if (claim := queue.claim())]
    assert len(claims) == 6 and advance(store, queue)

    def fail_all(seconds: float) -> None:
        while claims:
            claims.pop().failed("out of memory")

    monkeypatch.setattr(time, "sleep", fail_all)  # the worker's only pause
    assert worker.work(project, store, ["sizes@debug"], Runtime()) == 0
    assert claims == [] and not advance(store, queue)


def test_asking_again_with_fewer_seeds_loses_none_that_were_asked_for(project: Project, tmp_path: Path) -> None:
    store = queued(project, tmp_path)
    for tuning in plan(project, "sizes", "debug").tunings:
        write_tuning(store, "sizes@debug", tuning, 1, 0)
    files = list((tmp_path / "runs" / "sizes@debug").glob("tune-*.json"))
    assert len(files) == 2 and all('"seeds": 2' in path.read_text() for path in files)


@given(st.lists(st.tuples(st.floats(1e-3, 1.6e-2), st.floats(0, 10) | st.just(math.inf)), min_size=3, max_size=8))
def test_a_suggestion_lies_in_the_range_and_depends_on_what_was_tried_alone(tried: list[tuple[float, float]]) -> None:
    trials = [Trial(value, RUN, loss) for value, loss in tried]
    found = suggest(SEARCH, trials)
    assert SEARCH.low <= found <= SEARCH.high and found == float(f"{found:.3g}")
    assert suggest(SEARCH, trials) == found


def test_suggestions_come_nearer_than_the_fixed_places() -> None:
    best = 3e-3

    def tried_at(value: float) -> Trial:
        return Trial(value, RUN, math.log(value / best) ** 2)

    fixed = [tried_at(value) for value in (4e-3, 2e-3, 8e-3)]
    tried = list(fixed)
    for _ in range(5):
        tried.append(tried_at(suggest(SEARCH, tried)))
    assert min(trial.loss or 0 for trial in tried) < min(trial.loss or 0 for trial in fixed)


# --- pruning ---

MEDIAN = MedianPruner(reports=8, warmup=1 / 3)
EARLIER = [{report: 5.0 + trial - report / 10 for report in range(1, 8)} for trial in range(3)]


def test_without_a_pruner_nothing_is_ended() -> None:
    assert not prune(NoPruner(reports=8), EARLIER, {report: 99.0 for report in range(1, 8)})


@pytest.mark.parametrize(
    ("told", "ended"),
    [
        ({1: 99.0}, False),  # within the warm-up
        ({1: 9.0, 2: 9.0, 3: 9.0, 4: 9.0}, True),
        ({1: 9.0, 2: 9.0, 3: 9.0, 4: 5.5}, False),
        ({1: 5.0, 2: 5.0, 3: 5.0, 4: 9.0}, False),  # its best so far counts
    ],
)
def test_the_median_pruner_ends_what_is_worse_than_the_median_after_its_warm_up(
    told: dict[int, float], ended: bool
) -> None:
    assert prune(MEDIAN, EARLIER, told) == ended
    assert not prune(MEDIAN, EARLIER[:2], told)  # too few to judge by


def test_hyperband_ends_what_is_not_among_the_best_of_its_rung() -> None:
    earlier = [{report: float(trial) for report in range(1, 9)} for trial in range(9)]
    pruner = HyperbandPruner(reports=9)
    for last, ended in ((99.0, True), (-1.0, False)):
        told = [{report: last for report in range(1, reports)} for reports in range(2, 10)]
        assert any(prune(pruner, earlier[:count], each) for count in range(1, 9) for each in told) == ended


def test_a_trial_that_diverged_before_it_told_anything_judges_nobody() -> None:
    assert not prune(MedianPruner(startup=1, reports=8), [{}, {}], {report: 99.0 for report in range(1, 8)})
