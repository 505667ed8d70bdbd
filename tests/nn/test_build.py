"""Spec to module: every variant has a maker, names are stable, and what is tied is tied."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from paribus.nn import build
from paribus.nn.build import build_encoder, build_head
from paribus.nn.feed_forward import GatedGeluFeedForward
from paribus.nn.heads import PooledHead, TokenHead
from paribus.nn.init import initialise
from paribus.spec import model as spec
from paribus.spec.base import Slot

Make = Callable[..., spec.Encoder]


@pytest.mark.parametrize(
    ("slot", "makers"),
    [
        (spec.Position, build.POSITION),
        (spec.Attention, build.ATTENTION),
        (spec.FeedForward, build.FEED_FORWARD),
        (spec.Norm, build.BLOCK),
        (spec.Head, build.HEAD),
    ],
)
def test_every_shipped_variant_of_a_slot_can_be_built(slot: type[Slot], makers: dict[type, object]) -> None:
    shipped = {variant for variant in slot.variants().values() if variant.__module__ == spec.__name__}
    assert set(makers) == shipped


def test_the_head_shares_the_token_embedding_and_its_gradient_is_that_of_both_uses(encoder: Make) -> None:
    module = build_encoder(encoder(), 50)
    head = build_head(encoder(), module)
    initialise(torch.nn.ModuleList([module, head]), 0, 0.1)
    assert not any("embedding" in name or "tokens" in name for name, _ in head.named_parameters())
    tokens = torch.randint(5, 50, (2, 6))

    def gradient(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        head._embedding[0].weight.grad = None
        logits = F.linear(head.norm(F.gelu(head.dense(hidden))), weight, head.bias)
        F.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        found = head._embedding[0].weight.grad
        return torch.zeros(50, 16) if found is None else found.clone()

    weight = module.tokens.weight
    as_input = gradient(module(tokens), weight.detach())
    as_output = gradient(module(tokens).detach(), weight)
    weight.grad = None
    F.cross_entropy(head(module.states(tokens), torch.arange(12)), tokens.flatten()).backward()
    torch.testing.assert_close(weight.grad, as_input + as_output)


@torch.no_grad()
def test_a_pooled_head_reads_the_first_place_and_a_token_head_each_its_own() -> None:
    hidden = torch.randn(2, 5, 8)
    other = hidden.clone()
    other[:, 1:] = 0
    pooled, tokens = PooledHead(8, 3), TokenHead(8, 3, 0.0)
    assert torch.equal(pooled(hidden), pooled(other)) and pooled(hidden).shape == (2, 3)
    assert torch.equal(tokens(hidden)[:, 0], tokens(other)[:, 0]) and tokens(hidden).shape == (2, 5, 3)


@torch.no_grad()
def test_a_gated_feed_forward_is_the_gelu_of_one_projection_times_the_other() -> None:
    module, x = GatedGeluFeedForward(4, 6), torch.randn(2, 3, 4)
    gate, value = module.up.weight.split(6)
    gate_bias, value_bias = module.up.bias.split(6)
    expected = module.down(F.gelu(x @ gate.mT + gate_bias) * (x @ value.mT + value_bias))
    torch.testing.assert_close(module(x), expected)
