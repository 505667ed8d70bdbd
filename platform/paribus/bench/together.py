"""Several runs at once on one device: tokens a second of all of them, beside one alone.

Each run is a process of its own, as a worker is, with a seed of its own, and trains as in paribus.bench.train: by
Lightning, with loader and curve. All meet after their warm-up and are timed over the same window. A step counts when
the device has ended it within.
"""

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paribus.bench.train import LIMIT, WARM_UP, head, name_of, pass_on, refuse_unwritable, train
from paribus.errors import ParibusError, Stopped, in_one_line
from paribus.files import write_atomically
from paribus.project import find
from paribus.spec.load import build
from paribus.spec.run import Run, Runtime
from paribus.train.fit import device
from paribus.train.lightning import pl
from paribus.train.memory import peak_mb

POLL_SECONDS = 0.01
GO_SECONDS = 0.5
"""From the last process's arrival to the window: all see it coming."""


@dataclass(frozen=True)
class Counted:
    """What one of the processes did within the window."""

    how: str
    """How steps were computed, where that may be less than what was asked for."""
    steps: int
    began: float
    """The window's begin, seconds since the epoch: the same of all processes."""
    seconds: float
    """Its length, up to the end of the step it was asked after."""
    peak_mb: float
    """What this process took: room for tensors on the GPU; without one, all memory of the process."""
    device_mb: float
    """What everybody took of the GPU when the window ended; without one, the same as `peak_mb`."""
    parameters: int
    device: str


class Window(pl.Callback):
    """Meets the other processes after the warm-up, and counts the steps from then on, for `seconds`."""

    def __init__(self, meeting: Path, number: int, seconds: float, where: torch.device) -> None:
        self._meeting, self._number, self._seconds, self._where = meeting, number, seconds, where
        self._begun = 0
        self._marks: list[Any] = []
        self.steps = 0
        self.began = self.ended = self.device_mb = math.nan

    def on_train_batch_end(self, *_: object) -> None:
        self._begun += 1
        if self._begun < WARM_UP:
            return
        if self._begun == WARM_UP:
            return self._meet()
        if self._where.type == "cuda":  # its steps end later than this process knows, and nobody waits for them
            mark: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            mark.record()
            self._marks.append(mark)
        if (now := time.time()) >= self.began + self._seconds:
            self.ended = now
            self.steps = sum(mark.query() for mark in self._marks) if self._marks else self._begun - WARM_UP
            if self._where.type == "cuda":  # now, for the others end as well
                free, whole = torch.cuda.mem_get_info(self._where)
                self.device_mb = (whole - free) / 2**20
            raise Stopped

    def _meet(self) -> None:
        if self._where.type == "cuda":
            torch.cuda.synchronize(self._where)
        (self._meeting / f"{self._number}.ready").touch()
        last = time.monotonic() + LIMIT
        while not (go := self._meeting / "go").exists():
            if time.monotonic() > last:
                raise ParibusError(f"the other processes were not ready within {LIMIT:.0f} s")
            time.sleep(POLL_SECONDS)
        self.began = float(go.read_text())
        time.sleep(max(0.0, self.began - time.time()))


def _train(run: Run, seconds: float, runtime: Runtime, meeting: Path, number: int) -> Counted:
    where = device(runtime)
    window = Window(meeting, number, seconds, where)
    module = train(run, max(20, math.ceil(seconds)), runtime, number, window)  # long enough for 1,000 steps a second
    if math.isnan(window.ended):
        raise ParibusError(f"{module.global_step} steps were over before {seconds:g} s were: a larger --batch lasts")
    if where.type == "cuda":
        peak, taken = peak_mb(), window.device_mb
    else:
        peak = taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    return Counted(
        how=module.passes.how,
        steps=window.steps,
        began=window.began,
        seconds=window.ended - window.began,
        peak_mb=peak,
        device_mb=taken,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        device=name_of(where),
    )


