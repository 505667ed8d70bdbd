"""Longer drills of the whole thing: kill, stop, resume, two workers; what comes out is the same bit for bit.

`pytest -m drill` runs these alone. Each uses real processes of the command line, as a user's shell would.
"""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.disks import full_until, small_disk
from tests.small_project import LONG, OFTEN, SmallProject

pytestmark = pytest.mark.drill


@pytest.fixture
def project(tmp_path: Path) -> SmallProject:
    return SmallProject(tmp_path / "project")


def check_alive(process: "subprocess.Popen[str]") -> None:
    """A moment later `process` still runs."""
    time.sleep(0.01)
    assert process.poll() is None, process.communicate()


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Until `condition` holds, which must be before `process` ends."""
    while not condition():
        check_alive(process)


def worker(process: "subprocess.Popen[str]") -> psutil.Process:
    """The worker process that `process` has started."""
    children = psutil.Process(process.pid).children()
    (found,) = [child for child in children if "paribus.jobs.worker" in child.cmdline()]
    return found


def resumed(project: SmallProject) -> list[int]:
    return sorted(record["resumed_at"] for record in project.store.records("pretrain"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SmallProject:
    """A project that LONG was run in by one worker that nobody disturbed."""
    project = SmallProject(tmp_path_factory.mktemp("undisturbed") / "project")
    project.paribus("run", *LONG)
    assert resumed(project) == [0, 0]
    return project


def test_the_same_experiment_gives_the_same_bits_with_one_worker_or_two(tmp_path: Path) -> None:
    """One that ships, on the corpus and both tasks that it names."""
    argv = ["run", "masking", "--scale", "debug", "--seeds", "1", "--workers"]
    one, two = SmallProject(tmp_path / "one"), SmallProject(tmp_path / "two")
    one.paribus(*argv, "1")
    two.paribus(*argv, "2")
    # 15 stages have rows, both encoders an encoder's and a head's weights, four fine-tunings what they predicted.
    assert len(one.results()) == 23
    assert one.results() == two.results()


def test_a_second_run_computes_nothing_and_prints_the_same_table(undisturbed: SmallProject) -> None:
    stages = undisturbed.store.root / "stages"
    before = {path: path.stat().st_mtime_ns for path in stages.rglob("*")}
    table = undisturbed.paribus("table", *LONG)
    process = undisturbed.start("run", *LONG)
    again, told = process.communicate()
    assert process.returncode == 0, told
    assert "everything is done" in told
    assert again == table
    assert {path: path.stat().st_mtime_ns for path in stages.rglob("*")} == before


def test_a_killed_worker_is_resumed_to_the_same_bits(project: SmallProject, undisturbed: SmallProject) -> None:
    """kill -9 of everything in mid-pretraining, as a power cut would; then `paribus work`."""
    project.paribus("queue", *LONG)
    process = project.start("work", *OFTEN)
    wait_for(project.checkpoints, process)
    killed = worker(process)
    process.kill()
    killed.kill()
    process.communicate()
    assert "1 lost" in project.paribus("status")
    project.paribus("work", *OFTEN)
    assert resumed(project)[1] > 0
    assert project.results() == undisturbed.results()
    assert not list((project.store.root / "doing").iterdir())


def test_a_worker_killed_under_paribus_run_is_replaced_and_a_damaged_checkpoint_is_passed_over(
    project: SmallProject, undisturbed: SmallProject
) -> None:
    process = project.start("run", *LONG, *OFTEN)
    wait_for(lambda: len(project.checkpoints()) == 2, process)
    killed = worker(process)
    killed.suspend()
    older, newest = sorted(project.checkpoints())[-2:]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    killed.kill()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert resumed(project) == [0, int(older.stem.partition("-")[0])]
    assert project.results() == undisturbed.results()


def test_a_run_waits_while_the_disk_is_full_and_ends_with_the_same_bits(
    project: SmallProject, undisturbed: SmallProject
) -> None:
    """Full in the middle of the pretraining, to the last page; then there is room again."""
    with small_disk(project.store.root, 200) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        process = project.start("run", *LONG, *OFTEN)
        wait_for(project.checkpoints, process)
        full_until(project.store, lambda: "paused: disk" in project.paribus("status"), lambda: check_alive(process))
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert "Traceback" not in err
        assert project.results() == undisturbed.results()
        assert not list((project.store.root / "doing").iterdir()) and not (project.store.root / "paused").exists()


def test_interrupting_paribus_run_puts_its_run_back_and_leaves_no_worker(
    project: SmallProject, undisturbed: SmallProject
) -> None:
    """SIGINT and SIGTERM to the parent alone; a terminal's Ctrl-C reaches the worker as well."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = project.start("run", *LONG, *OFTEN)
        known = set(project.checkpoints())
        wait_for(lambda known=known: set(project.checkpoints()) - known, process)  # type: ignore[misc]
        stopped = worker(process)
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == code, err
        assert "Traceback" not in err
        assert err.endswith("workers stopped: the same command goes on from the last checkpoints\n")
        assert not stopped.is_running()
        found = {entry["status"] for entry in project.entries()}
        assert "waiting" in found and not {"running", "lost"} & found
        assert not list((project.store.root / "leases").glob("*.json"))
    project.paribus("run", *LONG)
    assert max(resumed(project)) > 0
    assert project.results() == undisturbed.results()


def test_a_tuned_experiment_killed_in_a_trial_gives_the_same_bits_as_with_two_workers(tmp_path: Path) -> None:
    killed, two = SmallProject(tmp_path / "killed"), SmallProject(tmp_path / "two")
    process = killed.start("run", "sizes", "--scale", "debug")
    stages = killed.store.root / "stages"
    wait_for(lambda: len(list(stages.glob("evaluate-*"))) == 2, process)
    worker(process).kill()
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "3 of 3 runs are done" in two.paribus("run", "sizes", "--scale", "debug", "--workers", "2")
    assert len(list(stages.glob("suggest-*"))) == 9 and len(list(stages.glob("pretrain-*"))) >= 18
    assert killed.results() == two.results()
