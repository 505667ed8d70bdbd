"""The queue: each run claimed once, none lost, whoever dies; order, cancel, retry."""

import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.errors import LostLease, ParibusError, StoreError
from paribus.jobs import queue as queues
from paribus.jobs.queue import Claim, Queue
from paribus.jobs.runs import read_run, run_path
from paribus.plan.plan import PlannedRun, plan
from paribus.plan.stages import Stages
from paribus.project import find
from paribus.store.store import Store

NAME = "masking@debug"
ROOT = Path(__file__).parents[2]


def planned(seeds: int, **overrides: Any) -> list[PlannedRun]:
    """Two arms at `seeds` seeds."""
    return plan(find(ROOT), "masking", "debug", seeds=seeds, overrides=overrides).runs


@pytest.fixture(params=["journal", "postgresql"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    if request.param == "postgresql":
        request.getfixturevalue("postgres")
    return Store(tmp_path)


@pytest.fixture
def queue(store: Store) -> Queue:
    return Queue(store, NAME)


def claimed(queue: Queue) -> Claim:
    """A claim that must be there."""
    claim = queue.claim()
    assert claim
    return claim


def statuses(queue: Queue) -> list[str]:
    return [entry.status for entry in queue.entries()]


# --- processes ---

PREAMBLE = """
import sys
from pathlib import Path
from paribus.errors import LostLease
from paribus.jobs.queue import Queue
from paribus.plan.plan import plan
from paribus.project import find
from paribus.store.store import Store

queue = Queue(Store(Path(sys.argv[1]), lease_seconds=float(sys.argv[2])), "masking@debug")
print("ready", flush=True)
input()
"""
WORK = "while claim := queue.claim():\n    print(claim.run.key, flush=True)\n    claim.done(0.0)\n"
HOLD = "claim = queue.claim()\nprint(claim.run.key, flush=True)\ninput()\n"
REAP_AND_WORK = "print(queue.reap(), flush=True)\n" + WORK
ADD = "runs = plan(find(Path(sys.argv[3])), 'masking', 'debug', seeds=40).runs\nprint(queue.add(runs)['queued'])\n"
TOO_LATE = HOLD + "try:\n    claim.done(0.0)\nexcept LostLease:\n    print('lost')\n"


@contextmanager
def processes(store: Store, script: str, count: int = 1) -> Iterator[list["subprocess.Popen[str]"]]:
    """`count` processes that have opened the queue and then start on `script` together."""
    command = [sys.executable, "-c", PREAMBLE + script, str(store.root), str(store.lease_seconds), str(ROOT)]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in started:
            assert line(process) == "ready"
        for process in started:
            go_on(process)
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def rest(process: "subprocess.Popen[str]") -> list[str]:
    """What a process still says until it ends, which it must do well."""
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.split()


def test_four_workers_claim_each_run_exactly_once(store: Store, queue: Queue) -> None:
    runs = planned(40)
    queue.add(runs)
    with processes(store, WORK, 4) as workers:
        taken = Counter(key for worker in workers for key in rest(worker))
    assert taken == Counter(run.key for run in runs)
    assert statuses(queue) == ["done"] * 80


def test_two_who_queue_at_once_queue_each_run_once(store: Store, queue: Queue) -> None:
    with processes(store, ADD, 2) as adders:
        queued = [int(rest(adder)[0]) for adder in adders]
    assert sum(queued) == 80
    assert len(queue.entries()) == 80


def test_the_run_of_a_killed_worker_is_claimed_again_exactly_once(store: Store, queue: Queue) -> None:
    first, *_ = runs = planned(2)
    queue.add(runs)
    with processes(store, HOLD) as (worker,):
        assert line(worker) == first.key
        assert queue.reap() == 0
        worker.kill()
        worker.wait()
        assert statuses(queue)[0] == "lost"
        with processes(store, REAP_AND_WORK, 2) as reapers:
            output = [rest(reaper) for reaper in reapers]
    assert sorted(reaped for reaped, *_ in output) == ["0", "1"]
    assert Counter(key for _, *keys in output for key in keys) == Counter(run.key for run in runs)
    assert [(entry.status, entry.attempt) for entry in queue.entries()] == [("done", 2)] + 3 * [("done", 1)]


def test_a_worker_that_slept_too_long_cannot_end_a_run_that_another_has_taken(tmp_path: Path) -> None:
    store = Store(tmp_path, lease_seconds=0.5)
    queue = Queue(store, NAME)
    queue.add(planned(1)[:1])
    with processes(store, TOO_LATE) as (sleeper,):
        line(sleeper)
        sleeper.send_signal(signal.SIGSTOP)
        while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:  # until then it may give a sign of life
            time.sleep(0.01)
        while not queue.reap():
            time.sleep(0.05)
        claim = claimed(queue)
        sleeper.send_signal(signal.SIGCONT)
        go_on(sleeper)
        assert rest(sleeper) == ["lost"]
    claim.done(1.0)
    assert queue._study.best_value == 1.0


# --- one process ---


def test_runs_are_taken_by_priority_and_then_in_the_order_of_the_plan(queue: Queue) -> None:
    runs = planned(3)
    queue.add(runs[:4])
    queue.add(runs[4:], priority=1)
    taken = [claimed(queue).run for _ in runs]
    assert [run.key for run in taken] == [run.key for run in (*runs[4:], *runs[:4])]
    assert [(run.seed, run.arm) for run in taken[2:]] == [(0, "static"), (0, "dynamic"), (1, "static"), (1, "dynamic")]


def test_a_run_that_would_wait_for_a_stage_in_the_making_goes_after_its_equals(store: Store, queue: Queue) -> None:
    runs = planned(2)
    queue.add(runs[1:])
    queue.add(runs[:1], priority=1)
    making = store.lease(runs[0].stage("pretrain").key)
    assert making and store.lease(runs[1].stage("pretrain").key)
    assert [claimed(queue).run.key for _ in runs] == [runs[i].key for i in (0, 2, 3, 1)]


def test_two_runs_of_an_arm_that_fail_alike_stop_the_others_until_retried(queue: Queue) -> None:
    runs = planned(4)
    queue.add(runs)
    for reason in ("KeyError: 'a'", "KeyError: 'b'", "KeyError: 'a'"):
        while (claim := claimed(queue)).run.arm != "static":
            claim.done(0.0)
        claim.failed(reason)
    last = [entry for entry in queue.entries() if entry.arm == "static"][-1]
    assert (last.status, last.attempt) == ("failed", 0)
    assert last.reason == "not tried: 2 runs of this arm failed alike: KeyError: 'a'"
    while claim := queue.claim():
        assert claim.run.arm == "dynamic"
        claim.done(0.0)
    assert queue.retry() == 4
    assert [claimed(queue).run.arm for _ in range(4)] == ["static"] * 4 and queue.claim() is None


def test_failures_of_an_arm_do_not_count_against_its_runs_with_a_corrected_spec(queue: Queue) -> None:
    queue.add([run for run in planned(3) if run.arm.label == "static"])
    for _ in range(2):
        claimed(queue).failed("no luck")
    corrected = [run for run in planned(3, precision="bf16") if run.arm.label == "static"]
    assert queue.add(corrected)["queued"] == 3
    claimed(queue).failed("no luck")
    assert statuses(queue) == ["failed"] * 4 + ["waiting"] * 2
    claimed(queue).failed("no luck")
    assert queue.claim() is None and statuses(queue) == ["failed"] * 6


def test_a_run_whose_workers_keep_dying_has_failed_at_last(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "DEATHS", 3)
    run, _ = planned(1)
    queue.add([run])
    for death in range(3):
        assert [entry.status for entry in queue.entries()] == ["waiting"]
        assert claimed(queue).attempt == death + 1
        (store.root / "leases" / f"{run.key}.json").unlink()
        assert queue.reap() == 1
    (entry,) = queue.entries()
    assert (entry.status, entry.reason) == ("failed", "its worker died 3 times")


def test_a_worker_with_other_code_is_refused_while_another_is_at_work(store: Store, queue: Queue) -> None:
    queue.add(planned(2))
    first = Queue(store, NAME, "paribus 1 (code a)")
    claim = claimed(first)
    newer = Queue(store, NAME, "paribus 1 (code b)")
    with pytest.raises(ParibusError, match=r"works on it with paribus 1 \(code a\), this worker would with .*code b"):
        newer.claim()
    assert claimed(Queue(store, NAME, "paribus 1 (code b)", any_code=True)).run.seed == 0
    assert claimed(first)
    claim.done(0.0)


def test_a_study_of_another_store_is_refused(store: Store, queue: Queue) -> None:
    queue._study.set_user_attr("store", "0123")
    with pytest.raises(StoreError, match=rf"is of the store with id 0123, but .* has id {store.id}"):
        Queue(store, NAME)


def test_what_is_cancelled_or_asked_again_before_any_worker_took_it_is_known(queue: Queue) -> None:
    runs = planned(2)
    queue.add(runs)
    assert queue.cancel([runs[0].key]) == 1 and queue.retry([runs[0].key]) == 1
    assert statuses(queue) == ["waiting"] * 4
    assert queue.cancel() == 4 and queue.cancel() == 0
    assert statuses(queue) == ["cancelled"] * 4 and queue.top() is None


def test_without_its_plan_a_queue_is_empty_and_knows_what_was_done_once_asked_again(store: Store, queue: Queue) -> None:
    runs = planned(1)
    queue.add(runs)
    claimed(queue).done(0.0)
    (store.root / "runs" / NAME / "plan.json").unlink()
    assert Queue(store, NAME).entries() == [] and Queue(store, NAME).claim() is None
    again = Queue(store, NAME)
    again.add(runs)
    assert statuses(again) == ["done", "waiting"]


def test_an_empty_queue_hands_out_nothing_and_invents_no_trial(queue: Queue) -> None:
    assert queue.claim() is None
    queue.add(planned(1))
    assert queue._study.trials == []
    while claim := queue.claim():
        claim.done(0.0)
    assert len(queue._study.trials) == 2


def test_a_run_is_queued_once_whatever_became_of_it_but_for_a_done_one_whose_stages_are_gone(
    store: Store, queue: Queue
) -> None:
    runs = planned(3)
    assert queue.add(runs + runs) == {"queued": 6, "waiting": 6}
    claimed(queue).done(0.0)
    claimed(queue).done(0.0)
    claimed(queue).failed("out of memory")
    claimed(queue).diverged(7)
    claimed(queue).cancelled()
    running = claimed(queue)
    for stage in runs[0].stages:
        store.folder(stage.key).mkdir(exist_ok=True)
    again = {"done": 1, "queued": 1, "failed": 1, "diverged": 1, "cancelled": 1, "running": 1}
    assert queue.add(runs) == again
    assert [entry.reason for entry in queue.entries()] == [None, None, "out of memory", "at step 7", None, None]
    assert claimed(queue).run.key == runs[1].key
    running.done(0.0)


def test_retry_queues_what_did_not_succeed_and_counts_the_attempts(queue: Queue) -> None:
    first, second = planned(1)
    queue.add([first, second])
    claimed(queue).failed("out of memory")
    claimed(queue).done(0.0)
    assert queue.retry([second.key]) == 0
    assert queue.retry() == 1
    assert queue.retry() == 0
    claim = claimed(queue)
    assert (claim.run.key, claim.attempt) == (first.key, 2)
    claim.done(0.0)
    assert statuses(queue) == ["done", "done"]
    assert queue.claim() is None


def test_cancelling_ends_what_waits_and_asks_what_runs(queue: Queue) -> None:
    runs = planned(2)
    queue.add(runs)
    claim = claimed(queue)
    assert queue.cancel([runs[1].key]) == 1
    assert not claim.cancel_requested()
    assert queue.cancel() == 3
    assert claim.cancel_requested()
    assert statuses(queue) == ["running", "cancelled", "cancelled", "cancelled"]
    claim.cancelled()
    assert statuses(queue) == ["cancelled"] * 4
    assert queue.claim() is None
    queue.retry([runs[0].key])
    assert not claimed(queue).cancel_requested()


def test_a_run_to_be_cancelled_does_not_come_back_when_it_is_preempted(queue: Queue) -> None:
    queue.add(planned(1)[:1])
    claim = claimed(queue)
    queue.cancel()
    claim.preempted()
    assert statuses(queue) == ["cancelled"]


def test_a_preempted_run_keeps_its_place(queue: Queue) -> None:
    runs = planned(1)
    queue.add(runs)
    claimed(queue).preempted()
    assert statuses(queue) == ["waiting", "waiting"]
    claim = claimed(queue)
    assert (claim.run.key, claim.attempt) == (runs[0].key, 2)


def test_a_run_that_two_experiments_share_is_worked_on_once_at_a_time(store: Store, queue: Queue) -> None:
    runs = planned(1)
    other = Queue(store, "other@debug")
    queue.add(runs)
    other.add(runs)
    claim = claimed(queue)
    assert claimed(other).run.key == runs[1].key
    assert other.claim() is None
    claim.done(0.0)
    assert claimed(other).run.key == runs[0].key


def test_an_end_after_the_lease_was_lost_says_so(store: Store, queue: Queue) -> None:
    run, _ = planned(1)
    queue.add([run])
    claim = claimed(queue)
    (store.root / "leases" / f"{run.key}.json").unlink()
    with pytest.raises(LostLease):
        claim.done(0.0)
    assert statuses(queue) == ["lost"]


def test_an_unknown_run_is_a_users_mistake(queue: Queue) -> None:
    queue.add(planned(1))
    for change in (queue.cancel, queue.retry):
        with pytest.raises(ParibusError, match="no run is called 'run-1'"):
            change(["run-1"])


def test_the_run_is_kept_complete_with_its_seed_and_its_arm(store: Store, queue: Queue) -> None:
    for run in planned(2):
        queue.add([run])
        kept = read_run(store, NAME, run.key)
        assert (kept.key, kept.arm, kept.levels, kept.seed) == (run.key, run.arm.label, run.arm.levels, run.seed)
        assert (kept.experiment, kept.scale) == ("masking", "debug")
        assert Stages(kept.run).at(kept.seed) == run.stages


def test_a_run_whose_file_is_gone_fails_and_the_next_one_is_taken(store: Store, queue: Queue) -> None:
    first, second = planned(1)
    queue.add([first, second])
    run_path(store, NAME, first.key).unlink()
    assert claimed(queue).run.key == second.key
    entry, _ = queue.entries()
    assert entry.status == "failed"
    assert entry.reason and f"{first.key}.json" in entry.reason


STEPS = ["done", "failed", "diverged", "cancelled", "preempted", "keep", "add", "cancel", "retry", "reap"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=12))
def test_whatever_happens_each_run_is_in_one_known_state(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        queue = Queue(Store(Path(folder)), NAME)
        runs = planned(2)
        queue.add(runs)
        model = {run.key: "waiting" for run in runs}
        for step in steps:
            if step == "add":
                queue.add(runs)
                model.update({key: "waiting" for key, status in model.items() if status == "done"})
            elif step == "cancel":
                queue.cancel()
                model.update({key: "cancelled" for key, status in model.items() if status == "waiting"})
            elif step == "retry":
                queue.retry()
                ended = ("failed", "diverged", "cancelled")
                model.update({key: "waiting" for key, status in model.items() if status in ended})
            elif step == "reap":
                assert queue.reap() == 0
            elif claim := queue.claim():
                assert model[claim.run.key] == "waiting"
                model[claim.run.key] = {"preempted": "waiting", "keep": "running"}.get(step, step)
                if step != "keep":
                    getattr(claim, step)(*{"done": [0.0], "failed": ["why"], "diverged": [1]}.get(step, []))
            else:
                assert "waiting" not in model.values()
            assert {entry.run: entry.status for entry in queue.entries()} == model
