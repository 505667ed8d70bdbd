"""From hidden states to what a loss needs: vocabulary logits, a sentence label, a task's output."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paribus.nn.encoder import States
from paribus.nn.position import AbsolutePosition


class MlmHead(nn.Module):
    """Linear, GELU, norm, then the transposed token embedding and a free bias. Devlin et al. 2019, reference code.

    `places_M` are the predicted places, as indices in the flattened (B*T); returns logits (M, V). The linear layer
    ends at the width of the embedding (ELECTRA's and ALBERT's code).
    """

    def __init__(self, embedding: nn.Embedding, width: int, eps: float) -> None:
        super().__init__()
        self._embedding = [embedding]  # in a list: tied, it belongs to the encoder
        self.dense = nn.Linear(width, embedding.embedding_dim)
        self.norm = nn.LayerNorm(embedding.embedding_dim, eps)
        self.bias = nn.Parameter(torch.empty(embedding.num_embeddings))

    def forward(self, states: States, places_M: Tensor) -> Tensor:
        hidden_MD = self.decode(states).flatten(0, 1)[places_M]
        return F.linear(self.norm(F.gelu(self.dense(hidden_MD))), self._embedding[0].weight, self.bias)

    def decode(self, states: States) -> Tensor:
        """The hidden states that are predicted from, (B, T, D)."""
        return states.last_BTD


class EnhancedMaskDecoder(MlmHead):
    """The last block again, `steps` times, on queries that know their absolute place; keys and values do not.

    He et al. 2020, arXiv:2006.03654, section 3.2; reference code, masked_language_model.py. The ordinary output of the
    last block plays no part, so the block is trained through the decoder alone.
    """

    def __init__(self, embedding: nn.Embedding, width: int, eps: float, steps: int, max_length: int) -> None:
        super().__init__(embedding, width, eps)
        self.position = AbsolutePosition(max_length, width)
        self.steps = steps

    def decode(self, states: States) -> Tensor:
        x_BTD = self.position.embed(states.before_BTD)
        for _ in range(self.steps):
            x_BTD = states.last_block(x_BTD, states.padding_BT, states.before_BTD)
        hidden_BTD: Tensor = states.last_norm(x_BTD)
        return hidden_BTD


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


class LinearRtdHead(nn.Module):
    """Whether each token was replaced, a logit a token (B, T): w h. Clark et al. 2020, arXiv:2003.10555, section 2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, 1)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        logits_BT: Tensor = self.out(hidden_BTD).squeeze(-1)
        return logits_BT


class ElectraRtdHead(LinearRtdHead):
    """Linear, GELU, linear; no norm and no dropout. Clark et al. 2020, reference code."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.dense = nn.Linear(width, width)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return super().forward(F.gelu(self.dense(hidden_BTD)))


class DebertaRtdHead(ElectraRtdHead):
    """The same on norm(h + h of [CLS]). He et al. 2021, arXiv:2111.09543, reference code."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(width, eps)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return super().forward(self.norm(hidden_BTD + hidden_BTD[:, :1]))
