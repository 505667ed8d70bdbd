"""What fits together in a Run, in its parts, and in a task."""

from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.evaluate.metrics import METRICS
from paribus.project import Project, Settings
from paribus.spec.load import apply, build
from paribus.spec.run import Run, Runtime
from paribus.spec.task import Task

PAIRS = {"kind": "segment-pairs", "length": 128}
DISENTANGLED = {"kind": "disentangled"}
EMD = {"encoder__head": "emd", "encoder__attention": DISENTANGLED, "encoder__position": "unordered"}


@pytest.fixture
def data(tmp_path: Any) -> dict[str, Any]:
    """The shipped BERT base as plain data."""
    return Project(tmp_path, Settings()).base("bert").model_dump()


def built(data: dict[str, Any], **patch: object) -> Run:
    plain = build(Run, data, "run").model_dump()
    apply(plain, {path.replace("__", "."): value for path, value in patch.items()}, "patch")
    return build(Run, plain, "run")


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"encoder__heads": 5}, "encoder: width must be a multiple of heads, found width 768 and heads 5"),
        (
            {"encoder__position__max_length": 256},
            "packing.length must be at most encoder.position.max_length, found 512 and 256",
        ),
        (
            {"finetuning__length": 1024},
            "finetuning.length must be at most encoder.position.max_length, found 1024 and 512",
        ),
        (
            {"tokenizer": {"kind": "byte-bpe", "vocabulary_size": 260}},
            "tokenizer.vocabulary_size: must be at least 261, 256 bytes and 5 special ids, found 260",
        ),
        ({"budget__train_tokens": 1000}, "train_tokens must be at least batch_tokens, found 1000 and 131072"),
        (
            {"budget__batch_tokens": 511},
            "budget.batch_tokens must be at least packing.length, so that every step has a row, found 511 and 512",
        ),
        (
            {"objective__replacement": {"mask": 0.8, "random": 0.3}},
            "replacement: mask + random must be at most 1, found 0.8 + 0.3",
        ),
        (
            {"encoder__head": "emd"},
            "encoder: head 'emd' needs relative attention, {kind: disentangled} with c2p or p2c, ",
        ),
        (
            {"encoder__head": "emd", "encoder__attention": {**DISENTANGLED, "c2p": False, "p2c": False}},
            "with c2p or p2c, found attention {'kind': 'disentangled'",
        ),
        (
            {"encoder__head": "emd", "encoder__attention": DISENTANGLED},
            "the input takes none: position must be {kind: unordered}, found 'absolute'",
        ),
        (
            {"encoder__convolution": 2},
            "encoder: convolution must be odd and needs layers of at least 2, found convolution 2",
        ),
        ({"encoder__convolution": 3, "encoder__layers": 1}, "found convolution 3 and layers 1"),
        ({**EMD, "encoder__layers": 1}, "encoder: head 'emd' needs layers of at least 2, found 1"),
        (
            {**EMD, "packing__length": 513},
            "packing.length must be at most encoder.head.max_length, found 513 and 512",
        ),
        (
            {"encoder__attention": {**DISENTANGLED, "buckets": 3}},
            "encoder.attention: buckets must be even and at most max_distance, found 3 and 512",
        ),
        (
            {"encoder__attention": {**DISENTANGLED, "buckets": 32, "max_distance": 16}},
            "encoder.attention: buckets must be even and at most max_distance, found 32 and 16",
        ),
        (
            {"packing__isolation": "document", "encoder__convolution": 3},
            "packing.isolation 'document' needs no encoder.convolution, which crosses documents, found 3",
        ),
        (
            {"objective__sentence": "nsp"},
            "objective.sentence 'nsp' needs packing.kind segment-pairs or sentence-pairs with negatives "
            "random-document, found {'kind': 'full-sentences'}",
        ),
        (
            {"objective__sentence": "sop", "packing": {"kind": "doc-sentences", "length": 128}},
            "with negatives swapped, found {'kind': 'doc-sentences'}",
        ),
        (
            {"objective__sentence": "sop", "packing": PAIRS},
            "with negatives swapped, found {'kind': 'segment-pairs', 'negatives': 'random-document'}",
        ),
        (
            {"objective__sentence": "three-way", "packing": PAIRS},
            "with negatives three-way, found {'kind': 'segment-pairs', 'negatives': 'random-document'}",
        ),
        (
            {"objective__sentence": "nsp", "packing": {**PAIRS, "negatives": "none"}},
            "with negatives random-document, found {'kind': 'segment-pairs', 'negatives': 'none'}",
        ),
        (
            {"packing": {**PAIRS, "negatives": "none", "lone": "random-document"}},
            "packing: lone 'random-document' makes negatives, found negatives 'none'",
        ),
        ({"objective__sharing": "gdes"}, "sharing"),
        (
            {"objective": {"kind": "rtd", "masking": "dynamic", "generator": {"kind": "narrow", "width": 0.35}}},
            "objective.generator {'kind': 'narrow', 'width': 0.35} gives an encoder that cannot be: "
            "width must be a multiple of heads, found width 269 and heads 4",
        ),
        (
            {**EMD, "encoder__layers": 2, "objective": {"kind": "rtd", "masking": "dynamic", "generator": "shallow"}},
            "gives an encoder that cannot be: head 'emd' needs layers of at least 2, found 1",
        ),
        ({"objective": {"kind": "rtd", "masking": "dynamic", "sharing": "esp"}}, 'sharing: found "esp", but'),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    data: dict[str, Any], patch: dict[str, object], expected: str
) -> None:
    with pytest.raises(SpecError) as error:
        built(data, **patch)
    assert expected in str(error.value)


