"""Which worker gets which GPU. The list of GPUs is a test's own: no GPU is needed."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from paribus.errors import ParibusError
from paribus.jobs import cards
from paribus.jobs.cards import ANYWHERE, Card, Slot, allowed, slots, visible
from paribus.jobs.pool import Pool
from paribus.project import find
from paribus.spec.run import Runtime
from paribus.store.store import Store

ROOT = Path(__file__).parents[2]
FOUR = [Card(f"GPU-{letter}00", "Test 80GB", 80000) for letter in "abcd"]
AUTO = Runtime()


def given(workers: int = 1, gpus: str | None = None, per_gpu: str = "1", **runtime: object) -> list[list[str]]:
    found = slots(workers, gpus, per_gpu, Runtime.model_validate(runtime), lambda: FOUR)
    return [[card.uuid[4] for card in slot.cards] for slot in found]


def test_workers_are_spread_over_the_cards_asked_for() -> None:
    assert given(gpus="all") == [["a"], ["b"], ["c"], ["d"]]
    assert given(gpus="0,2", per_gpu="2") == [["a"], ["c"], ["a"], ["c"]]
    assert given(workers=3) == [[], [], []]
    assert given(gpus="all", devices=2) == [["a", "b"], ["c", "d"]]
    assert given(devices=2) == [["a", "b"]] and given(devices=2, device="cpu") == [[]]


def test_packed_workers_are_no_more_than_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    found = slots(1, "all", "auto", AUTO, lambda: FOUR)
    assert len(found) == 12 and all(slot.packed for slot in found)
    assert len(slots(1, "1", "auto", AUTO, lambda: FOUR)) == cards.PACKED


@pytest.mark.parametrize(
    ("asked", "there", "message"),
    [
        ({"gpus": "all"}, [], "--gpus all: no GPU is visible here; leave it out to use the CPU, with --workers N"),
        ({"gpus": "0,4"}, FOUR, "--gpus 0,4: no GPU 4; 4 GPUs are visible here, numbered from 0"),
        ({"gpus": "1"}, FOUR[:1], "--gpus 1: no GPU 1; 1 GPU is visible here, numbered from 0"),
        ({"gpus": "first"}, FOUR, "--gpus first: expected `all` or numbers as 0,2"),
        ({"gpus": ""}, FOUR, "--gpus : expected `all` or numbers as 0,2"),
        ({"gpus": "0,0"}, FOUR, "--gpus 0,0: a GPU is named twice"),
        (
            {"gpus": "0", "devices": 2},
            FOUR,
            "--devices 2: needs as many GPUs a run, found 1",
        ),
        ({"gpus": "all", "per_gpu": "some"}, FOUR, "--per-gpu some: expected a number from 1, or auto"),
        ({"gpus": "all", "per_gpu": "0"}, FOUR, "--per-gpu 0: expected a number from 1, or auto"),
        ({"per_gpu": "auto"}, FOUR, "--per-gpu auto: needs --gpus, `all` or numbers as 0,2"),
        ({"gpus": "all", "workers": 3}, FOUR, "--workers 3: with --gpus, workers follow from --per-gpu"),
        ({"gpus": "all", "device": "cpu"}, FOUR, "--device cpu: with --gpus, expected auto or cuda"),
        ({"gpus": "all", "device": "cuda:1"}, FOUR, "--device cuda:1: with --gpus, expected auto or cuda"),
    ],
)
def test_what_cannot_be_is_one_line(asked: dict[str, object], there: Sequence[Card], message: str) -> None:
    runtime = Runtime.model_validate({name: asked.pop(name) for name in ("devices", "device") if name in asked})
    options = {"workers": 1, "gpus": None, "per_gpu": "1", **asked}
    with pytest.raises(ParibusError) as error:
        slots(**options, runtime=runtime, cards=lambda: there)  # type: ignore[arg-type]
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("outer", "left"),
    [(None, "abcd"), ("", ""), ("2,0", "ca"), ("GPU-b00,3", "bd"), ("GPU-b,1", "bb"), ("0,9,1", "a"), ("-1", "")],
)
def test_an_outer_choice_of_cards_is_respected_as_cuda_reads_it(outer: str | None, left: str) -> None:
    assert [card.uuid[4] for card in allowed(FOUR, outer)] == list(left)


def test_cards_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible() == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU-1f, NVIDIA H100 80GB HBM3, 81559'\necho 'GPU-2f, NVIDIA L4, 23034'\n")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    assert visible() == [Card("GPU-1f", "NVIDIA H100 80GB HBM3", 81559), Card("GPU-2f", "NVIDIA L4", 23034)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [card.name for card in visible()] == ["NVIDIA L4"]
    program.write_text("#!/bin/sh\necho 'no driver'\nexit 9\n")
    assert visible() == []


def test_a_worker_process_sees_its_cards_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    store = Store(tmp_path / "results")
    store.prepare()
    asked = [Slot(tuple(FOUR[:2])), Slot((FOUR[2],)), ANYWHERE]
    pool = Pool(find(), store, [], asked, Runtime(device="cpu"))
    seen: list[str | None] = []

    def look() -> None:
        if not seen:  # nobody has ended yet
            processes = [psutil.Process(worker.process.pid) for worker in pool._workers]
            seen.extend(process.environ().get("CUDA_VISIBLE_DEVICES") for process in processes)

    pool.work(look)
    assert seen == ["GPU-a00,GPU-b00", "GPU-c00", os.environ.get("CUDA_VISIBLE_DEVICES")]
