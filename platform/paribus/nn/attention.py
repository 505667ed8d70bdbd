"""How tokens mix."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paribus.nn.position import Position


class FullAttention(nn.Module):
    """Every token attends to every token of its row. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.

    softmax(q k^T / sqrt(K) + bias) v, with one projection for q, k and v.
    """

    def __init__(self, layer: int, width: int, heads: int, dropout: float, position: Position) -> None:
        super().__init__()
        self.layer, self.heads, self.dropout = layer, heads, dropout
        self._position = [position]  # in a list: it belongs to the encoder, not to each layer
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, padding_BT: Tensor | None) -> Tensor:
        batch, length, width = x_BTD.shape
        qkv_3BHTK = self.qkv(x_BTD).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHTK = self._position[0].rotate(qkv_3BHTK[0], qkv_3BHTK[1])
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BHTK,
            qkv_3BHTK[2],
            attn_mask=self._scores_mask(length, padding_BT, q_BHTK.dtype),
            dropout_p=self.dropout if self.training else 0.0,
        )
        out_BTD: Tensor = self.out(mixed_BHTK.transpose(1, 2).reshape(batch, length, width))
        return out_BTD

    def _scores_mask(self, length: int, padding_BT: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores: the position's bias, and minus infinity at padded keys."""
        bias_HTT = self._position[0].bias(self.layer, length)
        if padding_BT is None:
            return None if bias_HTT is None else bias_HTT.to(dtype)[None]
        if bias_HTT is None:
            return ~padding_BT[:, None, None, :]
        return bias_HTT.to(dtype)[None].masked_fill(padding_BT[:, None, None, :], float("-inf"))
