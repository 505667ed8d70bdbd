"""All else equal, from both sides: every level of every factor moves a number, no choice of machine does."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from paribus.data.document import Document
from paribus.execute import FUNCTIONS, Context
from paribus.objectives.pretrain import build_objective
from paribus.plan.plan import Plan, PlannedRun, plan
from paribus.plan.stages import Pretraining
from paribus.project import Project, find
from paribus.spec.run import Runtime
from paribus.store.store import Store

ROOT = Path(__file__).parent.parent
FACTORS = sorted(path.stem for path in (ROOT / "ablations").glob("*.yaml"))
CPU = Runtime(device="cpu")
UNTIL_PRETRAINED = ("corpus", "vocabulary", "pack", "pretrain")

WHOLE = {"corpus": {"kind": "jsonl", "paths": ["whole.jsonl"]}}  # fills the vocabularies that the levels ask for
FITTING: dict[str, dict[str, Any]] = {
    "batch-size": {"budget.batch_tokens": 192},  # of which the largest level, 32 times as much, is one step
    "tokenizer": WHOLE,
    "vocabulary-size": WHOLE,
}

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
    shipped = find(ROOT).experiments
    for factor in FACTORS:
        base = next(
            (shipped.get(name).base for name in shipped if factor in shipped.get(name).factors), "bert-relative"
        )
        experiment = {"question": "?", "expect": "?", "base": base, "factors": [factor]}
        (folder / f"experiments/alive-{factor}.yaml").write_text(yaml.safe_dump(experiment))
    return find(folder)


def planned(project: Project, factor: str, **overrides: object) -> Plan:
    changes = {**FITTING.get(factor, {}), **{k.replace("__", "."): v for k, v in overrides.items()}}
    return plan(project, f"alive-{factor}", "six-steps", 1, changes)


@pytest.fixture(scope="module")
def fingerprint(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Fingerprint:
    """The losses of a run, step by step. A store for each runtime."""

    @cache
    def store(runtime: Runtime) -> Store:
        made = Store(tmp_path_factory.mktemp("store"))
        made.prepare()
        return made

    def losses(run: PlannedRun, runtime: Runtime = CPU) -> list[float]:
        context = Context(project, store(runtime), runtime, run.arm.run)
        for stage in run.stages:
            if stage.kind in UNTIL_PRETRAINED and not context.store.has(stage.key):
                work = context.store.claim(stage)
                assert work
                with work:
                    said: dict[str, Any] = FUNCTIONS[stage.kind](context, stage, work)
                    work.commit("provenance", **said)
        (pretrain,) = (stage for stage in run.stages if stage.kind == "pretrain")
        return [point["train/loss"] for point in context.store.curve(pretrain.key)]

    return losses


@pytest.mark.parametrize("factor", FACTORS)
def test_every_level_moves_a_number(project: Project, fingerprint: Fingerprint, factor: str) -> None:
    found = {run.arm.label: tuple(fingerprint(run)) for run in planned(project, factor).runs}
    assert len(found) > 1
    assert len(set(found.values())) == len(found), found


@pytest.mark.parametrize("factor", FACTORS)
def test_arms_start_from_the_same_values_where_they_share_a_parameter(project: Project, factor: str) -> None:
    starts = []
    for run in planned(project, factor).runs:
        (spec,) = (stage.spec for stage in run.stages if stage.kind == "pretrain")
        assert isinstance(spec, Pretraining)
        starts.append(dict(build_objective(spec, run.arm.run.tokenizer.vocabulary_size, 0).named_parameters()))
    for start in starts[1:]:
        shared = [name for name in start if name in starts[0] and start[name].shape == starts[0][name].shape]
        assert shared and all(torch.equal(start[name], starts[0][name]) for name in shared)


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
