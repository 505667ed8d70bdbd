"""A project of its own and a store filled by hand, so that no table here depends on shipped settings or on training."""

import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from paribus.plan.plan import Plan, PlannedRun
from paribus.plan.stages import Stage
from paribus.project import Project, find
from paribus.store.store import Store

FILES = {
    "paribus.toml": "",
    "experiments/masks.yaml": """
question: Does drawing a fresh mask at every visit beat a fixed set of masks?
expect: no measurable difference
reproduces: roberta-table1
base: bert-relative
factors: [masking]
seeds: 3
tasks: [grammar, casing]
aggregate: median
""",
    "experiments/plain.yaml": """
question: Is 15 % the right share?
expect: flat
base: bert-relative
factors: [masking-rate]
levels: {masking-rate: ["15", "40"]}
seeds: 2
tasks: [casing]
""",
    "experiments/sizes.yaml": """
question: Do fewer, larger steps help?
expect: a little
reproduces: roberta-table3
base: bert-relative
factors: [batch-size]
levels: {batch-size: [bsz-256, bsz-2k]}
seeds: 2
tune: {path: optimizer.lr, low: {times: 0.5}, high: {times: 4}, trials: 3}
""",
    "experiments/shared.yaml": """
question: How should tables be shared?
expect: not at all
reproduces: debertav3-ablation
base: electra-relative
factors: [embedding-sharing]
levels: {embedding-sharing: [es, nes]}
seeds: 2
tasks: [casing]
""",
    "experiments/pairs.yaml": """
question: Is 15 % the right share?
expect: flat
base: bert-relative
factors: [masking-rate]
levels: {masking-rate: ["15", "40"]}
seeds: 2
tasks: [unlikely]
""",
    "experiments/scales/mini.yaml": """
note: for tests
set:
  budget: {train_tokens: 65536, batch_tokens: 1024}
  finetuning: {learning_rates: [1e-3, 3e-3], seeds: 2, epochs: 1, batch_items: 8, length: 32}
""",
    "tasks/grammar.yaml": """
kind: sentence
source: a test
data: {kind: built, builder: acceptability, train: 100, dev: 50}
metrics: [mcc, accuracy]
""",
    "tasks/unlikely.yaml": """
kind: minimal-pair
source: a test
data: {kind: built, builder: minimal-pairs, dev: 50}
metrics: [phenomenon-accuracy]
""",
    "tasks/casing.yaml": """
kind: tagging
source: a test
data: {kind: built, builder: truecasing, train: 100, dev: 50}
labels: [O, CAP]
metrics: [f1]
""",
}

Rows = list[tuple[str, str | None, float] | tuple[str, str | None, float, str]]
"""metric, split, value, and the task where the stage says it"""
Measure = Callable[[PlannedRun, Stage], Rows]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return find(tmp_path / "project")


@pytest.fixture
def store(tmp_path: Path, counted: None, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no power cut here, and thousands of small files
    store = Store(tmp_path / "store")
    store.prepare()
    return store


def _measure(run: PlannedRun, stage: Stage) -> Rows:
    """Numbers by hand. dynamic is better by 0.1 nats and, at each seed, by 1, 2 and 3 points of each task."""
    gain = 0.0 if run.arm.baseline else 0.01 * (run.seed + 1)
    match stage.kind:
        case "vocabulary":
            return [("tokens_a_word", "test", 1.5), ("bytes_a_token", "test", 3.25), ("unknown_share", "test", 0.001)]
        case "pack":
            return [("unigram_loss", "test", 6.0), ("unigram_bits_per_byte", "test", 2.5)]
        case "pretrain":
            return [("train_loss", "train", 4.6), ("parameters", None, 1234567.0)]
        case "evaluate":
            loss = 4.5 + 0.02 * run.seed - (0.0 if run.arm.baseline else 0.1)
            bits = 2.0 - (0.0 if run.arm.baseline else 0.1)
            rows = [("loss", "validation", 9.9), ("loss", "test", loss), ("perplexity", "test", 90.0 + run.seed)]
            return [*rows, ("bits_per_byte", "test", bits, "words"), ("word_accuracy", "test", 0.3, "words")]
        case "task":
            return [(f"majority.{metric}", "dev", 0.25) for metric in stage.spec.metrics]
        case "minimal-pairs":
            ties = 0.0 if run.arm.baseline else 0.004
            rows = [("accuracy", "dev", 0.1), ("phenomenon-accuracy", "dev", 0.6 + gain), ("ties", "dev", ties)]
            return [*rows, ("accuracy.swap", "dev", 0.2), ("too_long", "dev", 3.0)]
        case "finetune":
            worse = 0.0 if stage.spec.point.lr == 1e-3 else 0.2
            score = 0.5 + gain - worse + (0.04 if stage.spec.restart else -0.04)
            rows = [(metric, split, score) for metric in stage.spec.task.metrics for split in ("select", "dev")]
            return [(metric, split, value + (0.1 if split == "dev" else 0.0)) for metric, split, value in rows]
    return []


def _fill(
    store: Store,
    plan: Plan,
    measure: Measure = _measure,
    missing: Collection[str] = (),
    diverged: Collection[str] = (),
) -> None:
    """Finish every stage of `plan` but those with a key in `missing`; those in `diverged` end so."""
    for run in plan.known:
        for stage in run.stages:
            if stage.key in missing or store.has(stage.key):
                continue
            work = store.claim(stage)
            assert work
            with work:
                for metric, split, value, *task in measure(run, stage):
                    work.row(metric, value, split=split, n=100, **dict(zip(("task",), task, strict=False)))
                work.commit("provenance", "diverged" if stage.key in diverged else "done")


@pytest.fixture
def measure() -> Measure:
    return _measure


@pytest.fixture
def fill() -> Callable[..., None]:
    return _fill
