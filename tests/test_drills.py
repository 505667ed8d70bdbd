"""Longer drills of the whole thing: kill, stop, resume, two workers; what comes out is the same bit for bit.

`pytest -m drill` runs these alone. Each uses real processes of the command line, as a user's shell would.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.disks import full_until, small_disk

from paribus import cli
from paribus.store.store import Store

pytestmark = pytest.mark.drill

ROOT = Path(__file__).parents[1]
ARGV = ["masking", "--scale", "debug", "--seeds", "1"]
LONG = [*ARGV, "--set", "budget.train_tokens=1048576"]  # about 1,000 steps: long enough to be killed in the middle
OFTEN = ["--checkpoint-seconds", "0.5"]


def start(store: Path, *argv: str) -> "subprocess.Popen[str]":
    """`paribus ARGV` on `store`."""
    environment = {**os.environ, "PARIBUS_STORE": str(store), "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    command = [sys.executable, "-m", "paribus", *argv]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def paribus(store: Path, *argv: str, code: int = 0) -> tuple[str, str]:
    """Run `paribus ARGV` to its end, which must be exit code `code`; stdout and stderr."""
    process = start(store, *argv)
    out, err = process.communicate()
    assert process.returncode == code, err
    return out, err


def results(root: Path) -> dict[str, bytes]:
    """The rows of every finished stage and the weights of every encoder, by path."""
    stages = root / "stages"
    files = [*stages.glob("*/rows.jsonl"), *stages.glob("*/*.safetensors")]
    return {str(path.relative_to(stages)): path.read_bytes() for path in files}


def check_alive(process: "subprocess.Popen[str]") -> None:
    """A moment later `process` still runs."""
    time.sleep(0.01)
    assert process.poll() is None, process.communicate()


def wait_for(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    """Until `condition` holds, which must be before `process` ends."""
    while not condition():
        check_alive(process)


def checkpoints(root: Path) -> list[Path]:
    return list((root / "doing").glob("pretrain-*/scratch/checkpoints/*.ckpt"))


def worker(process: "subprocess.Popen[str]") -> psutil.Process:
    """The worker process that `process` has started."""
    children = psutil.Process(process.pid).children()
    (found,) = [child for child in children if "paribus.jobs.worker" in child.cmdline()]
    return found


def resumed(root: Path) -> list[int]:
    return sorted(record["resumed_at"] for record in Store(root).records("pretrain"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that LONG was run into by one worker that nobody disturbed."""
    root = tmp_path_factory.mktemp("undisturbed")
    paribus(root, "run", *LONG)
    assert resumed(root) == [0, 0]
    return root


def test_the_same_experiment_gives_the_same_bits_with_one_worker_or_two(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    paribus(one, "run", *ARGV, "--workers", "1")
    paribus(two, "run", *ARGV, "--workers", "2")
    assert len(results(one)) == 19  # 15 stages have rows, both encoders have an encoder's and a head's weights
    assert results(one) == results(two)


def test_a_second_run_computes_nothing_and_prints_the_same_table(undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (undisturbed / "stages").rglob("*")}
    table, _ = paribus(undisturbed, "table", *LONG)
    again, told = paribus(undisturbed, "run", *LONG)
    assert "everything is done" in told
    assert again == table
    assert {path: path.stat().st_mtime_ns for path in (undisturbed / "stages").rglob("*")} == before


def test_a_killed_worker_is_resumed_to_the_same_bits(tmp_path: Path, undisturbed: Path) -> None:
    """kill -9 of everything in mid-pretraining, as a power cut would; then `paribus work`."""
    paribus(tmp_path, "queue", *LONG)
    process = start(tmp_path, "work", *OFTEN)
    wait_for(lambda: checkpoints(tmp_path), process)
    killed = worker(process)
    process.kill()
    killed.kill()
    process.communicate()
    assert "1 lost" in paribus(tmp_path, "status")[0]
    paribus(tmp_path, "work", *OFTEN)
    assert resumed(tmp_path)[1] > 0
    assert results(tmp_path) == results(undisturbed)
    assert not list((tmp_path / "doing").iterdir())


def test_a_worker_killed_under_paribus_run_is_replaced_and_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, undisturbed: Path
) -> None:
    process = start(tmp_path, "run", *LONG, *OFTEN)
    wait_for(lambda: len(checkpoints(tmp_path)) == 2, process)
    killed = worker(process)
    killed.suspend()
    older, newest = sorted(checkpoints(tmp_path))[-2:]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    killed.kill()
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert resumed(tmp_path) == [0, int(older.stem.partition("-")[0])]
    assert results(tmp_path) == results(undisturbed)


def test_a_run_waits_while_the_disk_is_full_and_ends_with_the_same_bits(tmp_path: Path, undisturbed: Path) -> None:
    """Full in the middle of the pretraining, to the last page; then there is room again."""
    small = tmp_path / "small"
    with small_disk(small, 200) as mounted:
        if not mounted:
            pytest.skip("needs the right to mount a small disk")
        process, store = start(small, "run", *LONG, *OFTEN), Store(small)
        wait_for(lambda: checkpoints(small), process)
        full_until(store, lambda: "paused: disk" in paribus(small, "status")[0], lambda: check_alive(process))
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert "Traceback" not in err
        assert results(small) == results(undisturbed)
        assert not list((small / "doing").iterdir()) and not (small / "paused").exists()


def test_interrupting_paribus_run_puts_its_run_back_and_leaves_no_worker(tmp_path: Path, undisturbed: Path) -> None:
    """SIGINT and SIGTERM to the parent alone; a terminal's Ctrl-C reaches the worker as well."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = start(tmp_path, "run", *LONG, *OFTEN)
        known = set(checkpoints(tmp_path))
        wait_for(lambda known=known: set(checkpoints(tmp_path)) - known, process)  # type: ignore[misc]
        stopped = worker(process)
        process.send_signal(number)
        _, err = process.communicate()
        assert process.returncode == code, err
        assert "Traceback" not in err
        assert err.endswith("workers stopped: the same command goes on from the last checkpoints\n")
        assert not stopped.is_running()
        entries = json.loads(paribus(tmp_path, "status", "--json")[0])["runs"]
        assert "running" not in {entry["status"] for entry in entries} and "lost" not in {e["status"] for e in entries}
        assert "waiting" in {entry["status"] for entry in entries}
        assert not list((tmp_path / "leases").glob("*.json"))
    paribus(tmp_path, "run", *LONG)
    assert max(resumed(tmp_path)) > 0
    assert results(tmp_path) == results(undisturbed)


def test_a_tuned_experiment_killed_in_a_trial_gives_the_same_bits_as_with_two_workers(tmp_path: Path) -> None:
    argv = ["batch-size", "--scale", "debug", "--seeds", "1"]
    killed, two = tmp_path / "killed", tmp_path / "two"
    process = start(killed, "run", *argv)
    wait_for(lambda: len(list((killed / "stages").glob("evaluate-*"))) == 2, process)
    worker(process).kill()
    _, err = process.communicate()
    assert process.returncode == 0, err
    table, _ = paribus(two, "run", *argv, "--workers", "2")
    assert "3 of 3 runs are done" in table
    assert len(list((two / "stages").glob("suggest-*"))) == 9 and len(list((two / "stages").glob("pretrain-*"))) >= 18
    assert results(killed) == results(two)
