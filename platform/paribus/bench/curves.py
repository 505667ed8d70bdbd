"""Losses of one pretraining by fast and by plain steps, beside what other seeds do to it: on the base's own corpus."""

import json
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from paribus.bench.train import head, name_of, refuse_unwritable
from paribus.data import vocabulary
from paribus.errors import ParibusError
from paribus.evaluate.held_out import held_out
from paribus.execute import Context, execute
from paribus.objectives.pretrain import pretrain
from paribus.plan.stages import Pretraining, Stages
from paribus.plan.tuning import validation_loss
from paribus.project import find
from paribus.spec.run import Run, Runtime
from paribus.store.store import Measured, Store, read_jsonl
from paribus.train.fit import device

SETTLED = 0.1
"""The share of the steps after which curves are compared: before it the loss falls steeply."""


def _trained(run: Run, seed: int, runtime: Runtime, folder: Path, words: Path, pack: Path) -> dict[str, Any]:
    """What a pretraining in a store of its own left: its curve, its validation loss and how it was really computed."""
    size = len(vocabulary.load(words))
    store = Store(folder)
    store.prepare()
    stage = next(stage for stage in Stages(run).at(seed) if stage.kind == "pretrain")
    assert isinstance(stage.spec, Pretraining)
    work = store.claim(stage)
    assert work
    with work:
        record = pretrain(stage.spec, seed, pack, size, work, runtime)
        if record["outcome"] != "done":
            raise ParibusError(f"--compile {runtime.compile}, seed {seed}: {record['outcome']}")
        found = Measured()
        asked = run.evaluation.held_out, run.objective, run.encoder, size
        held_out(*asked, work.out, pack, found, runtime, ("validation",), False)
        points = read_jsonl(work.out / "curve.jsonl")
    return {
        "seed": seed,
        "how": record["compile"],
        "seconds": record["seconds"],
        "validation_loss": validation_loss(found.rows),
        "curve": [(point["train/tokens"], point["train/loss"]) for point in points],
    }


def measure(
    run: Run,
    ways: Sequence[str],
    seeds: int,
    runtime: Runtime,
    title: str,
    json_file: Path | None = None,
    plot_file: Path | None = None,
) -> None:
    """Each way with each seed, on the same rows and masks; a table, the distance of the curves, and a plot of them."""
    refuse_unwritable("--json", json_file)
    refuse_unwritable("--plot", plot_file)
    if plot_file:
        from paribus.pages.charts import FORMATS  # what trains needs no page

        if plot_file.suffix.removeprefix(".") not in FORMATS:
            known = ", .".join(FORMATS)
            raise ParibusError(f"--plot: found a file ending in {plot_file.suffix}, expected one of .{known}")
    begun, card = head(title), name_of(device(runtime))
    batch = run.budget.batch_tokens
    print(f"{title} on {card}, {run.budget.steps:,} steps of {batch:,} tokens, {seeds} seeds", flush=True)
    ways = list(dict.fromkeys(ways))
    found: dict[str, list[dict[str, Any]]] = {f"compile {how}": [] for how in ways}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "data")
        store.prepare()
        data = Stages(run).data
        execute(Context(find(), store, runtime, run), data)
        words, pack = (store.verified(stage.key) for stage in data[1:])
        train = partial(_trained, run, words=words, pack=pack)
        for seed in range(seeds):
            for way, how in zip(found, ways, strict=True):
                there = Path(folder) / f"{how}-{seed}"
                found[way].append(train(seed, runtime.model_copy(update={"compile": how}), there))
    for way, trained in found.items():
        losses = [one["validation_loss"] for one in trained]
        hows = " and ".join(sorted({one["how"] for one in trained}))
        print(
            f"{way:16s} validation loss {mean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f}), "
            f"{mean(one['seconds'] for one in trained):.1f} s a seed, computed {hows}"
        )
    ways_apart, seeds_apart = apart(found)
    for what, nats in (("the means of two ways", ways_apart), ("two seeds of one way", seeds_apart)):
        if nats is not None:
            print(f"after {SETTLED:.0%} of the steps {what} are at most {nats:.4f} nats apart")
    told = {
        **begun,
        "card": card,
        "run": run.model_dump(mode="json"),
        "ways_apart": ways_apart,
        "seeds_apart": seeds_apart,
        "found": found,
    }
    if json_file:
        json_file.write_text(json.dumps(told) + "\n")
    if plot_file:
        plot(told, plot_file)


def apart(found: dict[str, list[dict[str, Any]]]) -> tuple[float | None, float | None]:
    """The farthest that the mean curves of two ways, and the curves of two seeds of one way, lie apart, in nats; None
    where there are no two."""
    curves = {way: [[loss for _, loss in one["curve"]] for one in trained] for way, trained in found.items()}
    readings = len(next(iter(curves.values()))[0])
    ways = seeds = 0.0
    for number in range(int(SETTLED * readings), readings):
        at = {way: [curve[number] for curve in of] for way, of in curves.items()}
        means = [mean(losses) for losses in at.values()]
        ways = max(ways, max(means) - min(means))
        seeds = max(seeds, *(max(losses) - min(losses) for losses in at.values()))
    return ways if len(curves) > 1 else None, seeds if len(next(iter(curves.values()))) > 1 else None


def plot(told: dict[str, Any], file: Path) -> None:
    """Draw the mean curve of each way, with the band of its seeds."""
    from paribus.pages.charts import draw, learning

    curves = {
        way: [(of[0][0], [loss for _, loss in of]) for of in zip(*(one["curve"] for one in trained), strict=True)]
        for way, trained in told["found"].items()
    }
    chart = learning(curves, 560)
    assert chart
    file.write_bytes(draw(chart, file.suffix.removeprefix(".")))
