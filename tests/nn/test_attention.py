"""Fused attention answers to slow attention."""

import math

import pytest
import torch
from torch import Tensor

from paribus.nn.attention import FullAttention
from paribus.nn.position import AlibiPosition, Position, RelativeBias, Unordered


def slowly(attention: FullAttention, x: Tensor, padding: Tensor | None, position: Position) -> Tensor:
    """Every score by its own; (B, T, D)."""
    batch, length, width = x.shape
    heads = attention.heads
    per_head = width // heads
    q, k, v = attention.qkv(x).split(width, dim=-1)
    bias = position.bias(attention.layer, length)
    out = torch.zeros_like(x)
    for row in range(batch):
        for head in range(heads):
            part = slice(head * per_head, (head + 1) * per_head)
            for query in range(length):
                scores = torch.full((length,), -math.inf)
                for key in range(length):
                    if padding is None or not (padding[row, key] if padding.ndim == 2 else padding[row, query, key]):
                        scores[key] = q[row, query, part] @ k[row, key, part] / math.sqrt(per_head)
                        scores[key] += 0 if bias is None else bias[head, query, key]
                out[row, query, part] = scores.softmax(0) @ v[row, :, part]
    return attention.out(out)


PADDING = {
    "nothing": None,
    "keys": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    "keys for each query": torch.rand(2, 5, 5, generator=torch.Generator().manual_seed(0)).gt(0.6)
    & ~torch.eye(5).bool(),
}


@pytest.mark.parametrize("unseen", list(PADDING))
@pytest.mark.parametrize(
    "position", [Unordered(), AlibiPosition(2), RelativeBias(3, 2, 2, False)], ids=lambda p: type(p).__name__
)
@torch.no_grad()
def test_fused_attention_is_slow_attention(position: Position, unseen: str) -> None:
    torch.manual_seed(0)
    for parameter in position.parameters():
        torch.nn.init.normal_(parameter)
    attention = FullAttention(layer=2, width=8, heads=2, dropout=0.0, position=position).eval()
    x = torch.randn(2, 5, 8)
    padding = PADDING[unseen]
    torch.testing.assert_close(attention(x, padding), slowly(attention, x, padding, position), rtol=0, atol=1e-5)


def test_attention_drops_only_while_training() -> None:
    torch.manual_seed(0)
    attention = FullAttention(0, 8, 2, 0.5, Unordered())
    x = torch.randn(1, 6, 8)
    assert not torch.equal(attention(x, None), attention(x, None))
    attention.eval()
    assert torch.equal(attention(x, None), attention(x, None))
