"""Tokens a second of pretraining: ours, with its loader and its curve, beside transformers' model of that shape by MLM.

Each contender runs in a process of its own, the contenders in turn. Rows are random tokens, 15 % or what the base says
of them masked. Ours is timed as it trains: rows are read, masks drawn and losses kept. The peer's batches lie on the
device before its clock begins, and it does what a training must: autocast where the base asks for bf16, both passes,
clipping, fused AdamW.
"""

import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from paribus.bench.devices import pretraining, random_rows
from paribus.errors import ParibusError, Stopped, in_one_line
from paribus.execute import program
from paribus.interop.config import config_of, family_of
from paribus.nn.count import cost
from paribus.objectives.batch import IGNORED
from paribus.objectives.loader import Steps
from paribus.objectives.module import Pretrained
from paribus.objectives.pretrain import prepare
from paribus.plan.arms import base_at
from paribus.plan.stages import Pretraining
from paribus.project import find
from paribus.spec.load import apply, build
from paribus.spec.objective import Mlm, Rtd
from paribus.spec.optim import Budget
from paribus.spec.run import Run, Runtime
from paribus.train.fit import attention, device, fit, use_threads
from paribus.train.lightning import pl
from paribus.train.ranks import Ranks
from paribus.train.watch import Watch

WARM_UP = 5
"""Steps before those that are timed, the first of which compile."""
BATCHES = 8
"""Batches of the peer, in turn."""
LIMIT = 1200.0
"""Seconds after which a contender is given up."""


@dataclass(frozen=True)
class Timed:
    """What one process measured."""

    contender: str
    how: str
    """What was really done, where that may be less than what was asked for."""
    step_ms: list[float]
    start_seconds: float
    """From the start of the process to its first step."""
    first_step_seconds: float
    """Of the first step, in which everything is compiled."""
    peak_mb: float
    """Tensors on the GPU; without one, all memory of the process."""
    parameters: int


def sized(base: str, scale: str, overrides: dict[str, Any], batch: str | None, steps: int | None = None) -> Run:
    """The run of a base at a scale, with a step of `batch` (ROWSxTOKENS), of so many `steps`."""
    project = find()
    data = base_at(project, base, scale, "--base")
    apply(data, overrides, "--set")
    if batch is not None:
        rows, cross, length = batch.partition("x")
        if not (cross and rows.isdecimal() and length.isdecimal() and int(rows) and int(length)):
            raise ParibusError(f"--batch {batch}: expected rows x tokens, as 64x512")
        apply(data, {"packing.length": int(length), "budget.batch_tokens": int(rows) * int(length)}, "--batch")
    if steps is not None:
        apply(data, {"budget.train_tokens": steps * data["budget"]["batch_tokens"]}, "--steps")
    run = build(Run, data, f"--base {base} --scale {scale}")
    if isinstance(run.objective, Mlm) and run.objective.sentence != "none":
        raise ParibusError(f"--base {base}: expected objective.sentence none, found {run.objective.sentence}")
    return run


class Clock(pl.Callback):
    """The times at which steps end, on the device's own clock where it has one: nobody waits for it meanwhile."""

    def __init__(self, steps: int, where: torch.device) -> None:
        self._last, self._where = WARM_UP + steps, where
        self._marks: list[Any] = []
        self.began, self.first = 0.0, 0.0

    def begin(self) -> None:
        """The first step begins."""
        self.began = time.time()

    def end(self) -> bool:
        """A step ends; whether it was the last."""
        if not self._marks:
            self._wait()
            self.first = time.time() - self.began
        if self._where.type == "cuda":
            mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            mark.record()
        else:
            mark = time.perf_counter()
        self._marks.append(mark)
        return len(self._marks) == self._last

    def step_ms(self) -> list[float]:
        """Of the steps after the warm-up."""
        self._wait()
        marks = self._marks[WARM_UP - 1 :]
        if self._where.type == "cuda":
            return [before.elapsed_time(after) for before, after in zip(marks, marks[1:], strict=False)]
        return [1e3 * (after - before) for before, after in zip(marks, marks[1:], strict=False)]

    def _wait(self) -> None:
        if self._where.type == "cuda":
            torch.cuda.synchronize(self._where)

    def on_train_batch_start(self, *_: object) -> None:
        if not self._marks:
            self.begin()

    def on_train_batch_end(self, *_: object) -> None:
        if self.end():
            raise Stopped


