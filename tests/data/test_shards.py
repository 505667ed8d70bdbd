"""Shards: in order, made once, by one process or several, and none is left of what failed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import paribus
from paribus.data.shards import Shards
from paribus.errors import DataError, Stopped


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """What the shards of these tests are copies of: `shutil.copy` makes one."""
    found = [tmp_path / str(number) for number in range(9)]
    for file in found:
        file.write_text(file.name)
    return found


def contents(shards: Shards, files: list[Path]) -> list[str]:
    return [(folder / file.name).read_text() for file, folder in zip(files, made(shards, files), strict=True)]


def made(shards: Shards, files: list[Path]) -> list[Path]:
    return list(shards.of("copy", shutil.copy, files))  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_come_in_order_whoever_makes_them(workers: int, tmp_path: Path, files: list[Path]) -> None:
    with Shards(tmp_path / "shards", workers) as shards:
        assert contents(shards, files) == [file.name for file in files]
    assert len(list((tmp_path / "shards").iterdir())) == 9


def test_a_shard_that_is_there_is_not_made_again_and_half_of_one_is(tmp_path: Path, files: list[Path]) -> None:
    with Shards(tmp_path / "shards", 1) as shards:
        made(shards, files)
    for file in files:
        file.write_text("new")
    (tmp_path / "shards" / "copy.4").rename(tmp_path / "shards" / ".copy.4.12345")
    with Shards(tmp_path / "shards", 1) as shards:
        assert contents(shards, files) == [*"0123", "new", *"5678"]


def test_who_is_asked_to_stop_keeps_what_was_made(tmp_path: Path, files: list[Path]) -> None:
    asked = iter([False, False, False, True])

    def may_stop() -> None:
        if next(asked):
            raise Stopped

    with pytest.raises(Stopped), Shards(tmp_path / "shards", 1, may_stop) as shards:
        made(shards, files)
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["copy.0", "copy.1", "copy.2"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_maker_raises_is_raised_and_bad_data_leave_nothing(
    workers: int, tmp_path: Path, files: list[Path]
) -> None:
    files[5].unlink()
    with pytest.raises(FileNotFoundError), Shards(tmp_path / "shards", workers) as shards:
        made(shards, files)
    assert (tmp_path / "shards" / "copy.4").is_dir() and not (tmp_path / "shards" / "copy.5").exists()
    with pytest.raises(DataError), Shards(tmp_path / "shards", workers):
        raise DataError("line 3")
    assert not (tmp_path / "shards").exists()


def test_makers_end_with_a_parent_that_was_killed(tmp_path: Path, files: list[Path]) -> None:
    script = f"""
import shutil, sys, time
from pathlib import Path
from paribus.data.shards import Shards
with Shards(Path({str(tmp_path / "shards")!r}), 2) as shards:
    list(shards.of("copy", shutil.copy, {[str(file) for file in files]!r}))
    print("made", flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(paribus.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout and parent.stdout.readline() == b"made\n"
        makers = psutil.Process(parent.pid).children(recursive=True)
        assert makers
        parent.send_signal(signal.SIGKILL)
    for _ in range(300):
        if not any(maker.is_running() and maker.status() != psutil.STATUS_ZOMBIE for maker in makers):
            return
        time.sleep(0.1)
    raise AssertionError("makers outlive their parent")
