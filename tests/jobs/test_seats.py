"""Who may work beside whom on a card. Other workers are real processes, cards are invented."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from paribus.errors import ParibusError
from paribus.execute import Context
from paribus.jobs.cards import ANYWHERE, Card, Slot
from paribus.jobs.plans import enqueue
from paribus.jobs.queue import Queue
from paribus.jobs.runs import QueuedRun, read_run
from paribus.jobs.seats import CONTEXT_MB, Seat, sweep
from paribus.jobs.worker import work
from paribus.plan.plan import Plan, plan
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store

ROOT = Path(__file__).parents[2]
CARDS = [Card(f"GPU-{number}", "Test 10GB", 10000) for number in range(2)]
RUNTIME = Runtime(device="cpu")
Sit = Callable[..., Seat]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(ROOT)
    found = Store(tmp_path / "results")
    found.prepare()
    return found


@pytest.fixture
def sleepers() -> Iterator[list["subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def sit(store: Store, sleepers: list["subprocess.Popen[bytes]"]) -> Sit:
    """The seat of a worker process of its own, on card 0."""

    def seat(*cards: Card, packed: bool = True, runtime: Runtime = RUNTIME) -> Seat:
        sleepers.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return Seat(store, Slot(cards or (CARDS[0],), packed), runtime, psutil.Process(sleepers[-1].pid))

    return seat


@pytest.fixture
def planned(store: Store) -> Plan:
    found = plan(find(), "masking", "debug", 2)
    enqueue(found, store)
    return found


@pytest.fixture
def run(store: Store, planned: Plan) -> QueuedRun:
    return read_run(store, planned.name, planned.runs[0].key)


@pytest.fixture
def longer(run: QueuedRun) -> QueuedRun:
    """A run of another shape."""
    packing = run.run.packing.model_copy(update={"length": 24})
    return QueuedRun("run-longer", run.queue, run.arm, run.levels, run.run.model_copy(update={"packing": packing}))


def test_a_shape_is_alone_until_it_is_measured_and_packed_with_a_margin_after(sit: Sit, run: QueuedRun) -> None:
    one, two, three = sit(), sit(), sit()
    assert one.take(run) and not two.take(run) and two.full
    assert one.look(0.0) == 0 and not two.take(run)  # nothing was measured yet
    one.look(4000.0 - CONTEXT_MB)
    assert two.take(run) and not three.take(run)  # 12,000 of 9,000 MB
    assert one.look(0.0) == two.look(0.0) == 1
    two.leave()
    assert three.take(run)


def test_the_most_that_was_measured_counts(sit: Sit, run: QueuedRun) -> None:
    one, two = sit(), sit()
    assert one.take(run)
    one.look(3000.0)
    one.look(6000.0)
    one.look(1000.0)
    assert not two.take(run) and one.look(0.0) == 0


def test_a_run_that_takes_nearly_all_of_a_card_starts_on_an_empty_one(sit: Sit, run: QueuedRun) -> None:
    one, two = sit(), sit()
    assert one.take(run)
    one.look(9900.0)
    one.leave()
    assert two.take(run) and not one.take(run)


def test_another_shape_is_measured_by_itself(sit: Sit, run: QueuedRun, longer: QueuedRun) -> None:
    one, two = sit(), sit()
    assert one.take(run)
    one.look(1000.0)
    assert not two.take(longer) and two.take(run)


def test_cards_are_full_each_by_itself(sit: Sit, run: QueuedRun) -> None:
    one, other, both = sit(), sit(CARDS[1]), sit(*CARDS)
    assert one.take(run) and other.take(run) and not both.take(run)
    one.leave()
    assert not both.take(run)
    other.leave()
    assert both.take(run) and not one.take(run)


def test_a_worker_that_is_gone_frees_its_place(
    sit: Sit, run: QueuedRun, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    one, two = sit(), sit()
    assert one.take(run) and not two.take(run)
    sleepers[0].kill()  # and nobody has waited for it yet
    sleepers[0].wait()
    assert two.take(run)


def test_seats_of_workers_that_are_gone_are_swept_up(
    store: Store, sit: Sit, run: QueuedRun, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    sweep(store)
    seats = sit(CARDS[0]), sit(CARDS[1])
    assert all(seat.take(run) for seat in seats)
    sleepers[0].kill()
    sleepers[0].wait()
    sweep(store)
    assert [int(path.stem) for path in store.root.glob("cards/*/[0-9]*.json")] == [sleepers[1].pid]


def test_an_idle_worker_keeps_what_it_takes_beside_its_tensors(
    sit: Sit, run: QueuedRun, sleepers: list["subprocess.Popen[bytes]"]
) -> None:
    one, two, three = sit(), sit(), sit()
    assert one.take(run)
    one.look(4300.0 - CONTEXT_MB)
    one.leave()
    assert two.take(run) and not three.take(run)  # 4,300 + 4,300 + 600 of 9,000 MB
    sleepers[0].kill()
    sleepers[0].wait()
    assert three.take(run)


def test_runs_of_an_exclusive_experiment_have_their_device_alone(
    store: Store, planned: Plan, run: QueuedRun, sit: Sit
) -> None:
    one, two = sit(packed=False), sit(packed=False)
    assert one.take(run) and two.take(run) and one.look(0.0) == 1
    two.leave()
    alone = planned.experiment.model_copy(update={"exclusive": True})
    enqueue(Plan(**{**{f: getattr(planned, f) for f in planned.__dataclass_fields__}, "experiment": alone}), store)
    assert not two.take(run)
    one.leave()
    assert two.take(run) and not one.take(run)


def test_a_worker_waits_for_room_and_leaves_no_seat(store: Store, planned: Plan, sit: Sit, run: QueuedRun) -> None:
    blocking = sit()
    assert blocking.take(run)
    mine = Seat(store, Slot((CARDS[0],), True), RUNTIME)
    queue = Queue(store, planned.name)
    assert queue.claim(mine.take) is None and mine.full
    assert {entry.status for entry in queue.entries()} == {"waiting"}
    blocking.leave()
    claim = queue.claim(mine.take)
    assert claim and claim.run.key == run.key
    claim.preempted()


def test_a_run_is_told_how_many_share_its_device(
    store: Store, planned: Plan, run: QueuedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def executed(context: Context, _: object) -> None:
        told.append(context.seat(0.0))
        raise ParibusError("enough")

    monkeypatch.setattr("paribus.jobs.worker.execute", executed)
    other = Seat(store, ANYWHERE, RUNTIME, psutil.Process(psutil.Process().ppid()))
    assert other.take(run)
    assert work(find(), store, [planned.name], RUNTIME) == len(told) and set(told) == {1}
    assert other.look(0.0) == 0  # the worker got up
