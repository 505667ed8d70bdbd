"""The encoder: what may and what may not change its hidden states, for every variant of its slots."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.nn.build import build_encoder
from paribus.nn.encoder import Encoder
from paribus.nn.init import initialise
from paribus.spec import model as spec

POSITIONS: dict[str, Any] = {
    "absolute": {"kind": "absolute", "max_length": 32},
    "relative-bias": {"kind": "relative-bias", "max_distance": 4},
    "alibi": "alibi",
    "unordered": "unordered",
}
BLOCKS = [("post", "gelu"), ("pre", "gelu"), ("post", "geglu"), ("pre", "geglu")]
Make = Callable[..., spec.Encoder]


def built(encoder: spec.Encoder) -> Encoder:
    """Weights large enough that order and context are seen in the output."""
    module = build_encoder(encoder, 50)
    initialise(module, 0, 0.3)
    return module.eval()


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(("norm", "feed_forward"), BLOCKS)
@torch.no_grad()
def test_padding_and_what_stands_in_it_change_nothing(
    encoder: Make, position: str, norm: str, feed_forward: str
) -> None:
    made = encoder(position=POSITIONS[position], norm=norm, feed_forward={"kind": feed_forward, "width": 32})
    module = built(made)
    tokens = torch.randint(5, 50, (2, 9))
    alone = module(tokens)
    for extra in (1, 7):
        padded = torch.cat([tokens, torch.randint(0, 50, (2, extra))], dim=1)
        padding = torch.arange(9 + extra)[None, :].expand(2, -1) >= 9
        assert close(module(padded, None, padding)[:, :9], alone)


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_only_without_positions_does_order_not_matter(encoder: Make, position: str) -> None:
    module = built(encoder(position=POSITIONS[position]))
    tokens, order = torch.randint(5, 50, (1, 12)), torch.randperm(12)
    assert close(module(tokens[:, order]), module(tokens)[:, order]) == (position == "unordered")


@pytest.mark.parametrize("position", POSITIONS)
@torch.no_grad()
def test_only_absolute_positions_see_where_a_row_begins(encoder: Make, position: str) -> None:
    module = built(encoder(position=POSITIONS[position]))
    tokens = torch.randint(5, 50, (1, 9))
    moved = torch.cat([torch.zeros(1, 3, dtype=torch.long), tokens], dim=1)
    padding = torch.arange(12)[None, :] < 3
    assert close(module(moved, None, padding)[:, 3:], module(tokens)) == (position != "absolute")


@torch.no_grad()
def test_rows_of_a_batch_do_not_see_each_other(encoder: Make) -> None:
    module = built(encoder())
    tokens = torch.randint(5, 50, (3, 8))
    assert close(module(tokens)[1], module(tokens[1:2])[0])


@torch.no_grad()
def test_segments_are_told_apart_with_two_and_left_alone_with_one_or_none(encoder: Make) -> None:
    tokens = torch.randint(5, 50, (1, 8))
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]])
    for count in (0, 1, 2):
        module = built(encoder(segments=count))
        assert close(module(tokens, segments), module(tokens)) == (count < 2)
        assert close(module(tokens, torch.zeros_like(segments)), module(tokens))


def test_dropout_acts_only_while_training(encoder: Make) -> None:
    module = built(encoder(dropout=0.2))
    tokens = torch.randint(5, 50, (1, 8))
    assert torch.equal(module(tokens), module(tokens))
    module.train()
    assert not torch.equal(module(tokens), module(tokens))


@torch.no_grad()
def test_a_post_norm_encoder_ends_normalised_and_a_pre_norm_one_too(encoder: Make) -> None:
    for norm in ("post", "pre"):
        hidden = built(encoder(norm=norm))(torch.randint(5, 50, (2, 8)))
        assert close(hidden.mean(-1), torch.zeros(2, 8)) and close(hidden.var(-1, correction=0), torch.ones(2, 8))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_layers_of_an_encoder_are_those_of_its_shallower_ones(
    encoder: Callable[..., spec.Encoder], norm: str
) -> None:
    tokens = torch.arange(5, 17).view(2, 6)
    deep = build_encoder(encoder(layers=3, norm=norm), 32).eval()
    initialise(deep, 0, 0.2)
    found = deep.states(tokens).layers
    assert len(found) == 4 and torch.equal(found[-1], deep(tokens))
    shallow = build_encoder(encoder(layers=2, norm=norm), 32).eval()
    shallow.load_state_dict(deep.state_dict(), strict=False)
    last = shallow.states(tokens).layers[-1]
    assert torch.allclose(shallow.last_norm(found[2]), last, atol=1e-6)