def test_settings_that_do_fit_are_taken(data: dict[str, Any]) -> None:
    built(data, budget__batch_tokens=512)
    built(data, encoder__position={"kind": "alibi"}, packing__length=1024)
    built(data, **EMD, finetuning__length=1024)
    built(data, objective__sentence="sop", packing={**PAIRS, "negatives": "swapped"})
    built(data, objective__sentence="three-way", packing={**PAIRS, "negatives": "three-way"})
    built(data, objective__sentence="nsp", packing={**PAIRS, "kind": "sentence-pairs"}, encoder__segments=0)
    for negatives in ("none", "random-document", "swapped", "three-way"):  # pairs without the loss on them
        built(data, packing={**PAIRS, "negatives": negatives})
    assert built(data, budget={"train_tokens": 5000, "batch_tokens": 1024}).budget.steps == 4


def test_the_machine_is_no_part_of_a_run(data: dict[str, Any]) -> None:
    assert not set(Runtime.model_fields) & set(Run.model_fields)
    with pytest.raises(SpecError, match="run: threads: no such key"):
        build(Run, {**data, "threads": 2}, "run")


def task(kind: str, **fields: object) -> Task:
    common = {"name": "t", "source": "s", "data": {"kind": "built", "builder": "order", "train": 8, "dev": 8}}
    return build(Task, {"kind": kind, **common, **fields}, "tasks/t.yaml")


@pytest.mark.parametrize(
    ("kind", "fields", "metric", "accepted"),
    [
        ("sentence", {}, "em", "accuracy, f1, macro-f1, mcc"),
        ("pair", {"labels": ["a", "b"]}, "pearson", "accuracy, f1, macro-f1, mcc, f1a, group-em, record-f1, record-em"),
        ("regression", {}, "accuracy", "pearson, spearman"),
        ("span-qa", {}, "f1", "em, span-f1"),
        ("tagging", {"labels": ["O", "X"]}, "mcc", "accuracy, f1, entity-f1"),
        ("minimal-pair", {}, "mcc", "accuracy, phenomenon-accuracy"),
    ],
)
def test_a_metric_of_another_kind_of_task_is_refused(
    kind: str, fields: dict[str, object], metric: str, accepted: str
) -> None:
    with pytest.raises(SpecError) as error:
        task(kind, metrics=[metric], **fields)
    assert str(error.value) == f"tasks/t.yaml: metrics: '{metric}' is not for kind '{kind}'; accepted: {accepted}"


@pytest.mark.parametrize(
    ("kind", "train", "told"),
    [
        ("minimal-pair", 8, "data.train: found 8, but nothing is trained in kind 'minimal-pair'"),
        ("sentence", None, "data.train: missing; say how many items to train on for kind 'sentence'"),
    ],
)
def test_items_to_train_on_are_for_kinds_that_train(kind: str, train: int | None, told: str) -> None:
    data = {"kind": "built", "builder": "acceptability", "train": train, "dev": 8}
    with pytest.raises(SpecError) as error:
        task(kind, metrics=["accuracy"], data=data)
    assert str(error.value) == f"tasks/t.yaml: {told}"


def test_a_task_accepts_the_metrics_that_are_computed_for_its_kind() -> None:
    assert {kind: set(variant.accepts) for kind, variant in Task.variants().items() if variant.trains} == {
        kind: set(metrics) for kind, metrics in METRICS.items()
    }
