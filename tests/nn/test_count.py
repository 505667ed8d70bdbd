"""Parameters and FLOPs against published counts and sums by hand."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from paribus.nn.build import build_encoder, build_head
from paribus.nn.count import cost
from paribus.spec import model as spec
from paribus.spec.load import build

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
