"""Where the norm sits, against the formulas."""

import torch
from torch import Tensor, nn

from paribus.nn.block import Block, PostNormBlock, PreNormBlock


class Mix(nn.Linear):
    """Stands for attention: a linear map of each token, whatever is padding, less one of its source."""

    def forward(self, x_BTD: Tensor, padding_BT: Tensor | None = None, source_BTD: Tensor | None = None) -> Tensor:
        return super().forward(x_BTD) - (0 if source_BTD is None else super().forward(source_BTD).sin())


def made(kind: type[Block]) -> Block:
    torch.manual_seed(0)
    block = kind(Mix(8, 8), nn.Linear(8, 8), width=8, eps=1e-5, dropout=0.0)
    for norm in (block.attention_norm, block.feed_forward_norm):
        nn.init.normal_(norm.weight)
    return block


@torch.no_grad()
def test_post_norm_is_the_norm_of_the_sum_twice() -> None:
    block, x = made(PostNormBlock), torch.randn(2, 3, 8)
    middle = block.attention_norm(x + block.attention(x))
    torch.testing.assert_close(block(x, None), block.feed_forward_norm(middle + block.feed_forward(middle)))


@torch.no_grad()
def test_pre_norm_adds_the_branch_of_the_norm_twice() -> None:
    block, x = made(PreNormBlock), torch.randn(2, 3, 8)
    middle = x + block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x, None), middle + block.feed_forward(block.feed_forward_norm(middle)))


@torch.no_grad()
def test_keys_and_values_may_come_from_another_source_and_what_passes_by_does_not() -> None:
    for kind in (PostNormBlock, PreNormBlock):
        block, x, source = made(kind), torch.randn(2, 3, 8), torch.randn(2, 3, 8)
        norm, last = block.attention_norm, block.feed_forward_norm
        if kind is PostNormBlock:
            middle = norm(x + block.attention(x, None, source))
            expected = last(middle + block.feed_forward(middle))
        else:
            middle = x + block.attention(norm(x), None, norm(source))
            expected = middle + block.feed_forward(last(middle))
        torch.testing.assert_close(block(x, None, source), expected)


def test_dropout_acts_on_both_branches_and_not_on_what_passes_by() -> None:
    for kind in (PostNormBlock, PreNormBlock):
        block, x = made(kind), torch.randn(1, 3, 8)
        block.dropout.p = 1.0
        expected = x if kind is PreNormBlock else block.feed_forward_norm(block.attention_norm(x))
        torch.testing.assert_close(block(x, None), expected)
