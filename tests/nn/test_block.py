"""Where the norm sits, against the formulas."""

import torch
from torch import Tensor, nn

from paribus.nn.block import Block, PostNormBlock, PreNormBlock


class Mix(nn.Linear):
    """Stands for attention: one linear map of each token, whatever is padding."""

    def forward(self, x_BTD: Tensor, padding_BT: Tensor | None = None) -> Tensor:
        return super().forward(x_BTD)


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


def test_dropout_acts_on_both_branches_and_not_on_what_passes_by() -> None:
    for kind in (PostNormBlock, PreNormBlock):
        block, x = made(kind), torch.randn(1, 3, 8)
        block.dropout.p = 1.0
        expected = x if kind is PreNormBlock else block.feed_forward_norm(block.attention_norm(x))
        torch.testing.assert_close(block(x, None), expected)
