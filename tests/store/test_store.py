"""The store: a stage is there whole or not at all, whatever happens to its writer or its disk."""

import errno
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from paribus.errors import Corrupt, LostLease, StoreError
from paribus.plan.stages import Stage
from paribus.store import store as module
from paribus.store.store import RESERVE_BYTES, Store, read_jsonl, writing

Spawn = Callable[..., "subprocess.Popen[str]"]


def compute(store: Store, stage: Stage, text: str = "documents") -> None:
    """Finish `stage` with a file and a row."""
    work = store.claim(stage)
    assert work
    with work:
        (work.out / "documents.txt").write_text(text)
        work.row("documents", 3.0, split="train", n=3)
        work.commit("provenance")


def litter(store: Store) -> list[Path]:
    """What an unfinished stage or a lease has left behind."""
    return [*(store.root / "doing").iterdir(), *(store.root / "leases").glob("*.json")]


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


# --- finished is a rename ---


def test_a_finished_stage_is_found_with_its_record_and_rows(store: Store, stage: Stage) -> None:
    assert not store.has(stage.key)
    compute(store, stage)
    assert store.has(stage.key) and store.keys() == {stage.key}
    assert store.rows(stage.key) == [{"metric": "documents", "split": "train", "value": 3.0, "n": 3}]
    record = store.record(stage.key)
    assert (record["kind"], record["spec"], record["outcome"]) == ("corpus", stage.spec.model_dump(mode="json"), "done")
    assert record["files"].keys() == {"documents.txt", "rows.jsonl"}
    assert litter(store) == []


def test_nothing_is_visible_until_the_commit(store: Store, stage: Stage) -> None:
    work = store.claim(stage)
    assert work
    with work:
        (work.out / "documents.txt").write_text("half")
        assert store.keys() == set() and store.rows(stage.key) == []
        work.commit("provenance")
        assert store.keys() == {stage.key}


def test_an_error_leaves_nothing_behind(store: Store, stage: Stage) -> None:
    work = store.claim(stage)
    assert work
    with pytest.raises(RuntimeError, match="no good"), work:
        (work.out / "documents.txt").write_text("half")
        raise RuntimeError("no good")
    assert store.keys() == set() and litter(store) == []


def test_an_error_keeps_the_checkpoints_for_whoever_resumes(store: Store, stage: Stage) -> None:
    work = store.claim(stage)
    assert work
    with pytest.raises(RuntimeError), work:
        (work.scratch / "checkpoint").write_text("step 7")
        raise RuntimeError
    again = store.claim(stage)
    assert again
    with again:
        assert (again.scratch / "checkpoint").read_text() == "step 7"
        assert again.first_started == work.first_started
        again.commit("provenance")
    assert litter(store) == []


def test_a_stage_that_turns_out_to_be_finished_leaves_nothing_behind(store: Store, stage: Stage) -> None:
    compute(store, stage)
    late = store.claim(stage)  # asked before, got the lease after the other had finished
    assert late
    with late:
        pass
    assert litter(store) == []


def test_two_commits_of_one_stage_keep_the_first(store: Store, stage: Stage) -> None:
    compute(store, stage, "first")
    compute(store, stage, "second")
    assert (store.folder(stage.key) / "documents.txt").read_text() == "first"


def test_a_folder_without_its_record_is_no_finished_stage(store: Store, stage: Stage) -> None:
    store.folder(stage.key).mkdir()
    (store.folder(stage.key) / "documents.txt").write_text("whose?")
    assert not store.has(stage.key)
    compute(store, stage)
    assert (store.folder(stage.key) / "documents.txt").read_text() == "documents"


