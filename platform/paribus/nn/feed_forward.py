"""The part of a block that acts on each token alone."""

import torch.nn.functional as F
from torch import Tensor, nn


class GeluFeedForward(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        out_BTD: Tensor = self.down(F.gelu(self.up(x_BTD)))
        return out_BTD


class GatedGeluFeedForward(nn.Module):
    """GELU of one projection times another, then linear. Shazeer 2020, arXiv:2002.05202, equation 6."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate, value = self.up(x_BTD).chunk(2, dim=-1)
        out_BTD: Tensor = self.down(F.gelu(gate) * value)
        return out_BTD
