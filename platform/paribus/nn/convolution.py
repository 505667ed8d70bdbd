"""Neighbours mixed beside the first block."""

import torch.nn.functional as F
from torch import Tensor, nn


class Convolution(nn.Module):
    """norm(x + GELU(dropout(convolution of the embeddings))), x the first block's output; padding counts as zeros.

    DeBERTa v2, reference code (ConvLayer); the extra layer of He et al. 2020, arXiv:2006.03654, table 13.
    """

    def __init__(self, width: int, kernel: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, kernel, padding=kernel // 2)
        self.norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, embedded_BTD: Tensor, x_BTD: Tensor, padding_BT: Tensor | None) -> Tensor:
        if padding_BT is not None:
            embedded_BTD = embedded_BTD.masked_fill(padding_BT[:, :, None], 0.0)
        out_BTD: Tensor = self.norm(x_BTD + F.gelu(self.dropout(self.convolution(embedded_BTD.mT).mT)))
        return out_BTD
