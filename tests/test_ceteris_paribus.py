"""All else equal, from both sides: every level of every factor moves a number, no choice of machine does."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from paribus.data.document import Document
from paribus.data.packing import Rows, load, load_words
from paribus.execute import FUNCTIONS, Context, execute
from paribus.objectives.loader import Steps
from paribus.objectives.pretrain import build_objective
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Pretraining, Stage
from paribus.project import Project, find
from paribus.spec.run import Runtime
from paribus.store.store import Store

ROOT = Path(__file__).parent.parent
FACTORS = sorted(path.stem for path in (ROOT / "ablations").glob("*.yaml"))
TUNED = ["adaptation"]  # which change what comes after pretraining
CPU = Runtime(device="cpu")
UNTIL_PRETRAINED = ("corpus", "vocabulary", "pack", "pretrain")

WHOLE = {"corpus": {"kind": "jsonl", "paths": ["whole.jsonl"]}}  # fills the vocabularies that the levels ask for
FITTING: dict[str, dict[str, Any]] = {
    "deberta-components": {"encoder.init_std": 0.1},  # at 0.02 a term of 32 dimensions drowns in rounding
    "batch-size": {"budget.batch_tokens": 192},  # of which the largest level, 32 times as much, is one step
    "model-size": {"encoder.layers": 4, "encoder.width": 48, "encoder.heads": 12, "encoder.feed_forward.width": 96},
    "embedding-size": {"encoder.width": 24, "encoder.embedding_width": 24},
    "adaptation": {**WHOLE, "encoder.layers": 6},  # more than the last four
    "tokenizer": WHOLE,
    "vocabulary-size": WHOLE,
}

Compute = Callable[..., Store]
Fingerprint = Callable[..., list[float]]


@pytest.fixture(scope="module")
def project(documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The shipped files, a small corpus, a scale of six steps over six passes, and an experiment a factor."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "paribus.toml").write_text("")
    for name in ("data", "experiments/scales"):
        (folder / name).mkdir(parents=True)
    whole = ["\n".join(map(" ".join, d.paragraphs[at : at + 4])) for d in documents for at in range(0, 40, 4)]
    (folder / "data" / "whole.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in whole))
    # Sentences of four words, so that a row of 32 tokens holds several, and two documents now and then.
    short = [[" ".join(" ".join(s.split()[:4]) + "." for s in p) for p in d.paragraphs] for d in documents]
    pieces = ["\n".join(paragraphs[at : at + 4]) for paragraphs in short for at in range(0, 40, 4)]
    (folder / "data" / "pieces.jsonl").write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces))
    scale = yaml.safe_load((ROOT / "experiments/scales/debug.yaml").read_text())
    scale["set"] |= {
        "corpus": {"kind": "jsonl", "paths": ["pieces.jsonl"]},
        "packing.train_tokens": 900,
        "budget": {"train_tokens": 6144, "batch_tokens": 1024},
    }
    (folder / "experiments/scales/six-steps.yaml").write_text(yaml.safe_dump(scale))
    (folder / "tasks").mkdir()
    (folder / "tasks/few.yaml").write_text(
        "{kind: tagging, source: a test, labels: [O, CAP], metrics: [f1], "
        "data: {kind: built, builder: truecasing, train: 60, dev: 8}}"
    )
    shipped = find(ROOT).experiments
    for factor in FACTORS:
        base = next(
            (shipped.get(name).base for name in shipped if factor in shipped.get(name).factors), "bert-relative"
        )
        tasks = ["few"] if factor in TUNED else []
        experiment = {"question": "?", "expect": "?", "base": base, "factors": [factor], "tasks": tasks}
        (folder / f"experiments/alive-{factor}.yaml").write_text(yaml.safe_dump(experiment))
    return find(folder)


def planned(project: Project, factor: str, **overrides: object) -> Plan:
    changes = {**FITTING.get(factor, {}), **{k.replace("__", "."): v for k, v in overrides.items()}}
    return plan(project, f"alive-{factor}", "six-steps", 1, changes)


@pytest.fixture(scope="module")
def compute(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Compute:
    """Computes the stages of a run up to a kind, and gives their store. A store for each runtime."""

    @cache
    def store(runtime: Runtime) -> Store:
        made = Store(tmp_path_factory.mktemp("store"))
        made.prepare()
        return made

    def until(run: PlannedRun, last: str, runtime: Runtime = CPU) -> Store:
        context = Context(project, store(runtime), runtime, run.arm.run)
        for stage in run.stages:
            if stage.kind in UNTIL_PRETRAINED[: UNTIL_PRETRAINED.index(last) + 1] and not context.store.has(stage.key):
                work = context.store.claim(stage)
                assert work
                with work:
                    said: dict[str, Any] = FUNCTIONS[stage.kind](context, stage, work)
                    work.commit("provenance", **said)
        return context.store

    return until


@pytest.fixture(scope="module")
def fingerprint(compute: Compute) -> Fingerprint:
    """The losses of a run, step by step."""

    def losses(run: PlannedRun, runtime: Runtime = CPU) -> list[float]:
        store = compute(run, "pretrain", runtime)
        return [point["train/loss"] for point in store.curve(stage_of(run, "pretrain").key)]

    return losses


def stage_of(run: PlannedRun, kind: str) -> Stage:
    (found,) = (stage for stage in run.stages if stage.kind == kind)
    return found


@pytest.mark.parametrize("factor", sorted({*FACTORS} - {*TUNED}))
def test_every_level_moves_a_number(project: Project, fingerprint: Fingerprint, factor: str) -> None:
    found = {run.arm.label: tuple(fingerprint(run)) for run in planned(project, factor).runs}
    assert len(found) > 1
    assert len(set(found.values())) == len(found), found


@pytest.mark.parametrize("factor", TUNED)
def test_every_level_moves_a_number_of_a_fine_tuning(
    project: Project, factor: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store(tmp_path_factory.mktemp("tuned"))
    store.prepare()
    found = {}
    for run in planned(project, factor).runs:
        execute(Context(project, store, CPU, run.arm.run, data_here=True), run.stages)
        curve = store.curve(stage_of(run, "finetune").key)
        found[run.arm.label] = tuple(point["train/loss"] for point in curve)
    assert len(set(found.values())) == len(found) > 1, found


@pytest.mark.parametrize("factor", sorted({*FACTORS} - {*TUNED}))
def test_arms_start_from_the_same_values_where_they_share_a_parameter(project: Project, factor: str) -> None:
    starts = []
    for run in planned(project, factor).runs:
        (spec,) = (stage.spec for stage in run.stages if stage.kind == "pretrain")
        assert isinstance(spec, Pretraining)
        starts.append(dict(build_objective(spec, run.arm.run.tokenizer.vocabulary_size, 0).named_parameters()))
    for start in starts[1:]:
        shared = [name for name in start if name in starts[0] and start[name].shape == starts[0][name].shape]
        assert shared and all(torch.equal(start[name], starts[0][name]) for name in shared)


# --- two arms at one seed: the same data, the same masks, the same starts (above) -----------------------------------


def visits(run: PlannedRun, rows: Rows, seed: int = 0) -> dict[tuple[int, int], list[bytes]]:
    """Each visit of a row, in the order of the training, and what is fed then: input, predicted places, draws."""
    spec = stage_of(run, "pretrain").spec
    assert isinstance(spec, Pretraining)
    steps = Steps(rows, spec, run.arm.run.tokenizer.vocabulary_size, seed, 1)
    found = {}
    for number, step in enumerate(steps):
        asked = zip(*(a.tolist() for a in steps._batches.rows(number)), strict=True)
        for visit, micro in zip(asked, step.micros, strict=True):
            parts = (micro.tokens_BT, micro.places_M, micro.targets_M, micro.draws_M)
            found[visit] = [part.numpy().tobytes() for part in parts if part is not None]
    return found


@pytest.mark.parametrize("factor", ["masking", "batch-size", "deberta-components", "embedding-sharing"])
def test_arms_see_the_same_rows_in_the_same_order_under_the_same_masks(
    project: Project, compute: Compute, factor: str
) -> None:
    baseline, *others = planned(project, factor).runs
    rows = load(compute(baseline, "pack").folder(stage_of(baseline, "pack").key), "train")
    expected = visits(baseline, rows)
    assert list(visits(baseline, rows, seed=1)) != list(expected)
    for run in others:
        assert stage_of(run, "pack").key == stage_of(baseline, "pack").key
        found = visits(run, rows)
        # The largest batch may leave less than a step of the tokens over.
        common = list(expected)[: len(found)]
        assert list(found) == common and len(common) > 0.9 * len(expected)
        same = [visit for visit in common if found[visit] == expected[visit]]
        if factor == "masking":  # the first of the static masks is the first of the dynamic ones
            assert same[: len(rows)] == common[: len(rows)] and len(same) < len(common)
        else:
            assert same == common


@pytest.mark.parametrize("factor", ["input-format", "tokenizer"])
def test_arms_that_pack_otherwise_share_documents_and_held_out_words(
    project: Project, compute: Compute, factor: str
) -> None:
    baseline, *others = planned(project, factor).runs
    kinds = ("corpus", "vocabulary") if factor == "input-format" else ("corpus",)
    assert len({stage_of(run, "pack").key for run in (baseline, *others)}) > 2
    for run in others:
        assert all(stage_of(run, kind).key == stage_of(baseline, kind).key for kind in kinds)
        packs = [compute(r, "pack").folder(stage_of(r, "pack").key) for r in (baseline, run)]
        one, other = (load_words(pack, "test") for pack in packs)
        assert np.array_equal(one.sizes, other.sizes)
        if factor == "input-format":
            assert np.array_equal(one.rows.tokens, other.rows.tokens) and np.array_equal(one.numbers, other.numbers)
        if packs[0] == packs[1]:  # pairs without the loss on them
            assert visits(run, load(packs[1], "train")) == visits(baseline, load(packs[0], "train"))


def test_the_same_run_gives_the_same_numbers_again(project: Project, fingerprint: Fingerprint) -> None:
    run = planned(project, "masking").runs[0]
    assert fingerprint(run, CPU.model_copy(update={"checkpoint_seconds": 0.0})) == fingerprint(run)


def test_the_number_of_threads_moves_nothing(project: Project, fingerprint: Fingerprint) -> None:
    run = planned(project, "masking").runs[0]
    assert run.arm.run.encoder.dropout > 0
    assert fingerprint(run, CPU.model_copy(update={"threads": 2})) == pytest.approx(fingerprint(run), rel=1e-5)


def test_the_rows_that_go_through_at_once_move_nothing_where_nothing_is_dropped(
    project: Project, fingerprint: Fingerprint
) -> None:
    run = planned(project, "masking", encoder__dropout=0.0, encoder__attention__dropout=0.0).runs[0]
    assert fingerprint(run, CPU.model_copy(update={"micro_batch_rows": 5})) == pytest.approx(fingerprint(run), rel=1e-5)
