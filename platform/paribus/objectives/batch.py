"""What a LightningModule is fed: one optimizer step, cut into the pieces that fit through the network at once."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

IGNORED = -100
"""The label that cross entropy leaves out: torch's default."""


@dataclass(frozen=True)
class Micro:
    """Rows through the network at once. B rows, T tokens, M predicted places.

    tokens_BT: input ids.  padding_BT: True at [PAD], None where there is none.  segments_BT: 0 or 1, None for all 0.
    places_M: index of each predicted place in the flattened (B*T).  targets_M: the ids that stood there.
    labels_B: sentence labels, None without a sentence objective.
    draws_M: a uniform draw a predicted place, None where nothing is sampled.
    blocked_BTT: True where a token may not attend to another, None where padding says all.
    """

    tokens_BT: Tensor
    padding_BT: Tensor | None
    segments_BT: Tensor | None
    places_M: Tensor
    targets_M: Tensor
    labels_B: Tensor | None = None
    draws_M: Tensor | None = None
    blocked_BTT: Tensor | None = None

    @property
    def unseen(self) -> Tensor | None:
        """What attention leaves out: (B, T) keys for all queries, or (B, T, T) keys for each."""
        return self.padding_BT if self.blocked_BTT is None else self.blocked_BTT

    def cut(self, rows: int) -> list[Self]:
        """The same in pieces of at most `rows` rows."""
        count, length = self.tokens_BT.shape
        if count <= rows:
            return [self]
        pieces = []
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            inside_M = (self.places_M >= start * length) & (self.places_M < stop * length)
            taken = {
                f.name: tensor[inside_M] if f.name.endswith("_M") else tensor[start:stop]
                for f in fields(self)
                if (tensor := getattr(self, f.name)) is not None
            }
            pieces.append(replace(self, **{**taken, "places_M": taken["places_M"] - start * length}))
        return pieces

    def unasked(self) -> Self:
        """The first row, of which nothing is asked: its losses and their gradients are 0."""
        first = self.cut(1)[0]
        draws_M = None if first.draws_M is None else first.draws_M[:0]
        labels_B = None if first.labels_B is None else torch.full_like(first.labels_B, IGNORED)
        places_M, targets_M = first.places_M[:0], first.targets_M[:0]
        return replace(first, places_M=places_M, targets_M=targets_M, labels_B=labels_B, draws_M=draws_M)

    def to(self, device: torch.device, **options: Any) -> Self:
        """The same on `device`."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{n: t.to(device, non_blocking=True) for n, t in moved.items() if t is not None})


@dataclass(frozen=True)
class Step:
    """One optimizer step, or one rank's share of it. `predicted`, `rows` and `tokens` count over all of it, all ranks
    together: summed losses are divided once by these."""

    micros: tuple[Micro, ...]
    predicted: int
    rows: int
    tokens: int

    def cut(self, rows: int) -> Self:
        """The same in micro-batches of at most `rows` rows."""
        return replace(self, micros=tuple(piece for micro in self.micros for piece in micro.cut(rows)))

    def padded(self, count: int) -> Self:
        """The same in `count` micro-batches: the last ones are not asked anything."""
        return replace(self, micros=self.micros + (self.micros[-1].unasked(),) * (count - len(self.micros)))

    def to(self, device: torch.device, **options: Any) -> Self:
        """The same on `device`."""
        return replace(self, micros=tuple(micro.to(device) for micro in self.micros))
