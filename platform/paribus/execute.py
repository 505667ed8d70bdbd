"""Run the stages of a run into the store: the dict from a stage's kind to the function that computes it.

Data stages (polars, tokenizer training) are computed in a child process, so a training process never loads polars,
which hangs after a fork, and the memory they took is given back.  `python -m paribus.execute RUN` is that child.
"""

import importlib.metadata
import json
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus import __version__, nvidia
from paribus.errors import Corrupt, DataError, DiskFull, LostLease, ParibusError, Stopped, StoreError
from paribus.files import sha256
from paribus.interrupt import STOPPING, Interrupt
from paribus.plan.stages import Import, JudgedPretraining, PairTest, Pretraining, Stage, TaskTuning, Tokenised
from paribus.plan.tuning import reports, validation_loss
from paribus.project import PACKAGE, Project, all_files, unchanged
from paribus.spec.base import digest
from paribus.spec.data import Corpus, Imported, Packing, Tokenizer
from paribus.spec.experiment import Pruner
from paribus.spec.load import build
from paribus.spec.run import HeldOut, Run, Runtime
from paribus.spec.task import Built, Hub, Task
from paribus.store.store import Measured, Store, Work

if TYPE_CHECKING:
    from paribus.objectives.pretrain import Judge

POLL_SECONDS = 0.2
CHILDREN = 5  # processes that signals may end before the run has failed
CHILD_SECONDS = 5.0  # that data stages have to stop by themselves
# What the files of a built task are called, by the format of its kind.
ENDINGS = {"sentence": "tsv", "pair": "tsv", "regression": "tsv", "span-qa": "json", "tagging": "conll"}

Prune = Callable[[Pruner, Sequence[Mapping[int, float]], Mapping[int, float]], bool]


@dataclass(frozen=True)
class Context:
    """Where stages are computed and with what."""

    project: Project
    store: Store
    runtime: Runtime
    run: Run
    stop: Callable[[], bool] = lambda: False
    """Asked whenever it is safe to stop: whether the run shall."""
    prune: Prune = lambda pruner, earlier, told: False
    """Whether a trial ends now: its pruner, what each earlier trial told (report: loss), what it told itself."""
    seat: Callable[[float], int] = lambda peak_mb: 0
    """Told the memory (MiB) taken so far: how many other runs share the device."""
    data_here: bool = False
    """Whether data stages are computed in this process and not in a child of it."""

    def provenance(self) -> str:
        """The digest of commit, diff and versions, recorded once in the store. To be asked when a stage begins: what
        was imported before is not what is on the disk now, where that was edited meanwhile."""
        started = environment(self.project)
        try:
            now = program(self.project)
        except OSError:  # in the middle of a checkout
            now = "something else"
        if now != started["code"]:
            started = {**started, "code": f"{started['code']}, edited meanwhile to {now}"}
        return self.store.record_provenance(started)

    def input(self, stage: Stage, role: str) -> Path:
        """The verified folder of one of a stage's inputs."""
        return self.store.verified(stage.inputs[role])


# --- one function a kind ---------------------------------------------------------------------------------------------