def train(run: Run, steps: int, runtime: Runtime, seed: int, stop: pl.Callback) -> Pretrained:
    """Pretrain by Lightning, with loader and curve, until `stop` raises Stopped."""
    spec, vocabulary = long(run, steps), run.tokenizer.vocabulary_size
    batches, module = prepare(spec, seed, random_rows(run.packing.length, vocabulary), vocabulary, runtime, Ranks())
    with tempfile.TemporaryDirectory() as folder, suppress(Stopped):
        watch = Watch(Path(folder), spec.budget.steps, spec.budget.batch_tokens, module.guess)
        fit(module, batches, spec.budget.steps, spec.precision, runtime, [watch, stop])
    return module


def long(run: Run, steps: int) -> Pretraining:
    """A pretraining so long that its losses are read as seldom as those of a real one."""
    batch = run.budget.batch_tokens
    return pretraining(run, Budget(train_tokens=1000 * (WARM_UP + steps) * batch, batch_tokens=batch))


def _ours(run: Run, steps: int, runtime: Runtime, contender: str) -> Timed:
    clock = Clock(steps, device(runtime))
    module = train(run, steps, runtime, 0, clock)
    return _timed(contender, module.passes.how, clock, module)


def _peer(run: Run, steps: int, runtime: Runtime, contender: str) -> Timed:
    """transformers' model; SDPA where it has that."""
    from transformers import CONFIG_MAPPING, AutoModelForMaskedLM

    use_threads(runtime)
    where, vocabulary, length = device(runtime), run.tokenizer.vocabulary_size, run.packing.length
    family = family_of(run.encoder, False)
    config = CONFIG_MAPPING[family](**config_of(run.encoder, family, vocabulary, length))
    how = "eager" if family.startswith("deberta") else "sdpa"
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config, attn_implementation=how).to(where).train()
    if contender.endswith("-compiled"):
        model, how = torch.compile(model), f"{how}, compiled"
    spec, clock = long(run, steps), Clock(steps, where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = _batches(spec, length, vocabulary, where)
    with attention(runtime):
        clock.begin()
        number, ended = 0, False
        while not ended:
            tokens, labels = batches[number % BATCHES]
            with torch.autocast(where.type, torch.bfloat16, enabled=run.precision == "bf16"):
                loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            number, ended = number + 1, clock.end()
    return _timed(contender, f"{type(model).__name__} {how}", clock, model)


def _batches(spec: Pretraining, length: int, vocabulary: int, where: torch.device) -> list[tuple[Tensor, Tensor]]:
    """The same steps as ours, as a peer takes them: whole, labels at all places."""
    made, found = Steps(random_rows(length, vocabulary), spec, vocabulary, 0, None), []
    for number in range(BATCHES):
        (micro,) = made.step(number).to(where).micros
        labels = torch.full_like(micro.tokens_BT, IGNORED).flatten()
        labels[micro.places_M] = micro.targets_M
        found.append((micro.tokens_BT, labels.view_as(micro.tokens_BT)))
    return found


def _timed(contender: str, how: str, clock: Clock, module: torch.nn.Module) -> Timed:
    step_ms = clock.step_ms()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        peak = torch.cuda.max_memory_allocated() / 2**20
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    started = clock.began - psutil.Process().create_time()
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return Timed(contender, how, step_ms, started, clock.first, peak, parameters)


def _ceiling(runtime: Runtime) -> float:
    """FLOP/s of the device at a large product of bf16 matrices, the median of ten."""
    use_threads(runtime)
    where = device(runtime)
    size = 8192 if where.type == "cuda" else 256
    one, other = (torch.randn(size, size, device=where, dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(13):
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        start = time.perf_counter()
        for _ in range(10):
            one @ other
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        seconds.append((time.perf_counter() - start) / 10)
    return 2 * size**3 / statistics.median(seconds[3:])


def contend(asked: dict[str, Any]) -> dict[str, Any]:
    """What the process of a contender measures: the fields of Timed; of "ceiling", those of the card."""
    runtime = Runtime.model_validate(asked["runtime"])
    if asked["contender"] == "ceiling":
        where = device(runtime)
        return {"flops": _ceiling(runtime), "name": name_of(where), "cuda": torch.version.cuda}
    run, (kind, _, how) = build(Run, asked["run"], "run"), asked["contender"].partition(" ")
    if kind == "compile":
        runtime = runtime.model_copy(update={"compile": how})
    timed: Callable[..., Timed] = _ours if kind == "compile" else _peer
    return asdict(timed(run, asked["steps"], runtime, asked["contender"]))


def question(run: Run, steps: int, runtime: Runtime) -> dict[str, Any]:
    """What a process is asked, but for its contender."""
    return {"runtime": runtime.model_dump(mode="json"), "run": run.model_dump(mode="json"), "steps": steps}


def in_process(asked: dict[str, Any], contender: str) -> dict[str, Any] | str:
    """What a process of its own measured of a contender, or in one line why it did not."""
    command = [sys.executable, "-m", "paribus.bench.train"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        told = json.dumps({**asked, "contender": contender, "out": str(out)})
        try:
            done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            return f"not done after {LIMIT:.0f} s"
        if done.returncode == 0:
            pass_on(done.stderr)
            found: dict[str, Any] = json.loads(out.read_text())
            return found
        return (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]


def pass_on(said: str) -> None:
    """What a process said of `--compile`."""
    for line in said.splitlines():
        if line.startswith("--compile"):
            print(line, file=sys.stderr)


def refuse_unwritable(option: str, file: Path | None) -> None:
    """Before anything is measured."""
    if file and file.is_dir():
        raise ParibusError(f"{option} {file}: a folder, expected a file")
    if file and not file.parent.is_dir():
        raise ParibusError(f"{option} {file}: no such folder")


def name_of(where: torch.device) -> str:
    """The card, or the processor."""
    return torch.cuda.get_device_name(where) if where.type == "cuda" else platform.processor() or "cpu"


def head(title: str) -> dict[str, Any]:
    """What each benchmark's JSON begins with. Made before anything is measured: code may be edited meanwhile."""
    return {
        "title": title,
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "paribus"), *sys.argv[1:]],
        "versions": _versions(),
        "program": program(find()),
    }


def _versions() -> dict[str, str]:
    """Of Python and of what decides on the speed of a step."""
    found = {"python": platform.python_version()}
    for name in ("paribus", "torch", "triton", "pytorch-lightning", "transformers"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def measure(
    run: Run,
    contenders: Sequence[str],
    steps: int,
    repeats: int,
    runtime: Runtime,
    title: str,
    json_file: Path | None = None,
    card: dict[str, Any] | str | None = None,
    ask: Callable[[dict[str, Any], str], dict[str, Any] | str] = in_process,
) -> None:
    """Each contender `repeats` times, in turn; a table of their medians, and everything as JSON. `card` is what a
    process said of the contender "ceiling", where one has said it already; `ask` measures a contender."""
    rtd = run.objective if isinstance(run.objective, Rtd) else None
    if any(name.startswith("transformers") for name in contenders):
        if rtd:
            raise ParibusError("--peer: transformers trains no replaced-token detection; expected a base of MLM")
        family_of(run.encoder, False)  # refuses what it has no counterpart for
        try:
            version("transformers")
        except PackageNotFoundError:
            raise ParibusError("--peer transformers: needs the package; pip install 'paribus[hf]'") from None
    refuse_unwritable("--json", json_file)
    begun, asked = head(title), question(run, steps, runtime)
    card = card or ask(asked, "ceiling")
    if isinstance(card, str):
        raise ParibusError(card.removeprefix("error: "))
    length, batch = run.packing.length, run.budget.batch_tokens
    flops = cost(run.encoder, run.tokenizer.vocabulary_size, length, run.objective.rate, rtd).train_flops_a_token
    heads = "generator and encoder; vocabulary head at masked places only" if rtd else "head at masked places only"
    print(
        f"{title}, {batch // length} x {length} tokens, {run.precision}, dropout {run.encoder.dropout}, "
        f"{flops / 1e6:,.1f} MFLOPs a token ({heads})\n"
        f"{card['name']}, bf16 products {card['flops'] / 1e12:.2f} TFLOP/s; {runtime.threads} threads; "
        f"median of {steps} steps after {WARM_UP}, of {repeats} processes",
        flush=True,
    )
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    failed: dict[str, str] = {}
    for _ in range(repeats):
        for name in contenders:
            measured = ask(asked, name)
            if isinstance(measured, str):
                failed[name] = measured
            else:
                found[name].append(measured)
                rate = 1e3 * batch / statistics.median(measured["step_ms"])
                print(f"{name}: {rate:,.0f} tokens/s", file=sys.stderr, flush=True)
    rows = [_row(name, of, batch, flops, card["flops"]) for name, of in found.items() if of]
    peers = [row["tokens_per_second"] for row in rows if row["contender"].startswith("transformers")]
    for row in rows:
        row["ratio"] = row["tokens_per_second"] / max(peers) if peers else math.nan
    _print(rows, failed)
    if json_file:
        told = {
            **begun,
            "card": card,
            **asked,
            "flops_a_token": flops,
            "rows": [{**row, "ratio": None if math.isnan(row["ratio"]) else row["ratio"]} for row in rows],
            "failed": failed,
            "processes": found,
        }
        json_file.write_text(json.dumps(told, indent=1) + "\n")


def _row(name: str, processes: list[dict[str, Any]], batch: int, flops: float, ceiling: float) -> dict[str, Any]:
    medians = [statistics.median(one["step_ms"]) for one in processes]
    rate = 1e3 * batch / statistics.median(medians)
    middle = {
        key: statistics.median(one[key] for one in processes)
        for key in ("start_seconds", "first_step_seconds", "peak_mb")
    }
    return {
        "contender": name,
        "how": processes[-1]["how"],
        "tokens_per_second": rate,
        "slowest": 1e3 * batch / max(medians),
        "fastest": 1e3 * batch / min(medians),
        "step_ms": statistics.median(medians),
        "flops_per_second": rate * flops,
        "share": rate * flops / ceiling,
        **middle,
    }


def _print(rows: Sequence[dict[str, Any]], failed: dict[str, str]) -> None:
    print(f"{'':22} tokens/s     to best peer  step     TFLOP/s  of products  peak MiB  start  first step")
    for row in rows:
        ratio = "-" if math.isnan(row["ratio"]) else f"{row['ratio']:.2f}"
        print(
            f"{row['contender']:22} {row['tokens_per_second']:<12,.0f} {ratio:<13} {row['step_ms']:7.2f}ms "
            f"{row['flops_per_second'] / 1e12:7.2f}  {row['share']:10.1%} {row['peak_mb']:10,.0f} "
            f"{row['start_seconds']:5.1f}s {row['first_step_seconds']:10.1f}s  {row['how']}"
        )
    for name, why in failed.items():
        print(f"{name:22} {why}")


if __name__ == "__main__":
    find()  # a user's own variants are part of the vocabulary
    given = json.load(sys.stdin)
    with in_one_line():
        Path(given["out"]).write_text(json.dumps(contend(given)))
