"""Rows without their padding: what acts on each token alone need not act on padding.

B rows, T tokens, N places that are kept, S places where rows begin and end, H heads, K width of a head
"""

from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from paribus.nn.compiler import constant


@dataclass(frozen=True)
class Unpadded:
    """Padded rows (B, T), and which of their places are kept where they are taken without padding.

    unseen: what attention leaves out of padded rows, as the encoder's `padding`.  kept_N: the kept places in the
    flattened (B*T): all tokens, row by row, then as much padding as makes N recur.  starts_S: where each row begins
    among them, then where pieces of padding do, at most T long, and N; int32 (FlashAttention's `cu_seqlens`).

    Made where the batch is, so that nobody waits for a device to learn N.
    """

    unseen: Tensor
    kept_N: Tensor
    starts_S: Tensor

    @classmethod
    def of(cls, padding_BT: Tensor) -> Self:
        """Of rows that are True at [PAD]. N grows in sixteen steps between two powers of two, so that shapes recur."""
        length, device = padding_BT.shape[1], padding_BT.device
        lengths_B = (~padding_BT).sum(1)
        tokens = int(lengths_B.sum())
        step = 2 ** max(0, tokens.bit_length() - 5)
        kept = min(-(-tokens // step) * step, padding_BT.numel())
        kept_N = torch.cat([(~padding_BT).flatten().nonzero(), padding_BT.flatten().nonzero()[: kept - tokens]])
        pieces = torch.arange(1, -(-step // length) + 1, device=device)
        ends_S = torch.cat([lengths_B.cumsum(0), (tokens + length * pieces).clamp(max=kept)])
        return cls(padding_BT, kept_N[:, 0], F.pad(ends_S, (1, 0)).int())

    def to(self, device: torch.device) -> Self:
        """The same on `device`."""
        return type(self)(self.unseen.to(device), self.kept_N.to(device), self.starts_S.to(device))

    def pays(self) -> bool:
        """Whether there is so much padding that it is faster without."""
        rows, length = self.unseen.shape[:2]
        return len(self.kept_N) < MOST * rows * length

    def take(self, x_BTD: Tensor) -> Tensor:
        """The kept places of padded rows, (1, N, D)."""
        taken_ND: Tensor = Take.apply(x_BTD.flatten(0, 1), self.kept_N)  # type: ignore[no-untyped-call]
        return taken_ND[None]

    def put(self, x_1ND: Tensor) -> Tensor:
        """Padded rows (B, T, D) of the kept places; zeros elsewhere."""
        rows, length = self.unseen.shape[:2]
        return _put(x_1ND[0], self.kept_N, rows * length).view(rows, length, -1)

    def attend(self, q_NHK: Tensor, k_NHK: Tensor, v_NHK: Tensor, dropout: float, scale: float) -> Tensor:
        """softmax(scale q k^T) v within each row, by FlashAttention, (N, H, K)."""
        longest, starts_S = self.unseen.shape[1], self.starts_S
        # torch.nn.attention.varlen has no dropout; this is what nested tensors' attention calls.
        found: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
            q_NHK, k_NHK, v_NHK, starts_S, starts_S, longest, longest, dropout, False, False, scale=scale
        )
        return found[0]


class Take(torch.autograd.Function):
    """Some rows of a matrix, none twice: their gradients are put in place, where torch's own would be added up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows_N: Tensor) -> Tensor:
        ctx.save_for_backward(rows_N)
        ctx.size = len(x)
        return x.index_select(0, rows_N)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows_N,) = ctx.saved_tensors
        return _put(gradient, rows_N, ctx.size), None


def _put(x_ND: Tensor, rows_N: Tensor, size: int) -> Tensor:
    """A matrix of `size` rows, zeros but for those that are given."""
    return x_ND.new_zeros(size, x_ND.shape[1]).index_copy(0, rows_N, x_ND)


Padding = Tensor | Unpadded | None
"""What is padding, and what attention leaves out besides: see Encoder."""


def without(unseen: Tensor | None, kept_N: Tensor | None, starts_S: Tensor | None) -> Padding:
    """What attention leaves out of rows, which are taken without their padding where it is told what is kept."""
    if unseen is None or kept_N is None or starts_S is None:
        return unseen
    return Unpadded(unseen, kept_N, starts_S)


MOST = 0.8
"""Share of the places that may be kept: with more, what is taken and put back costs what is saved (docs/speed.md)."""


def halved(device: str) -> bool:
    """Whether linear layers are computed in half precision on a CUDA GPU: the fast path is for these alone."""
    there = device == "cuda" and torch.is_autocast_enabled("cuda")
    return there and torch.get_autocast_dtype("cuda") in (torch.bfloat16, torch.float16)


@constant
def flashes(device: str, number: int | None, head_width: int) -> bool:
    """Whether a device computes FlashAttention for heads of a width."""
    if device != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(number) < (8, 0):
        return False
    return head_width % 8 == 0 and head_width <= 256
