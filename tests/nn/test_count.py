"""Parameters and FLOPs against published counts and sums by hand."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.nn.build import build_encoder, build_head
from paribus.nn.count import cost
from paribus.nn.heads import PooledHead
from paribus.project import find
from paribus.spec import model as spec
from paribus.spec.load import apply, build
from paribus.spec.objective import Rtd
from paribus.spec.run import Run

Make = Callable[..., spec.Encoder]


def bert(layers: int, width: int, heads: int, **changes: object) -> spec.Encoder:
    sizes = {"layers": layers, "width": width, "heads": heads, "feed_forward": {"kind": "gelu", "width": 4 * width}}
    slots = {"position": {"kind": "absolute", "max_length": 512}, "attention": "full", "norm": "post", **changes}
    return build(spec.Encoder, {**sizes, **slots}, "encoder")


def trunk(encoder: spec.Encoder, vocabulary: int) -> int:
    import torch

    with torch.device("meta"):
        return sum(p.numel() for p in build_encoder(encoder, vocabulary).parameters())


def test_the_trunk_of_bert_has_as_many_parameters_as_published() -> None:
    # The published counts include a pooler, a linear layer of width x width.
    assert trunk(bert(12, 768, 12), 30522) == 109_482_240 - (768**2 + 768) == 108_891_648
    assert trunk(bert(24, 1024, 16), 30522) == 335_141_888 - (1024**2 + 1024)


def test_bert_with_its_head_has_as_many_parameters_as_published() -> None:
    found = cost(bert(12, 768, 12), 30522, 512, 0.15)
    assert found.parameters == 108_891_648 + 622_650 == 109_514_298
    assert found.embedding == (30522 + 512 + 2) * 768


def test_roberta_has_as_many_parameters_as_published() -> None:
    # 124,697,433 with its head, of which two rows of its table of 514 places are never used.
    roberta = bert(12, 768, 12, segments=1)
    assert cost(roberta, 50265, 512, 0.15).parameters == 124_697_433 - 2 * 768


# --- methods as published, from specs on the meta device: no fudge, what differs is in the sum ---


def deberta_v3(layers: int, width: int, heads: int) -> spec.Encoder:
    attention = {"kind": "disentangled", "buckets": 256, "share_projections": True, "table_norm": True}
    return bert(layers, width, heads, position="unordered", segments=0, attention=attention)


def shipped(root: Path, base: str, scale: str) -> spec.Encoder:
    """The encoder of a shipped base at a scale."""
    project = find(root)
    run = project.base(base).model_dump()
    for patch in (project.scales.get(scale).set, project.scales.get(scale).bases.get(base, {})):
        apply(run, patch, scale)
    return build(Run, run, base).encoder


def pooler(width: int) -> int:
    """What published counts of trunks have and ours have not: a linear layer of width x width on [CLS]."""
    return width**2 + width


@pytest.mark.parametrize(
    ("base", "scale", "vocabulary", "published"),
    [
        ("bert", "base", 30522, 109_482_240 - pooler(768)),
        ("bert", "large", 30522, 335_141_888 - pooler(1024)),
        ("roberta", "base", 50265, 124_645_632 - pooler(768) - 2 * 768),  # two rows of 514 places are never used
        ("electra", "base", 30522, 109_482_240 - pooler(768)),  # BERT's trunk
        ("electra", "large", 30522, 335_141_888 - pooler(1024)),
        ("deberta-v3", "base", 128100, 183_831_552),
        ("deberta-v3", "large", 128100, 434_012_160),
    ],
)
def test_shipped_bases_have_as_many_parameters_as_published(
    root: Path, base: str, scale: str, vocabulary: int, published: int
) -> None:
    assert trunk(shipped(root, base, scale), vocabulary) == published


def test_bert_with_both_of_its_heads_has_as_many_parameters_as_published() -> None:
    # The head of next-sentence prediction is the pooler and a linear layer to two.
    found = cost(bert(12, 768, 12), 30522, 512, 0.15).parameters
    assert found + sum(p.numel() for p in PooledHead(768, 2).parameters()) == 110_106_428


def test_electra_small_has_as_many_parameters_as_published() -> None:
    assert trunk(bert(12, 256, 4, embedding_width=128), 30522) == 13_483_008


@pytest.mark.parametrize(
    ("layers", "width", "heads", "published"),
    [(12, 384, 6, 70_682_112), (6, 768, 12, 141_304_320), (12, 768, 12, 183_831_552), (24, 1024, 16, 434_012_160)],
)
def test_deberta_v3_has_as_many_parameters_as_published(layers: int, width: int, heads: int, published: int) -> None:
    assert trunk(deberta_v3(layers, width, heads), 128100) == published


def test_what_deberta_adds_to_a_stack_of_berts_layers(root: Path) -> None:
    layers, width, vocabulary = 12, 768, 128100
    stack = trunk(bert(layers, width, 12, position="unordered", segments=0), vocabulary)
    table, norm = 2 * 256 * width, 2 * width
    assert trunk(deberta_v3(layers, width, 12), vocabulary) == stack + table + norm
    v3 = shipped(root, "deberta-v3", "base")
    apart = v3.model_copy(update={"attention": v3.attention.model_copy(update={"share_projections": False})})
    projections = 2 * layers * (width**2 + width)
    assert trunk(apart, vocabulary) == stack + table + norm + projections
    for term in ("c2p", "p2c"):
        without = apart.model_copy(update={"attention": apart.attention.model_copy(update={term: False})})
        assert trunk(without, vocabulary) == stack + table + norm + projections // 2
    # v1: k of 512 without buckets, no norm on the table, no bias of keys of contents and of positions.
    v1 = shipped(root, "deberta", "base")
    keys = 2 * layers * width
    assert trunk(v1, vocabulary) == stack + 2 * 512 * width + projections - keys
    # The mask decoder has a table of places beside BERT's head.
    plain = v1.model_copy(update={"head": spec.BertHead()})
    assert cost(v1, vocabulary, 512, 0.15).parameters == cost(plain, vocabulary, 512, 0.15).parameters + 512 * width


@pytest.mark.parametrize(("sharing", "tables"), [("es", 1), ("nes", 2), ("gdes", 2)])
def test_embedding_sharing_costs_a_token_table_in_training(root: Path, sharing: str, tables: int) -> None:
    run = find(root).base("deberta-v3")
    rtd = run.objective
    assert isinstance(rtd, Rtd)
    generator = rtd.generator.encoder(run.encoder)
    alone = cost(generator, 128100, 512, 0.15).parameters + trunk(run.encoder, 128100) - 128100 * 768
    head = 2 * 768 + pooler(768) + 768 + 1
    found = cost(run.encoder, 128100, 512, 0.15, rtd.model_copy(update={"sharing": sharing})).parameters
    assert found == alone + head + (tables - 1) * 128100 * 768


@pytest.mark.parametrize("position", ["absolute", "relative-bias", "alibi", "unordered"])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("feed_forward", ["gelu", "geglu"])
def test_the_count_is_that_of_the_modules_that_are_built(
    encoder: Make, position: str, norm: str, feed_forward: str
) -> None:
    made = encoder(position=position, norm=norm, feed_forward={"kind": feed_forward, "width": 24})
    module = build_encoder(made, 100)
    parameters = {id(p): p.numel() for m in (module, build_head(made, module)) for p in m.parameters()}
    assert cost(made, 100, 16, 0.15).parameters == sum(parameters.values())


def test_flops_are_those_of_the_matrix_products(encoder: Make) -> None:
    layers, width, inner, length, vocabulary, rate = 2, 16, 32, 32, 100, 0.25
    a_token = layers * (2 * 4 * width**2 + 2 * 2 * width * inner + 2 * 2 * length * width)
    a_prediction = 2 * width**2 + 2 * width * vocabulary
    expected = 3 * (a_token + rate * a_prediction)
    assert cost(encoder(), vocabulary, length, rate).train_flops_a_token == pytest.approx(expected)


def test_the_program_answers_in_json(encoder: Make) -> None:
    asked = [{"encoder": encoder().model_dump(), "vocabulary": 100, "length": 32, "rate": 0.25}]
    command = [sys.executable, "-m", "paribus.nn.count"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    (found,) = json.loads(done.stdout)
    assert found["parameters"] == cost(encoder(), 100, 32, 0.25).parameters