@pytest.mark.parametrize("point", ["written", "recorded"])
def test_a_writer_killed_before_the_rename_leaves_no_finished_stage(
    store: Store, stage: Stage, spawn: Spawn, point: str
) -> None:
    """Killed with all of its files written, or even with the record written and only the rename to come."""
    held = "" if point == "written" else "work._lease.held = lambda: say('recorded')\n    "
    writer = spawn(
        "with store.claim(stage) as work:\n"
        "    (work.out / 'documents.txt').write_text('torn')\n"
        "    work.row('documents', 1.0)\n"
        f"    {held}{'say' if point == 'written' else 'print'}('written')\n"
        "    work.commit('provenance')\n"
    )
    while line(writer) != point:
        pass
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert store.keys() == set()
    assert list((store.root / "doing" / stage.key).glob("out.*"))  # it had got that far
    compute(store, stage)
    assert (store.folder(stage.key) / "documents.txt").read_text() == "documents"
    assert litter(store) == []


def test_a_worker_killed_right_after_it_finished_leaves_nothing_for_good(
    store: Store, stage: Stage, spawn: Spawn
) -> None:
    writer = spawn(
        "import shutil\n"
        "with store.claim(stage) as work:\n"
        "    (work.scratch / 'checkpoint').write_text('5')\n"
        "    shutil.rmtree = lambda *_, **__: say('renamed')\n"
        "    work.commit('provenance')\n"
    )
    while line(writer) != "renamed":
        pass
    store.sweep(())
    assert (store.root / "doing" / stage.key).is_dir()  # its worker lives
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    interrupted = store.root / "doing" / "pretrain-0" / "scratch" / "checkpoint"
    interrupted.parent.mkdir(parents=True)
    interrupted.write_text("5")
    assert store.keys() == {stage.key} and (store.root / "doing" / stage.key).is_dir()
    store.sweep(())
    assert [path.name for path in litter(store)] == ["pretrain-0"] and interrupted.read_text() == "5"


def test_what_killed_writers_were_at_is_swept_up_once_it_is_old(store: Store, spawn: Spawn) -> None:
    writer = spawn("Path.replace = lambda *_: say('written')\nstore.lease('pretrain-1')\n")
    assert line(writer) == "written"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    (lease,) = (store.root / "leases").glob(".pretrain-1*")
    left = [store.root / "runs" / "a@b" / ".plan.json.42.123", store.root / ".index-2.42.123"]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (store.root / "paused").touch()
    store.sweep(())
    assert [path.exists() for path in (lease, *left)] == [True] * 3 and store.paused
    for path in (lease, *left, store.root / "paused", store.root / "leases" / ".lock"):
        os.utime(path, (0, 0))
    store.sweep(())
    assert [path.exists() for path in (lease, *left)] == [False] * 3
    assert not (store.root / "paused").exists() and (store.root / "leases" / ".lock").exists()


