"""Generator and discriminator: sizes, heads, sampling."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

from paribus.data.masking import sampling_draws
from paribus.nn.build import RTD_HEAD, build_encoder, build_rtd
from paribus.nn.count import cost
from paribus.nn.init import initialise
from paribus.nn.rtd import corrupt, sample
from paribus.project import find
from paribus.spec import model as spec
from paribus.spec.data import Dynamic
from paribus.spec.load import build
from paribus.spec.objective import Narrow, Rtd, Shallow

Make = Callable[..., spec.Encoder]
SMALL = {
    "layers": 12,
    "width": 256,
    "heads": 4,
    "embedding_width": 128,
    "feed_forward": {"kind": "gelu", "width": 1024},
}
BASE = {"layers": 12, "width": 768, "heads": 12, "feed_forward": {"kind": "gelu", "width": 3072}}
LARGE = {"layers": 24, "width": 1024, "heads": 16, "feed_forward": {"kind": "gelu", "width": 4096}}


def electra(sizes: dict[str, object]) -> spec.Encoder:
    slots = {"position": {"kind": "absolute", "max_length": 512}, "attention": "full", "norm": "post"}
    return build(spec.Encoder, {**slots, **sizes}, "encoder")


def rtd(**fields: object) -> Rtd:
    return build(Rtd, {"masking": "dynamic", **fields}, "objective")


def count(*modules: nn.Module) -> int:
    return sum({p: p.numel() for m in modules for p in m.parameters()}.values())


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_electra_small_has_as_many_parameters_as_published() -> None:
    with torch.device("meta"):
        both = build_rtd(electra(SMALL), rtd(), 30522)
    assert count(both.encoder) == 13_483_008
    assert count(both.encoder, both.head) == 13_549_057


def test_deberta_v3_has_as_many_parameters_as_published_and_its_generator_alone_the_mask_decoder(root: Path) -> None:
    run = find(root).base("deberta-v3")
    assert isinstance(run.objective, Rtd)
    with torch.device("meta"):
        both = build_rtd(run.encoder, run.objective, 128_100)
    assert count(both.encoder) == 183_831_552
    assert count(both.generator) == 183_831_552 - 6 * 7_087_872
    assert count(both.generator_head) == 768**2 + 768 + 2 * 768 + 128_100 + 512 * 768
    assert count(both.head) == 2 * 768 + 768**2 + 768 + 768 + 1
    without = cost(run.encoder, 128_100, 512, 0.15, run.objective.model_copy(update={"sharing": "es"}))
    disentangled = cost(run.encoder, 128_100, 512, 0.15, run.objective)
    assert disentangled.parameters - without.parameters == disentangled.embedding - without.embedding == 128_100 * 768


def test_electra_base_and_its_generator_counted_by_hand() -> None:
    layer = lambda h, i: 4 * (h * h + h) + 2 * h * i + i + h + 4 * h  # noqa: E731
    tables = (30522 + 512 + 2) * 768 + 2 * 768
    generator = 12 * layer(256, 1024) + 768 * 256 + 256
    generator_head = 256 * 768 + 768 + 2 * 768 + 30522
    discriminator, head = 12 * layer(768, 3072), 768 * 768 + 768 + 768 + 1
    once = generator + generator_head + discriminator + head
    for sharing, shared, twice in (
        ("es", "all", 0),
        ("es", "tokens", tables - 30522 * 768),
        ("nes", "all", tables),
        ("gdes", "all", tables),
    ):
        objective = rtd(sharing=sharing, shared=shared)
        found = cost(electra(BASE), 30522, 512, 0.15, objective)
        assert found.parameters == once + tables + twice
        assert found.embedding == (tables + twice) - 2 * 768 * (1 + (twice > 0))


def test_flops_are_those_of_the_matrix_products_of_both(encoder: Make) -> None:
    length, vocabulary, rate, width = 32, 100, 0.25, 16
    layer = 2 * 4 * width**2 + 2 * 2 * width * 32 + 2 * 2 * length * width
    generator = 1 * layer + rate * (2 * width**2 + 2 * width * vocabulary)
    discriminator = 2 * layer + 2 * width**2 + 2 * width
    found = cost(encoder(), vocabulary, length, rate, rtd(generator="shallow"))
    assert found.train_flops_a_token == pytest.approx(3 * (generator + discriminator))


@pytest.mark.parametrize(
    ("sizes", "generator", "layers", "width", "heads", "inner"),
    [
        (BASE, Narrow(width=0.3333333333), 12, 256, 4, 1024),
        (SMALL, Narrow(width=0.25), 12, 64, 1, 256),
        (LARGE, Narrow(width=0.25), 24, 256, 4, 1024),
        (BASE, Shallow(), 6, 768, 12, 3072),
        (LARGE, Shallow(), 12, 1024, 16, 4096),
        ({**BASE, "layers": 6}, Shallow(), 3, 768, 12, 3072),
        ({**BASE, "layers": 1}, Shallow(), 1, 768, 12, 3072),
    ],
)
def test_a_generator_has_the_sizes_of_the_paper(
    sizes: dict[str, object], generator: Narrow | Shallow, layers: int, width: int, heads: int, inner: int
) -> None:
    made = generator.encoder(electra(sizes))
    assert (made.layers, made.width, made.heads, made.feed_forward.width) == (layers, width, heads, inner)
    assert made.table_width == electra(sizes).table_width


@given(st.floats(0.01, 1), st.sampled_from([(16, 2), (64, 4), (96, 6)]))
def test_a_narrow_generator_has_a_width_its_heads_divide_or_is_refused(share: float, sizes: tuple[int, int]) -> None:
    width, heads = sizes
    whole = electra({"layers": 1, "width": width, "heads": heads, "feed_forward": {"kind": "gelu", "width": 4 * width}})
    try:
        made = Narrow(width=share).encoder(whole)
    except ValueError as error:
        assert "objective.generator {'kind': 'narrow'" in str(error) and "width" in str(error)
    else:
        assert made.width % made.heads == 0 and abs(made.width - share * width) <= 0.5
        build(spec.Encoder, made.model_dump(), "encoder")


def test_a_narrow_table_is_projected_after_its_norm(encoder: Make) -> None:
    module = build_encoder(encoder(embedding_width=6, layers=1), 50)
    initialise(module, 0, 0.5)
    assert (module.tokens.weight.shape, module.segments.weight.shape) == ((50, 6), (2, 6))
    tokens = torch.arange(5)[None]
    tables = module.tokens.weight[:5] + module.segments.weight[0] + module.position.places[:5]
    x = F.layer_norm(tables, (6,), eps=1e-12) @ module.project.weight.T + module.project.bias
    torch.testing.assert_close(module(tokens), module.blocks[0](x[None], None))
    assert build_encoder(encoder(embedding_width=16), 50).project is None


# --- heads -----------------------------------------------------------------------------------------------------------


def test_heads_are_the_formulas_of_their_sources(encoder: Make) -> None:
    h = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    for name, first in (
        ("linear", None),
        ("electra", h),
        ("deberta", F.layer_norm(h + h[:, :1], (16,), eps=1e-12)),
    ):
        head = RTD_HEAD[name](encoder())
        initialise(head, 0, 0.5)
        x = h if first is None else F.gelu(first @ head.dense.weight.T + head.dense.bias)
        torch.testing.assert_close(head(h), (x @ head.out.weight.T + head.out.bias)[..., 0])


# --- sampling --------------------------------------------------------------------------------------------------------


def test_draws_are_uniform_and_samples_follow_the_softmax() -> None:
    draws = torch.from_numpy(sampling_draws(np.arange(1000), np.arange(1000) % 7, 100, 0)).flatten()
    assert len(draws) == 100_000
    logits = torch.tensor([0.0, 1.0, -2.0, 3.0, float("-inf"), 0.5])
    found = torch.bincount(sample(logits.expand(len(draws), -1), draws), minlength=6) / len(draws)
    assert (found - logits.softmax(0)).abs().max() < 0.01
    assert found[4] == 0


def test_a_draw_is_a_function_of_seed_row_visit_and_place_alone() -> None:
    whole = sampling_draws(np.array([3, 9, 4]), np.array([0, 5, 1]), 16, 1)
    assert np.array_equal(whole[1:2, :8], sampling_draws(np.array([9]), np.array([5]), 8, 1))
    for rows, visits, seed in (([8], [5], 1), ([9], [4], 1), ([9], [5], 2)):
        assert not np.array_equal(whole[1:2], sampling_draws(np.array(rows), np.array(visits), 16, seed))


@given(
    arrays.arrays(np.float32, (4, 9), elements=st.floats(-30, 30, width=32)),
    arrays.arrays(np.float32, 4, elements=st.integers(0, 2**24 - 1).map(lambda n: n * 2.0**-24)),
)
def test_a_sample_is_where_a_walk_over_the_probabilities_passes_the_draw(logits: np.ndarray, draws: np.ndarray) -> None:
    found = sample(torch.from_numpy(logits), torch.from_numpy(draws)).tolist()
    for row, draw, token in zip(torch.from_numpy(logits).double().softmax(-1).tolist(), draws, found, strict=True):
        before = sum(row[:token])
        assert before - 1e-6 <= draw <= before + row[token] + 1e-6


def test_samples_have_no_gradient() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    assert not sample(logits, torch.tensor([0.1, 0.9])).is_floating_point()


def test_samples_stand_at_the_masked_places_only() -> None:
    tokens = torch.arange(6).view(2, 3)
    found = corrupt(tokens, torch.tensor([1, 5]), torch.tensor([70, 80]))
    assert found.tolist() == [[0, 70, 2], [3, 4, 80]]
    assert tokens.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("generator", [Shallow(depth=1.0), Narrow(width=1.0)])
def test_a_generator_as_large_as_the_discriminator_is_built_alike(encoder: Make, generator: Shallow | Narrow) -> None:
    both = build_rtd(encoder(), Rtd(masking=Dynamic(), generator=generator), 50)
    shapes = [[(name, p.shape) for name, p in m.named_parameters()] for m in (both.generator, both.encoder)]
    assert shapes[0] == shapes[1]
