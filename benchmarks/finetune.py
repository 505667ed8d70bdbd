"""Fine-tuning as written and by CUDA graphs: python benchmarks/finetune.py FILE [--base bert] [--scale small]

As the experiment masking fine-tunes on its sentences, but on random ones as long as those of CoLA and SST-2 are, three
epochs of 8,192. Everything is timed that a training does after its items are in ids, capturing graphs too.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from paribus.bench.train import WARM_UP, Clock, head, name_of, refuse_unwritable, sized
from paribus.errors import Stopped, in_one_line
from paribus.evaluate.features import Feature
from paribus.evaluate.finetune import Epochs, Steps, Tuned
from paribus.nn.build import build_encoder
from paribus.nn.init import initialise
from paribus.plan.plan import plan
from paribus.plan.stages import TaskTuning
from paribus.project import find
from paribus.spec.run import Run, Runtime
from paribus.spec.task import Sentence
from paribus.train.fit import device, fit
from paribus.train.watch import Watch

ITEMS = 8192


def recipe(scale: str) -> TaskTuning:
    """How masking fine-tunes on sentences."""
    stages = plan(find(), "masking", scale).stages()
    return next(s.spec for s in stages if isinstance(s.spec, TaskTuning) and isinstance(s.spec.task, Sentence))


def sentences(count: int, vocabulary: int, most: int) -> list[list[Feature]]:
    """Of 6 to `most` tokens, 13 in the middle; each by itself, as a batch counts them."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(2.55, 0.5, count), 6, most).astype(int)
    return [[Feature(rng.integers(5, vocabulary, n).tolist(), i, 0, i % 2)] for i, n in enumerate(lengths)]


def time_steps(run: Run, asked: TaskTuning, units: Sequence[list[Feature]], runtime: Runtime) -> dict[str, Any]:
    """Milliseconds of each step but the first few, and how steps were computed."""
    where = device(runtime)
    made = build_encoder(run.encoder, run.tokenizer.vocabulary_size)
    initialise(made, 0, run.encoder.init_std)
    batches = Epochs(units, [len(unit[0].ids) for unit in units], asked.batch_items, asked.epochs, 0)
    module = Tuned(made, run.encoder.width, asked, batches.steps, 0, run.encoder.init_std)
    if runtime.compile == "graphs" and where.type == "cuda":
        module.replay()
    clock = Clock(batches.steps - WARM_UP, where)
    with tempfile.TemporaryDirectory() as folder, suppress(Stopped):
        watch = Watch(Path(folder), batches.steps, asked.batch_items, float("inf"), 0, unit="items")
        fit(module, Steps(batches, module, where), batches.steps, asked.precision, runtime, [watch, clock])
    return {"how": module.passes.how, "step_ms": clock.step_ms()}


def main(file: Path, run: Run, asked: TaskTuning, items: int, runtime: Runtime, title: str) -> None:
    refuse_unwritable("FILE", file)
    begun = {**head(title), "device": name_of(device(runtime)), "runtime": runtime.model_dump(mode="json")}
    units = sentences(items, run.tokenizer.vocabulary_size, asked.length)
    rows = []
    for how in ("off", "graphs"):
        found = time_steps(run, asked, units, runtime.model_copy(update={"compile": how}))
        mean = statistics.fmean(found["step_ms"])
        late = statistics.median(found["step_ms"][len(found["step_ms"]) // 2 :])
        rate = 1e3 * asked.batch_items / mean
        rows.append({"compile": how, "items_per_second": rate, "late_step_ms": late, **found})
        told = f"{mean:6.2f} ms a step, {late:6.2f} in the second half; {found['how']}"
        print(f"--compile {how:6} {rate:10,.0f} items/s, {told}", flush=True)
    file.write_text(json.dumps({**begun, "recipe": asked.model_dump(mode="json"), "rows": rows}) + "\n")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path)
    options.add_argument("--base", default="bert")
    options.add_argument("--scale", default="small")
    given = options.parse_args()
    with in_one_line():
        run = sized(given.base, given.scale, {"tokenizer.vocabulary_size": 30522}, None)
        main(given.file, run, recipe(given.scale), ITEMS, Runtime(), f"fine-tuning, {given.base}@{given.scale}")
