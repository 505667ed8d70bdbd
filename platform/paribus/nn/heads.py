"""From hidden states to what a loss needs: vocabulary logits, a sentence label, a task's output."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MlmHead(nn.Module):
    """Linear, GELU, norm, then the transposed token embedding and a free bias. Devlin et al. 2019, reference code.

    `hidden_MD` are the hidden states at the predicted places; returns logits (M, V).
    """

    def __init__(self, embedding: nn.Embedding, width: int, eps: float) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list: tied, it belongs to the encoder
        self.dense = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps)
        self.bias = nn.Parameter(torch.empty(embedding.num_embeddings))

    def forward(self, hidden_MD: Tensor) -> Tensor:
        return F.linear(self.norm(F.gelu(self.dense(hidden_MD))), self._embedding[0].weight, self.bias)


class PooledHead(nn.Module):
    """[CLS] through linear, tanh, dropout, linear to `outputs`: sentence objectives, sentence tasks. (B, outputs)."""

    def __init__(self, width: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        logits: Tensor = self.out(self.dropout(torch.tanh(self.dense(hidden_BTD[:, 0]))))
        return logits


class TokenHead(nn.Module):
    """Dropout and linear on every token: tags, or the two ends of a span. (B, T, outputs)."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        logits: Tensor = self.out(self.dropout(hidden_BTD))
        return logits
