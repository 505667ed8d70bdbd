"""From hidden states to what a loss needs: vocabulary logits, a sentence label, a task's output."""

from collections.abc import Sequence
from typing import Literal

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


Pooling = Literal["cls", "mean", "max"]


def pool(hidden_BTD: Tensor, padding_BT: Tensor | None, how: Pooling) -> Tensor:
    """The state of [CLS], or the mean or maximum over all tokens but padding. (B, D)."""
    if how == "cls":
        return hidden_BTD[:, 0]
    away_BT1 = torch.zeros_like(hidden_BTD[..., :1], dtype=torch.bool) if padding_BT is None else padding_BT[..., None]
    if how == "max":
        return hidden_BTD.masked_fill(away_BT1, float("-inf")).amax(1)
    return hidden_BTD.masked_fill(away_BT1, 0.0).sum(1) / (~away_BT1).sum(1)


class PooledHead(nn.Module):
    """The pooled states through linear, tanh, dropout, linear to `outputs`: sentence objectives, sentence tasks.

    (B, outputs). BERT's pooler and classifier, always with a start of its own (Devlin et al. 2019, reference code).
    """

    def __init__(self, width: int, outputs: int, dropout: float = 0.0, pooling: Pooling = "cls") -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)
        self.pooling = pooling

    def forward(self, hidden_BTD: Tensor, padding_BT: Tensor | None = None) -> Tensor:
        pooled_BD = pool(hidden_BTD, padding_BT, self.pooling)
        logits: Tensor = self.out(self.dropout(torch.tanh(self.dense(pooled_BD))))
        return logits


class TokenHead(nn.Module):
    """Dropout and linear on every token: tags, or the two ends of a span. (B, T, outputs)."""

    def __init__(self, width: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, outputs)

    def forward(self, hidden_BTD: Tensor, padding_BT: Tensor | None = None) -> Tensor:
        logits: Tensor = self.out(self.dropout(hidden_BTD))
        return logits


class LayerReader(nn.Module):
    """One vector a token from the layers of a frozen encoder, (B, T, `width`). spec.finetuning.Frozen says which.

    A mix is gamma x sum_l softmax(w)_l h_l. Peters et al. 2018, arXiv:1802.05365, equation 1.
    """

    def __init__(self, layers: str, number: int, width: int, lstm_width: int) -> None:
        super().__init__()
        self.how, _, which = layers.partition("-")
        one = {"embeddings": (0, 1), "second-to-last": (-2, -1), "last": (-1, None)}
        several = {"last-four": (-4, None), "all": (1, None)}
        first, end = one[layers] if layers in one else several[which]
        self.read = slice(first, end)
        count = len(range(number + 1)[self.read])
        self.weights = nn.Parameter(torch.zeros(count)) if self.how == "mix" else None
        self.gamma = nn.Parameter(torch.ones(())) if self.how == "mix" else None
        self.width = count * width if self.how == "concat" else width
        self.lstm = None
        if lstm_width:
            self.lstm = nn.LSTM(self.width, lstm_width, num_layers=2, bidirectional=True, batch_first=True)
            self.width = 2 * lstm_width

    def start(self) -> None:
        """All layers alike, unscaled."""
        if self.gamma is not None:
            nn.init.ones_(self.gamma)

    def forward(self, layers: Sequence[Tensor], padding_BT: Tensor) -> Tensor:
        asked = layers[self.read]
        if self.how == "concat":
            x_BTD = torch.cat(list(asked), dim=-1)
        elif self.weights is not None and self.gamma is not None:
            stacked_LBTD = torch.stack(list(asked))
            x_BTD = self.gamma * (self.weights.softmax(0)[:, None, None, None] * stacked_LBTD).sum(0)
        else:
            x_BTD = torch.stack(list(asked)).sum(0)
        if self.lstm is None:
            return x_BTD
        lengths_B = (~padding_BT).sum(1).cpu()  # the backward direction begins at the last token, not at padding
        packed = nn.utils.rnn.pack_padded_sequence(x_BTD, lengths_B, batch_first=True, enforce_sorted=False)
        out_BTD, _ = nn.utils.rnn.pad_packed_sequence(
            self.lstm(packed)[0], batch_first=True, total_length=x_BTD.shape[1]
        )
        return out_BTD


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