def test_a_stage_that_is_begun_anew_meanwhile_is_no_leftover(
    store: Store, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(store, stage)
    checkpoint = store.root / "doing" / stage.key / "scratch" / "checkpoint"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_text("5")
    lease = store.lease

    def after_it_was_found_damaged(name: str) -> object:
        store.set_aside(name)
        return lease(name)

    monkeypatch.setattr(store, "lease", after_it_was_found_damaged)
    store.sweep(())
    assert checkpoint.read_text() == "5"


def test_a_store_without_its_folder_of_stages_in_progress_is_swept(store: Store) -> None:
    (store.root / "doing").rmdir()
    store.sweep(())


def test_a_torn_rows_file_in_progress_is_never_read(store: Store, stage: Stage) -> None:
    left = store.root / "doing" / stage.key / "out.dead"
    left.mkdir(parents=True)
    (left / "rows.jsonl").write_text('{"metric": "documents", "val')
    assert store.rows(stage.key) == [] and store.keys() == set()
    compute(store, stage)
    assert [row["value"] for row in store.rows(stage.key)] == [3.0]


def test_a_torn_last_line_of_a_curve_is_left_out(store: Store, stage: Stage) -> None:
    curve = store.root / "doing" / stage.key / "scratch" / "curve.jsonl"
    curve.parent.mkdir(parents=True)
    curve.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert store.curve(stage.key) == read_jsonl(curve) == [{"step": 1}, {"step": 2}]


# --- two workers on one key ---


def test_of_two_workers_on_one_stage_exactly_one_computes_it(store: Store, stage: Stage, spawn: Spawn) -> None:
    script = """
import time
say("ready")
computed = False
while not store.has(stage.key):
    work = store.claim(stage)
    if work is None:
        time.sleep(0.01)
        continue
    with work:
        if not store.has(stage.key):
            computed = True
            time.sleep(0.2)
            (work.out / "documents.txt").write_text("one of us")
            work.commit("provenance")
print(computed, flush=True)
"""
    workers = [spawn(script) for _ in range(3)]
    for worker in workers:
        assert line(worker) == "ready"
    for worker in workers:
        go_on(worker)
    assert sorted(line(worker) for worker in workers) == ["False", "False", "True"]
    assert litter(store) == []


def test_a_stopped_worker_cannot_commit_nor_disturb_the_one_that_took_over(
    store: Store, stage: Stage, spawn: Spawn
) -> None:
    """Stopped (SIGSTOP, a suspended laptop) beyond the grace time, then it goes on as if nothing had been."""
    sleeper = spawn(
        "try:\n"
        "    with store.claim(stage) as work:\n"
        "        (work.out / 'documents.txt').write_text('stale')\n"
        "        say('claimed')\n"
        "        work.row('documents', 1.0)\n"
        "        work.commit('provenance')\n"
        "except LostLease:\n"
        "    say('lost')\n"
    )
    assert line(sleeper) == "claimed"
    assert store.claim(stage) is None
    sleeper.send_signal(signal.SIGSTOP)
    go_on(sleeper)
    while (work := store.claim(stage)) is None:
        pass
    with work:
        (work.out / "documents.txt").write_text("fresh")
        work.row("documents", 3.0)
        sleeper.send_signal(signal.SIGCONT)
        assert line(sleeper) == "lost"
        assert not store.has(stage.key)
        work.commit("provenance")
    assert store.verified(stage.key)
    assert (store.folder(stage.key) / "documents.txt").read_text() == "fresh"
    assert [row["value"] for row in store.rows(stage.key)] == [3.0]
    assert litter(store) == []


def test_an_error_of_a_worker_that_lost_its_lease_leaves_the_other_ones_files_alone(store: Store, stage: Stage) -> None:
    sleeper = store.claim(stage)
    assert sleeper
    with pytest.raises(LostLease), sleeper:
        (store.root / "leases" / f"{stage.key}.json").unlink()  # as if it had slept beyond the grace time
        other = store.claim(stage)
        assert other
        other.__enter__()
        (sleeper.out / "documents.txt").write_text("stale")  # raises: the folder is gone
    assert other.out.is_dir()
    other.commit("provenance")
    other.__exit__(None, None, None)
    assert store.has(stage.key)


# --- checksums ---


def damage_a_byte(folder: Path) -> None:
    (folder / "documents.txt").write_text("documentz")


def lose_a_file(folder: Path) -> None:
    (folder / "documents.txt").unlink()


def tear_the_record(folder: Path) -> None:
    path = folder / "stage.json"
    path.write_text(path.read_text()[:40])


@pytest.mark.parametrize("harm", [damage_a_byte, lose_a_file, tear_the_record])
def test_a_damaged_stage_is_set_aside_and_can_be_computed_again(
    store: Store, stage: Stage, harm: Callable[[Path], None]
) -> None:
    compute(store, stage)
    harm(store.folder(stage.key))
    with pytest.raises(Corrupt, match="set aside"):
        store.verified(stage.key)
    assert not store.has(stage.key)
    assert len(list((store.root / "corrupt").iterdir())) == 1
    compute(store, stage)
    assert store.verified(stage.key) == store.folder(stage.key)


def test_a_damaged_record_or_rows_file_is_named_in_one_line(store: Store, stage: Stage) -> None:
    compute(store, stage)
    (store.folder(stage.key) / "rows.jsonl").write_text('{"metric"\n')
    with pytest.raises(Corrupt, match=r"rows\.jsonl: does not match its checksum"):
        store.rows(stage.key)
    compute(store, stage)
    tear_the_record(store.folder(stage.key))
    with pytest.raises(Corrupt, match=r"stage\.json: damaged"):
        list(store.records())


# --- disks ---


def test_a_full_disk_is_told_as_such_and_leaves_nothing(
    store: Store, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = store.claim(stage)
    assert work

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "_checksum", full)
    with pytest.raises(StoreError, match="no space left"), work:
        (work.out / "documents.txt").write_text("documents")
        work.commit("provenance")
    assert store.keys() == set() and litter(store) == []


class Disk(NamedTuple):
    f_bavail: int
    f_frsize: int


def test_a_full_disk_is_recognised_in_a_librarys_own_words(
    store: Store, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = store.claim(stage)
    assert work
    with pytest.raises(StoreError, match="no space left"), work:
        # Full as long as what was half-written lies there.
        monkeypatch.setattr(os, "statvfs", lambda path: Disk(f_bavail=1 if work.out.exists() else 99, f_frsize=4096))
        raise RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed")


def test_an_error_on_a_disk_with_room_stays_what_it_was(store: Store, stage: Stage) -> None:
    work = store.claim(stage)
    assert work
    with pytest.raises(RuntimeError, match="PytorchStreamWriter"), work:
        raise RuntimeError("PytorchStreamWriter failed")


@pytest.mark.parametrize(
    ("number", "message"),
    [(errno.ENOSPC, "no space left"), (errno.EDQUOT, "no space left"), (errno.EROFS, "cannot be written")],
)
def test_what_the_disk_says_becomes_one_line(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(StoreError, match=message), writing(tmp_path):
        raise OSError(number, os.strerror(number))


def test_other_errors_of_the_disk_are_not_disguised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output"), writing(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


# --- format and provenance ---


@pytest.mark.parametrize(
    ("content", "message"), [('{"format": 2}', "format 2"), ("{}", "not readable"), ("", "not readable")]
)
def test_a_store_of_another_format_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "format.json").write_text(content)
    with pytest.raises(StoreError, match=message):
        Store(tmp_path)


def test_provenance_is_stored_once(store: Store) -> None:
    content: dict[str, Any] = {"commit": "c0ffee", "packages": {"torch": "2"}}
    digest = store.record_provenance(content)
    assert store.record_provenance(dict(reversed(content.items()))) == digest
    assert store.provenance(digest) == content
    assert store.record_provenance({**content, "dirty": True}) != digest
    assert len(list((store.root / "provenance").iterdir())) == 2


def test_a_record_is_json_that_says_what_made_the_stage(store: Store, stage: Stage) -> None:
    compute(store, stage)
    record = json.loads((store.folder(stage.key) / "stage.json").read_text())
    assert record["finished"] >= record["started"] >= record["first_started"]
    assert record["provenance"] == "provenance"


def test_a_worker_pauses_while_the_disk_is_nearly_full_and_says_so_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    free = RESERVE_BYTES
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr("paribus.store.store.PAUSE_SECONDS", 0.001)
    assert not store.pauses() and not store.paused
    assert store.pauses(1) and (store.root / "paused").exists()
    free = 0
    assert store.pauses() and store.lacking() == RESERVE_BYTES
    free = RESERVE_BYTES + 1
    assert not store.pauses(1) and not (store.root / "paused").exists()
    assert capsys.readouterr().err.count("paused: ") == 1


def test_lost_provenance_is_none_and_is_recorded_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.prepare()
    digest = store.record_provenance({"commit": "abc"})
    (path,) = (tmp_path / "provenance").iterdir()
    for damage in (path.unlink, path.touch, lambda: path.write_text('{"com')):
        damage()
        assert store.provenance(digest) == {}
    assert store.record_provenance({"commit": "abc"}) == digest and store.provenance(digest) == {"commit": "abc"}