def _corpus(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import corpus
    from paribus.data.shards import Shards

    assert isinstance(stage.spec, Corpus)
    files = context.project.corpus_files(stage.spec)
    shards = Shards(work.scratch / "shards", may_stop=work.may_stop)
    with shards, unchanged(files, getattr(stage.spec, "sha256", None), "corpus"):
        counts = corpus.make(stage.spec, files, work.out, shards)
    for name, value in counts.items():
        work.row(name, value)
    return {}


def _vocabulary(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import vocabulary
    from paribus.data.corpus import Sentences
    from paribus.data.shards import Shards
    from paribus.data.tokenised import statistics

    assert isinstance(stage.spec, Tokenizer)
    folder = context.input(stage, "corpus")
    if isinstance(stage.spec, Imported):
        from paribus.interop.hf import bring_tokenizer

        files = context.project.tokenizer_files(stage.spec.path)
        with unchanged(files, stage.spec.sha256, "tokenizer"):
            trained = bring_tokenizer(stage.spec, files[0].parent, work.out)
    else:
        trained = vocabulary.make(stage.spec, Sentences(folder, "train"), work.out)
    work.row("size", len(trained))
    # Training begins anew after a kill, so nothing that was counted before it is kept.
    with tempfile.TemporaryDirectory(dir=work.folder) as counts, Shards(Path(counts), may_stop=work.may_stop) as shards:
        for split in ("train", "test"):
            for name, value in statistics(folder, work.out, shards, split).items():
                work.row(name, value, split=split)
    return {}


def _pack(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import packing, vocabulary
    from paribus.data.corpus import SPLITS
    from paribus.data.shards import Shards
    from paribus.data.tokenised import tokenised

    assert isinstance(stage.spec, Packing)
    folder, words, length = context.input(stage, "corpus"), context.input(stage, "vocabulary"), stage.spec.length
    size = len(vocabulary.load(words))
    packed = {}
    with Shards(work.scratch / "shards", may_stop=work.may_stop) as shards:
        for split in SPLITS:
            limit = stage.spec.train_tokens if split == "train" else None
            rows = packing.rows(stage.spec, tokenised(folder, words, shards, split), size, limit)
            found = packed[split] = packing.save(rows, work.out, split, size)
            if found.rows == 0:
                raise DataError(f"packing: the {split} documents give no row of {length} tokens")
            work.row("rows", found.rows, split=split)
            work.row("tokens", found.tokens, split=split)
            work.row("padding_share", 1 - found.tokens / (found.rows * length), split=split)
        for split in ("validation", "test"):
            work.row("unigram_loss", packing.unigram_loss(packed["train"], packed[split]), split=split)
            parts = packing.words(tokenised(folder, words, shards, split), size, length)
            found = packing.save(parts, work.out, f"{split}.words", size)
            bits = packing.unigram_bits_per_byte(packed["train"], found)
            work.row("unigram_bits_per_byte", bits, split=split, n=found.words)
    return {}


def _task(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import builders, corpus, formats
    from paribus.evaluate.metrics import majority
    from paribus.seeds import seed_for

    task = stage.spec
    assert isinstance(task, Task)
    if isinstance(task.data, Built):
        folder = context.input(stage, "corpus")
        key = seed_for(0, "task")
        train = builders.build(task, corpus.load(folder, "train"), task.data.train, key) if task.data.train else []
        dev = builders.build(task, corpus.load(folder, "test"), task.data.dev, key)
        for split, items in (("train", train), ("dev", dev)):
            if task.kind in ENDINGS:
                formats.write(work.out / f"{split}.{ENDINGS[task.kind]}", items)
    else:
        if isinstance(task.data, Hub):
            hub = task.data
            readings = {split: formats.read_split(hub, task, getattr(hub, split)) for split in ("train", "dev")}
        else:
            sources = context.project.task_files(task.data)
            with unchanged(all_files(sources), getattr(task.data, "sha256", None), f"task {task.name}"):
                readings = {split: formats.read(task, source) for split, source in sources.items()}
        for split, reading in readings.items():
            work.row("left_out", reading.left_out, split=split)
            for line in reading.summary():
                print(f"task {task.name} {split}: {line}", file=sys.stderr)
        train, dev = (readings[split].items if split in readings else [] for split in ("train", "dev"))
    made = {"dev": dev}
    if task.trains:
        train, select = formats.split_select(train, task.select)
        made = {"train": train, "select": select, "dev": dev}
        for metric, value in majority(task, train, dev).items():
            work.row(f"majority.{metric}", value, split="dev", n=len(dev))
    for split, items in made.items():
        formats.write_items(work.out / f"{split}.jsonl", items)
        work.row("items", len(items), split=split)
    return {}


def _pretrain(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import vocabulary
    from paribus.objectives.pretrain import pretrain

    assert isinstance(stage.spec, Pretraining) and stage.seed is not None
    size = len(vocabulary.load(context.input(stage, "vocabulary")))
    pack = context.input(stage, "pack")
    judge = _judge(context, stage, size, pack) if isinstance(stage.spec, JudgedPretraining) else None
    return pretrain(stage.spec, stage.seed, pack, size, work, context.runtime, context.seat, judge)


def _judge(context: Context, stage: Stage, size: int, pack: Path) -> "Judge":
    """What a trial's pretraining is judged by: its loss on the validation documents, and earlier trials'."""
    from paribus.evaluate.held_out import held_out
    from paribus.objectives.pretrain import Judge

    assert isinstance(stage.spec, JudgedPretraining)
    pruner, run = stage.spec.pruner, context.run
    asked = run.evaluation.held_out
    earlier = [reports(context.store.record(key)) for role, key in stage.inputs.items() if role.startswith("trial")]

    def measure(folder: Path) -> float:
        found = Measured()
        held_out(asked, run.objective, run.encoder, size, folder, pack, found, context.runtime, ("validation",), False)
        return validation_loss(found.rows)

    return Judge(pruner.reports, measure, lambda told: context.prune(pruner, earlier, told))


def _import(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from safetensors.torch import save_file

    from paribus.interop.hf import bring

    assert isinstance(stage.spec, Import)
    config, *weights = context.project.checkpoint_files(stage.spec.checkpoint.path)
    with unchanged([config, *weights], stage.spec.checkpoint.sha256, "pretrained"):
        found = bring(stage.spec.encoder, config.parent, weights, context.input(stage, "vocabulary"))
    for name, tensors in found.items():
        save_file(tensors, work.out / f"{name}.safetensors")
    work.row("parameters", sum(tensor.numel() for tensors in found.values() for tensor in tensors.values()))
    return {}


def _evaluate(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import vocabulary
    from paribus.evaluate.held_out import held_out

    assert isinstance(stage.spec, HeldOut)
    size = len(vocabulary.load(context.input(stage, "vocabulary")))
    pretrained, pack = context.input(stage, "pretrain"), context.input(stage, "pack")
    run = context.run
    held_out(stage.spec, run.objective, run.encoder, size, pretrained, pack, work, context.runtime)
    return {}


def _features(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import vocabulary
    from paribus.evaluate import features

    assert isinstance(stage.spec, Tokenised)
    words, task = vocabulary.load(context.input(stage, "vocabulary")), context.input(stage, "task")
    for split, count in features.make(stage.spec, words, task, work.out).items():
        work.row("features", count, split=split)
    return {}


def _finetune(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.evaluate.finetune import finetune

    assert isinstance(stage.spec, TaskTuning) and stage.seed is not None
    first = "start" if "start" in stage.inputs else "pretrain"
    if context.store.record(stage.inputs[first])["outcome"] == "diverged":
        return {"outcome": "diverged", "diverged_step": 0}  # there is nothing to start from
    start, task, features = (context.input(stage, name) for name in (first, "task", "features"))
    return finetune(stage.spec, stage.seed, context.run.encoder, start, task, features, work, context.runtime)


def _minimal_pairs(context: Context, stage: Stage, work: Work) -> dict[str, object]:
    from paribus.data import vocabulary
    from paribus.evaluate.minimal_pairs import minimal_pairs

    assert isinstance(stage.spec, PairTest)
    words = vocabulary.load(context.input(stage, "vocabulary"))
    pretrained, task, run = context.input(stage, "pretrain"), context.input(stage, "task"), context.run
    minimal_pairs(stage.spec, run.objective, run.encoder, words, pretrained, task, work, context.runtime)
    return {}


Function = Callable[[Context, Stage, Work], dict[str, object]]

# The data stages, whose process does nothing else.
DATA: Mapping[str, Function] = {
    "corpus": _corpus,
    "vocabulary": _vocabulary,
    "pack": _pack,
    "task": _task,
}
FUNCTIONS: Mapping[str, Function] = {
    **DATA,
    "features": _features,
    "pretrain": _pretrain,
    "import": _import,
    "evaluate": _evaluate,
    "minimal-pairs": _minimal_pairs,
    "finetune": _finetune,
}
# Those whose numbers depend on the device.
COMPUTED = ("pretrain", "evaluate", "minimal-pairs", "finetune")


# --- a run -----------------------------------------------------------------------------------------------------------


class PretrainingEnded(Exception):
    """The run ends here: its pretraining diverged or was pruned, so there is nothing to evaluate."""

    def __init__(self, outcome: str, step: int) -> None:
        super().__init__(f"{outcome} at step {step}")
        self.outcome, self.step = outcome, step


def execute(context: Context, stages: list[Stage]) -> None:
    """Compute what is missing of `stages` (each after its inputs).

    An input that fails its checksum is set aside and computed again. Raises Stopped when asked to stop, and
    PretrainingEnded when there is nothing to go on from.
    """
    for _ in range(len(stages)):
        try:
            for stage in stages:
                _ensure(context, stage, stages)
            return
        except Corrupt as error:
            print(f"{error}; computing it again", file=sys.stderr)
    raise DataError("stages keep failing their checksums; the disk is not to be trusted")


def _ensure(context: Context, stage: Stage, stages: list[Stage]) -> None:
    """Compute `stage`, or wait for whoever is computing it."""
    store = context.store
    while not store.has(stage.key):
        if context.stop():
            raise Stopped
        if store.pauses():
            continue
        if stage.kind in DATA and not context.data_here:
            _compute_data_in_child(context, stages)
            continue
        work = store.claim(stage, context.stop)
        if work is None:
            time.sleep(POLL_SECONDS)
            continue
        try:
            with work:
                if not store.has(stage.key):
                    print(f"{stage.key}: {stage.kind} begins", file=sys.stderr)
                    provenance = context.provenance()
                    more = FUNCTIONS[stage.kind](context, stage, work)
                    on = machine(context.runtime) if stage.kind in COMPUTED else {}
                    work.commit(provenance, **{**on, **more})
        except LostLease as error:  # now somebody else computes it: wait for them
            print(error, file=sys.stderr)
    if stage.kind == "pretrain" and (outcome := store.record(stage.key)["outcome"]) != "done":
        raise PretrainingEnded(outcome, store.record(stage.key)[f"{outcome}_step"])


def _compute_data_in_child(context: Context, stages: list[Stage]) -> None:
    """Compute the missing data stages of the run in a process of their own."""
    asked = {
        "run": context.run.model_dump(mode="json"),
        "runtime": context.runtime.model_dump(mode="json"),
        "store": str(context.store.root.resolve()),
    }
    for _ in range(CHILDREN):
        code, said = _child_ended(context, asked)
        sys.stderr.write(said)
        if kind := {2: DataError, 3: StoreError, 4: DiskFull}.get(code):
            raise kind(said.strip().splitlines()[-1].removeprefix("error: "))
        if code == 0:
            return
        if 0 < code < 128:  # no signal: it would end like this again
            break
    raise RuntimeError(f"the data stages ended with code {code}:\n{said[-2000:]}")


def _child_ended(context: Context, asked: dict[str, Any]) -> tuple[int, str]:
    """The exit code of such a child and what it printed; Stopped if the run is to stop meanwhile."""
    with tempfile.TemporaryFile("w+") as heard, tempfile.TemporaryFile("w+") as said:
        json.dump(asked, heard)
        heard.seek(0)
        command = [sys.executable, "-m", "paribus.execute"]
        child = subprocess.Popen(command, stdin=heard, stdout=said, stderr=said, cwd=context.project.root)
        while child.poll() is None and not context.stop():
            with suppress(subprocess.TimeoutExpired):
                child.wait(POLL_SECONDS)
        if child.returncode is None:
            child.terminate()
            try:
                child.wait(CHILD_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()  # in the middle of something long, of which nothing would be kept
                child.wait()
            raise Stopped
        if child.returncode and context.stop():
            raise Stopped  # the terminal, or Slurm, sent it to both
        said.seek(0)
        return child.returncode, said.read()


def _child() -> int:
    """Compute the data stages of the run that standard input describes.

    2: the data are at fault, 3: the store is, 4: it is full.
    """
    stop = Interrupt(*STOPPING)
    from paribus.plan.stages import Stages
    from paribus.project import find

    asked = json.load(sys.stdin)
    project = find()
    run = build(Run, asked["run"], "run")
    runtime = Runtime.model_validate(asked["runtime"])
    store = Store(Path(asked["store"]), project.settings.lease_seconds)
    context = Context(project, store, runtime, run, stop, data_here=True)
    maker = Stages(run)
    try:
        execute(context, [*maker.data, *maker.tasks])
    except ParibusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4 if isinstance(error, DiskFull) else 3 if isinstance(error, StoreError) else 2
    except Stopped:
        return stop.exit_code
    return 0


def machine(runtime: Runtime) -> dict[str, Any]:
    """What computed a stage: device by name, driver, how fp32 products are taken, and the most memory held so far.

    peak_memory_mb is MiB: of torch on a GPU, of the whole process on a CPU, which in a worker includes stages before.
    """
    import torch

    from paribus.train.fit import device

    where = device(runtime)
    matmul = torch.get_float32_matmul_precision()
    if where.type != "cuda":
        kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
        return {"device": "cpu", "driver": None, "matmul": matmul, "peak_memory_mb": kib / 1024}
    memory = torch.cuda.max_memory_allocated(where) / 2**20
    card = torch.cuda.get_device_name(where)
    return {"device": card, "driver": _driver(), "matmul": matmul, "peak_memory_mb": memory}


@cache
def _driver() -> str | None:
    """The version of the GPU's driver; None where it does not say."""
    told = nvidia.ask("driver_version")
    return told[0][0] if told else None


def program(project: Project) -> str:
    """The code that decides a number, in a few words: version, and a digest of the package and the user's variants."""
    files = sorted(PACKAGE.rglob("*.py"))
    if project.settings.variants and (variants := project.root / project.settings.variants).is_file():
        files.append(variants)
    # An editor's lock is a link to nowhere.
    there = [(file, file.stat()) for file in files if file.exists()]
    return _program(tuple((file, told.st_ctime_ns, told.st_size) for file, told in there))


@lru_cache(2)  # it is asked at each stage
def _program(files: Sequence[tuple[Path, int, int]]) -> str:
    """Of files, each with when it was last changed and its size."""
    return f"paribus {__version__} (code {digest(''.join(sha256(file) for file, *_ in files))[:8]})"


@cache
def environment(project: Project) -> dict[str, Any]:
    """What else could explain a number: code, commit, diff, versions, machine; as they were when first asked, which a
    worker does before anything else."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(project.root), *arguments], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    packages = {d.name: d.version for d in importlib.metadata.distributions()}
    return {
        "paribus": __version__,
        "code": program(project),
        "commit": git("rev-parse", "HEAD").strip(),
        "dirty": bool(git("status", "--porcelain")),
        "diff": git("diff", "HEAD"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "packages": dict(sorted(packages.items())),
    }


if __name__ == "__main__":
    sys.exit(_child())