def at_once(asked: dict[str, Any], count: int) -> list[dict[str, Any]] | str:
    """What each of `count` processes counted (see Counted), or in one line why one of them did not."""
    command = [sys.executable, "-m", "paribus.bench.together"]
    with tempfile.TemporaryDirectory() as name:
        folder, processes = Path(name), []
        try:
            for number in range(count):
                with (folder / f"{number}.said").open("w") as said:
                    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True)
                processes.append(process)
                assert process.stdin
                with suppress(BrokenPipeError), process.stdin as told:
                    told.write(json.dumps({**asked, "meeting": name, "number": number}))
            last = time.monotonic() + LIMIT
            while any(codes := [process.poll() for process in processes]) or None in codes:
                for number, code in enumerate(codes):
                    if code:
                        lines = (folder / f"{number}.said").read_text().strip().splitlines()
                        return (lines or [f"code {code}"])[-1]
                if time.monotonic() > last:
                    return f"not done after {LIMIT:.0f} s"
                arrived = all((folder / f"{number}.ready").exists() for number in range(count))
                if arrived and not (folder / "go").exists():
                    write_atomically(folder / "go", repr(time.time() + GO_SECONDS))
                time.sleep(POLL_SECONDS)
            pass_on((folder / "0.said").read_text())
            return [json.loads((folder / f"{number}.json").read_text()) for number in range(count)]
        finally:
            for process in processes:
                process.kill()
                process.wait()


def measure(
    run: Run,
    counts: Sequence[int],
    compiles: Sequence[str],
    seconds: float,
    runtime: Runtime,
    title: str,
    json_file: Path | None = None,
) -> None:
    """Each number of runs at once, each way of computing their steps; a table, and everything as JSON."""
    where = device(runtime)  # refuses what is not there
    refuse_unwritable("--json", json_file)
    if not math.isfinite(seconds):
        raise ParibusError(f"--seconds {seconds}: expected a number of seconds")
    begun, asked = head(title), {"run": run.model_dump(mode="json"), "seconds": seconds}
    length, batch = run.packing.length, run.budget.batch_tokens
    print(
        f"{title}, {batch // length} x {length} tokens, {run.precision}, dropout {run.encoder.dropout}, "
        f"vocabulary {run.tokenizer.vocabulary_size:,}; each run a process of {runtime.threads} threads on one "
        f"{where.type}, all timed over the same {seconds:g} s",
        flush=True,
    )
    print(
        f"{'steps':7} {'runs':>4} {'tokens/s in all':>16} {'to one':>7} {'slowest':>12} {'fastest':>12} "
        f"{'MiB of one':>11} {'MiB in all':>11}  how"
    )
    rows: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for how in compiles:
        alone: float | None = None
        for count in counts:
            told = {**asked, "runtime": {**runtime.model_dump(mode="json"), "compile": how}}
            found = at_once(told, count)
            if isinstance(found, str):
                failed[f"{how} x {count}"] = found
                print(f"{how:7} {count:4} {found}", flush=True)
                continue
            row = _row(how, found, batch, where.type == "cuda")
            alone = row["tokens_per_second"] if count == 1 else alone
            row["ratio"] = row["tokens_per_second"] / alone if alone else None
            rows.append(row)
            _print(row)
    if json_file:
        told = {
            **begun,
            "runtime": runtime.model_dump(mode="json"),
            **asked,
            "rows": rows,
            "failed": failed,
        }
        json_file.write_text(json.dumps(told, indent=1) + "\n")


def _row(how: str, processes: list[dict[str, Any]], batch: int, shared: bool) -> dict[str, Any]:
    rates = [one["steps"] * batch / one["seconds"] for one in processes]
    taken = [one["device_mb"] for one in processes]
    return {
        "compile": how,
        "runs": len(processes),
        "tokens_per_second": sum(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "peak_mb": max(one["peak_mb"] for one in processes),
        "device_mb": max(taken) if shared else sum(taken),
        "processes": processes,
    }


def _print(row: dict[str, Any]) -> None:
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
    print(
        f"{row['compile']:7} {row['runs']:4} {row['tokens_per_second']:16,.0f} {ratio:>7} {row['slowest']:12,.0f} "
        f"{row['fastest']:12,.0f} {row['peak_mb']:11,.0f} {row['device_mb']:11,.0f}  "
        f"{', '.join(sorted({one['how'] for one in row['processes']}))}; {row['processes'][0]['device']}",
        flush=True,
    )


if __name__ == "__main__":
    find()  # a user's own variants are part of the vocabulary
    given = json.load(sys.stdin)
    with in_one_line():
        meeting = Path(given["meeting"])
        counted = _train(
            build(Run, given["run"], "run"),
            given["seconds"],
            Runtime.model_validate(given["runtime"]),
            meeting,
            given["number"],
        )
        write_atomically(meeting / f"{given['number']}.json", json.dumps(asdict(counted)))
