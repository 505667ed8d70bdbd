"""Where word order enters: three hooks, each the identity unless a variant overrides it, and a relative table."""

import math

import torch
from torch import Tensor, nn


class Position(nn.Module):
    """Override the place(s) where order enters. `relative` is the table of an attention that reads one."""

    def __init__(self, relative: "RelativeTable | None" = None) -> None:
        super().__init__()
        self.relative = relative

    def embed(self, x_BTD: Tensor) -> Tensor:
        """On the embeddings, once."""
        return x_BTD

    def rotate(self, q_BHTK: Tensor, k_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        """On queries and keys, in every layer."""
        return q_BHTK, k_BHTK

    def bias(self, layer: int, length: int) -> Tensor | None:
        """Added to the scaled scores of a layer, (H, T, T); None adds nothing."""
        return None

    def start(self) -> None:
        """First values of parameters that should not start from normal(0, std)."""


class Unordered(Position):
    """No order: the encoder is permutation-equivariant."""


class AbsolutePosition(Position):
    """A learned vector a place."""

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.empty(max_length, width))

    def embed(self, x_BTD: Tensor) -> Tensor:
        if x_BTD.shape[1] > len(self.places):
            raise ValueError(f"{x_BTD.shape[1]} tokens, but positions for {len(self.places)}")
        return x_BTD + self.places[: x_BTD.shape[1]]


class RelativeBias(Position):
    """A learned number for each layer, head and clipped distance (key minus query)."""

    def __init__(self, layers: int, heads: int, max_distance: int, sided: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(layers, heads, 2 * max_distance + 1))
        self.max_distance = max_distance
        self.sided = sided

    def start(self) -> None:
        if not self.sided:
            return
        distance = torch.arange(-self.max_distance, self.max_distance + 1)
        for head, slope in enumerate(alibi_slopes(self.table.shape[1])):
            behind = distance >= 0 if head % 2 == 0 else distance <= 0
            self.table[:, head] = -slope * distance.abs() - 2.0 * behind

    def bias(self, layer: int, length: int) -> Tensor:
        place_T = torch.arange(length, device=self.table.device)
        distance_TT = (place_T[None, :] - place_T[:, None]).clamp(-self.max_distance, self.max_distance)
        return self.table[layer][:, distance_TT + self.max_distance]


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8h/H) for h = 1..H."""
    return tuple(2.0 ** (-8.0 * head / heads) for head in range(1, heads + 1))


class AlibiPosition(Position):
    """-slope x |distance|, a slope a head. Press et al. 2022, arXiv:2108.12409, section 3."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(heads)
        self.register_buffer("_anchor", torch.empty(0), persistent=False)  # only knows the device

    def bias(self, layer: int, length: int) -> Tensor:
        device = self.get_buffer("_anchor").device
        place_T = torch.arange(length, device=device)
        distance_TT = (place_T[None, :] - place_T[:, None]).abs()
        return -torch.tensor(self.slopes, device=device)[:, None, None] * distance_TT


def relative_row(distance: int, max_distance: int, buckets: int | None, clamp: bool = True) -> int:
    """The table row of a query `distance` places after its key: 0 to 2k - 1, and k where they are the same place.

    k is max_distance: He et al. 2020, arXiv:2006.03654, equation 3. With buckets k is their number, and distances
    above half of it grow with the logarithm up to max_distance - 1: reference code, make_log_bucket_position. Those
    beyond count as max_distance - 1, or without `clamp` as the last row of their side, 0 or 2k - 1.
    """
    half, size = buckets or max_distance, abs(distance)
    if buckets and size >= max_distance and not clamp:
        size = half
    elif buckets and (size := min(size, max_distance - 1)) > (linear := buckets // 2):
        size = linear + math.ceil(math.log(size / linear) / math.log((max_distance - 1) / linear) * (linear - 1))
    return min(max(half + (size if distance > 0 else -size), 0), 2 * half - 1)


class RelativeTable(nn.Module):
    """A vector for each relative position, shared by all layers. He et al. 2020, arXiv:2006.03654, section 3.1."""

    def __init__(
        self,
        width: int,
        max_distance: int,
        buckets: int | None,
        norm: nn.Module,
        dropout: float,
        clamp: bool = True,
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(2 * (buckets or max_distance), width))
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.max_distance = max_distance
        reach = range(-max_distance, max_distance + 1)
        self._rows = [relative_row(distance, max_distance, buckets, clamp) for distance in reach]
        self.register_buffer("_row_of", torch.tensor(self._rows), persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        """The vectors (R, D) that rows of `length` tokens need, and which of them each distance of a query after its
        key has, from 1 - T to T - 1, (S,)."""
        farthest = min(length - 1, self.max_distance)
        first, last = (self._rows[self.max_distance + distance] for distance in (-farthest, farthest))
        distance_S = torch.arange(1 - length, length, device=self.table.device)
        row_S = self.get_buffer("_row_of")[distance_S.clamp(-self.max_distance, self.max_distance) + self.max_distance]
        return self.dropout(self.norm(self.table[first : last + 1])), row_S - first


def by_pair(row_S: Tensor) -> Tensor:
    """What `row_S` has for the distance of query i after key j, (T, T)."""
    return row_S.unfold(0, (len(row_S) + 1) // 2, 1).flip(-1)
