"""How tokens mix."""

import importlib.util
import sys
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paribus.nn.compiler import constant
from paribus.nn.position import Position, by_pair
from paribus.nn.unpadded import Padding, Unpadded, flashes


class QueryKeyValue(nn.Linear):
    """The projections of queries, keys and values as one; `key_bias` false: the keys have no bias."""

    def __init__(self, width: int, key_bias: bool = True) -> None:
        super().__init__(width, 3 * width, bias=key_bias)
        self.query_value_bias = None if key_bias else nn.Parameter(torch.empty(2 * width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.linear(x_BTD, self.weight, self._bias())

    def part(self, number: int, x: Tensor) -> Tensor:
        """The query (0), key (1) or value (2) projection alone."""
        return F.linear(x, self.weight.chunk(3)[number], self._bias().chunk(3)[number])

    def _bias(self) -> Tensor:
        if self.query_value_bias is None:
            return self.bias
        query, value = self.query_value_bias.chunk(2)
        return torch.cat([query, torch.zeros_like(query), value])


class FullAttention(nn.Module):
    """Every token attends to every token of its row. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.

    softmax(q k^T / sqrt(K) + bias) v, with one projection for q, k and v; k and v of `source_BTD` where that is given.

    Of rows without padding, `x_BTD` (1, N, D), it takes each as long as it is where a kernel does; else it pads them.
    """

    def __init__(
        self, layer: int, width: int, heads: int, dropout: float, position: Position, key_bias: bool = True
    ) -> None:
        super().__init__()
        self.layer, self.heads, self.dropout = layer, heads, dropout
        self.scale = (width // heads) ** -0.5
        self._position = [position]  # in a list: it belongs to the encoder, not to each layer
        self.qkv = QueryKeyValue(width, key_bias)
        self.out = nn.Linear(width, width)

    def forward(self, x_BTD: Tensor, padding: Padding, source_BTD: Tensor | None = None) -> Tensor:
        if isinstance(padding, Unpadded):
            mixed_BTD = self._unpadded(self.qkv(x_BTD), padding)
        else:
            mixed_BTD = self._joined(self.mix(*self._qkv(x_BTD, source_BTD), padding))
        out_BTD: Tensor = self.out(mixed_BTD)
        return out_BTD

    def by_row(self, rows: Unpadded, device: torch.device) -> bool:
        """Whether a kernel takes rows of any length: one that adds nothing to the scores."""
        position = self._position[0]
        alone = _alone(position) and position.relative is None and rows.unseen.ndim == 2
        return alone and flashes(device.type, device.index, self.qkv.in_features // self.heads)

    def _unpadded(self, qkv_1NE: Tensor, rows: Unpadded) -> Tensor:
        """What each place takes up, (1, N, D)."""
        if self.by_row(rows, qkv_1NE.device):
            q_NHK, k_NHK, v_NHK = qkv_1NE[0].view(len(rows.kept_N), 3, self.heads, -1).unbind(1)
            dropout = self.dropout if self.training else 0.0
            return rows.attend(q_NHK, k_NHK, v_NHK, dropout, self.scale).flatten(1)[None]
        q_BHTK, k_BHTK, v_BHTK = (self._split(part) for part in rows.put(qkv_1NE).chunk(3, dim=-1))
        return rows.take(self._joined(self.mix(q_BHTK, k_BHTK, v_BHTK, rows.unseen)))

    def mix(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, padding_BT: Tensor | None) -> Tensor:
        """The values each token takes up, (B, H, T, K)."""
        bias = self.bias(q_BHTK, k_BHTK)
        q_BHTK, k_BHTK = self._position[0].rotate(q_BHTK, k_BHTK)
        return F.scaled_dot_product_attention(
            q_BHTK,
            k_BHTK,
            v_BHTK,
            attn_mask=_scores_mask(bias, padding_BT, q_BHTK.dtype),
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
        )

    def bias(self, q_BHTK: Tensor, k_BHTK: Tensor) -> Tensor | None:
        """What is added to the scaled scores, (1 or B, H, T, T); None adds nothing."""
        bias_HTT = self._position[0].bias(self.layer, q_BHTK.shape[2])
        return None if bias_HTT is None else bias_HTT[None]

    def _qkv(self, x_BTD: Tensor, source_BTD: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if source_BTD is None:
            q_BTD, k_BTD, v_BTD = self.qkv(x_BTD).chunk(3, dim=-1)
        else:
            q_BTD, k_BTD, v_BTD = self.qkv.part(0, x_BTD), self.qkv.part(1, source_BTD), self.qkv.part(2, source_BTD)
        return self._split(q_BTD), self._split(k_BTD), self._split(v_BTD)

    def _split(self, x: Tensor) -> Tensor:
        """(..., T, D) to (..., H, T, K)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(-3, -2)

    def _joined(self, x_BHTK: Tensor) -> Tensor:
        """(B, H, T, K) to (B, T, D)."""
        return x_BHTK.transpose(1, 2).flatten(2)


class DisentangledAttention(FullAttention):
    """Content to content, content to position (c2p) and position to content (p2c).

    He et al. 2020, arXiv:2006.03654, equation 4. The scale is 1 / sqrt(K x (1 + terms)); `paper_index` takes p2c's
    position from j to i as the paper prints it, not from i to j as both reference codes do.
    """

    def __init__(
        self,
        layer: int,
        width: int,
        heads: int,
        dropout: float,
        position: Position,
        c2p: bool,
        p2c: bool,
        share: bool,
        paper_index: bool,
        key_bias: bool = True,
    ) -> None:
        super().__init__(layer, width, heads, dropout, position, key_bias)
        self.scale = (width // heads * (1 + c2p + p2c)) ** -0.5
        self.c2p, self.p2c, self.paper_index = c2p, p2c, paper_index
        self.position_key = nn.Linear(width, width, bias=key_bias) if c2p and not share else None
        self.position_query = nn.Linear(width, width) if p2c and not share else None

    def mix(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, padding_BT: Tensor | None) -> Tensor:
        """By the fused kernel (nn/fused.py) where there is one for the device, else from the scores of all pairs."""
        position, place = self._position[0], q_BHTK.device
        alone = _alone(position)
        if position.relative is None or _no_kernel(place.type, place.index, q_BHTK.dtype, q_BHTK.shape[-1], alone):
            return super().mix(q_BHTK, k_BHTK, v_BHTK, padding_BT)
        from paribus.nn.fused import relative_attention  # needs Triton

        key_HRK, query_HRK, row_S = self._relative_rows(q_BHTK.shape[2])
        dropout = self.dropout if self.training else 0.0
        return relative_attention(
            q_BHTK, k_BHTK, v_BHTK, key_HRK, query_HRK, row_S, self.paper_index, padding_BT, dropout, self.scale
        )

    def bias(self, q_BHTK: Tensor, k_BHTK: Tensor) -> Tensor | None:
        bias = super().bias(q_BHTK, k_BHTK)
        if self._position[0].relative is None:
            return bias
        key_HRK, query_HRK, row_S = self._relative_rows(q_BHTK.shape[2])
        index_TT = by_pair(row_S)
        terms_BHTT = []
        if key_HRK is not None:
            terms_BHTT.append(_pick(q_BHTK @ key_HRK.mT, index_TT))
        if query_HRK is not None:
            # Picked for each key along its queries, so (j, i) until the two change places.
            terms_BHTT.append(_pick(k_BHTK @ query_HRK.mT, index_TT if self.paper_index else index_TT.mT).mT)
        scores_BHTT: Tensor = self.scale * sum(terms_BHTT)
        return scores_BHTT if bias is None else bias + scores_BHTT

    def _relative_rows(self, length: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """The position keys (c2p) and position queries (p2c) that rows of `length` tokens need, and the row of each
        distance."""
        relative = self._position[0].relative
        assert relative is not None
        rows_RD, row_S = relative(length)
        key_HRK = query_HRK = None
        if self.c2p:
            key_RD = self.qkv.part(1, rows_RD) if self.position_key is None else self.position_key(rows_RD)
            key_HRK = self._split(key_RD)
        if self.p2c:
            query_RD = self.qkv.part(0, rows_RD) if self.position_query is None else self.position_query(rows_RD)
            query_HRK = self._split(query_RD)
        return key_HRK, query_HRK, row_S


def _alone(position: Position) -> bool:
    """Whether a position leaves queries, keys and scores as they are, but for its relative table."""
    return type(position).bias is Position.bias and type(position).rotate is Position.rotate


@constant
def _no_kernel(device: str, number: int | None, dtype: torch.dtype, width: int, alone: bool) -> str | None:
    """Why the fused kernel cannot be taken; None where it can. A compiled graph asks when it is made."""
    reason = None
    if device == "meta":
        return "nothing is computed"
    if device != "cuda" or torch.version.cuda is None:
        reason = f"on {device}: it needs a CUDA GPU"
    elif (capability := torch.cuda.get_device_capability(number)) < (8, 0):
        reason = f"a GPU of compute capability {capability[0]}.{capability[1]}: it needs 8.0"
    elif importlib.util.find_spec("triton") is None:
        reason = "triton is not installed"
    elif dtype not in (torch.bfloat16, torch.float16):
        reason = f"in {str(dtype).removeprefix('torch.')}: it is for bfloat16 and float16"
    elif width > 128:
        reason = f"heads of width {width}: it takes at most 128"
    elif not alone:
        reason = "beside another position in the scores"
    if reason:
        _say(reason)
    return reason


@cache
def _say(reason: str) -> None:
    """Once."""
    print(f"disentangled attention without the fused kernel, {reason}", file=sys.stderr)


def _pick(scores_BHTR: Tensor, index_TT: Tensor) -> Tensor:
    """The scores of each place at its row of the index."""
    return scores_BHTR.gather(-1, index_TT.expand(*scores_BHTR.shape[:2], *index_TT.shape))


def _scores_mask(bias: Tensor | None, padding_BT: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores: the bias, and minus infinity at padded keys.

    `padding_BT` may be (B, T, T): keys that each query leaves out.
    """
    if padding_BT is None:
        return None if bias is None else bias.to(dtype)
    unseen_BHTT = padding_BT[:, None, None, :] if padding_BT.ndim == 2 else padding_BT[:, None]
    return ~unseen_BHTT if bias is None else bias.to(dtype).masked_fill(unseen_BHTT, float("-inf"))
