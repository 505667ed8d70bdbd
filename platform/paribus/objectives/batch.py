"""What a LightningModule is fed: one optimizer step, cut into the pieces that fit through the network at once."""

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from paribus.data.vocabulary import PAD
from paribus.nn.compiler import compiler
from paribus.nn.unpadded import Padding, Unpadded, without
from paribus.train.tensors import Moved, Tensors

IGNORED = -100
"""The label that cross entropy leaves out: torch's default."""


@dataclass(frozen=True)
class Micro(Tensors):
    """Rows through the network at once. B rows, T tokens, M predicted places.

    tokens_BT: input ids.  padding_BT: True at [PAD], None where there is none.  segments_BT: 0 or 1, None for all 0.
    places_M: index of each predicted place in the flattened (B*T).  targets_M: the ids that stood there.
    labels_B: sentence labels, None without a sentence objective.
    draws_M: a uniform draw a predicted place, None where nothing is sampled.
    blocked_BTT: True where a token may not attend to another, None where padding says all.
    stream_B, count_B: where masks are still to be drawn (paribus.objectives.draw), the state of each row's stream and
    how many of its tokens are chosen; None where they are drawn.
    sampling_B: where draws_M are still to be drawn, the state of their streams.
    real_B: False at rows that are there for the shape alone, None where there can be none.
    kept_N, starts_S: how rows are without their padding, see paribus.nn.unpadded; None where there is none.

    Of a fixed shape, M is the same number of slots a row. Slots that are not asked stand at the first place of their
    row, with IGNORED for a target.
    """

    tokens_BT: Tensor
    padding_BT: Tensor | None
    segments_BT: Tensor | None
    places_M: Tensor
    targets_M: Tensor
    labels_B: Tensor | None = None
    draws_M: Tensor | None = None
    blocked_BTT: Tensor | None = None
    stream_B: Tensor | None = None
    count_B: Tensor | None = None
    sampling_B: Tensor | None = None
    real_B: Tensor | None = None
    kept_N: Tensor | None = None
    starts_S: Tensor | None = None

    @property
    def unseen(self) -> Padding:
        """What attention leaves out: (B, T) keys for all queries, or (B, T, T) keys for each; and how rows are without
        their padding."""
        unseen = self.padding_BT if self.blocked_BTT is None else self.blocked_BTT
        return without(unseen, self.kept_N, self.starts_S)

    def unpadded(self, padding_BT: Tensor | None) -> Self:
        """The same, which keeps the places that are False there, where that pays: each N is a CUDA graph more."""
        if padding_BT is None or not (rows := Unpadded.of(padding_BT)).pays():
            return replace(self, kept_N=None, starts_S=None)
        return replace(self, kept_N=rows.kept_N, starts_S=rows.starts_S)

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
                name: tensor[inside_M] if name.endswith("_M") else tensor[start:stop]
                for name, tensor in self.tensors().items()
                if name not in ("kept_N", "starts_S")
            }
            piece = replace(self, **{**taken, "places_M": taken["places_M"] - start * length})
            pieces.append(piece.unpadded(piece.padding_BT))
        return pieces

    def fixed(self, rows: int, length: int, slots: int, padded: bool, segmented: bool) -> Self:
        """The same of a fixed shape: rows that are not asked anything, places that are padding, slots of which none is.
        What is `padded` and `segmented` is so even where this piece would not need it.
        """
        count, width = self.tokens_BT.shape
        row_M = self.places_M // width
        first_B = torch.searchsorted(row_M, torch.arange(count))
        slot_M = row_M * slots + torch.arange(len(row_M)) - first_B[row_M]
        places_M = (length * torch.arange(rows)).repeat_interleave(slots)
        places_M[slot_M] = row_M * length + self.places_M % width
        targets_M = torch.full_like(places_M, IGNORED)
        targets_M[slot_M] = self.targets_M
        draws_M = None
        if self.draws_M is not None:
            draws_M = self.draws_M.new_zeros(len(places_M))
            draws_M[slot_M] = self.draws_M

        def longer(tensor: Tensor | None, value: int, made: bool) -> Tensor | None:
            """With places of `value` at the end, and the first row once more for those that are missing."""
            if tensor is None and not made:
                return None
            there = torch.zeros_like(self.tokens_BT) if tensor is None else tensor
            there = F.pad(there, (0, length - width), value=value)
            return torch.cat([there, there[:1].expand(rows - count, *there.shape[1:])])

        def asked(tensor: Tensor | None, value: int) -> Tensor | None:
            return None if tensor is None else F.pad(tensor, (0, rows - count), value=value)

        tokens_BT, padding_BT = longer(self.tokens_BT, PAD, True), longer(self.padding_BT, 1, padded)
        assert tokens_BT is not None
        blocked_BTT = self.blocked_BTT
        if blocked_BTT is not None:
            blocked_BTT = F.pad(blocked_BTT, (0, length - width, 0, length - width), value=True)
            places = torch.arange(width, length)
            blocked_BTT[:, places, places] = False  # padding attends to itself: nothing would be no number
            blocked_BTT = torch.cat([blocked_BTT, blocked_BTT[:1].expand(rows - count, length, length)])
        if padding_BT is not None:
            padding_BT = padding_BT.bool()
        real_B = torch.arange(rows) < count
        made = replace(
            self,
            tokens_BT=tokens_BT,
            padding_BT=padding_BT,
            segments_BT=longer(self.segments_BT, 0, segmented),
            places_M=places_M,
            targets_M=targets_M,
            labels_B=asked(self.labels_B, IGNORED),
            draws_M=draws_M,
            blocked_BTT=blocked_BTT,
            stream_B=asked(self.stream_B, 0),
            count_B=asked(self.count_B, 0),
            sampling_B=asked(self.sampling_B, 0),
            real_B=real_B if padded else None,
        )
        # What is kept leaves out rows that are not asked: for attention of padded rows they are not all padding.
        return made.unpadded(None if padding_BT is None else padding_BT | ~real_B[:, None])

    def unasked(self) -> Self:
        """The first row, of which nothing is asked: its losses and their gradients are 0."""
        first = self.cut(1)[0]
        draws_M = None if first.draws_M is None else first.draws_M[:0]
        labels_B = None if first.labels_B is None else torch.full_like(first.labels_B, IGNORED)
        places_M, targets_M = first.places_M[:0], first.targets_M[:0]
        return replace(first, places_M=places_M, targets_M=targets_M, labels_B=labels_B, draws_M=draws_M)

    def vary(self) -> None:
        """Tell the compiler that there are others of this shape but for N and S: one graph shall do for all of them."""
        for tensor in (self.kept_N, self.starts_S):
            if tensor is not None:
                compiler().maybe_mark_dynamic(tensor, 0)


@dataclass(frozen=True)
class Step(Moved):
    """One optimizer step, or one rank's share of it. `predicted`, `rows` and `tokens` count over all of it, all ranks
    together: summed losses are divided once by these, which are tensors where micro-batches have a fixed shape."""

    micros: tuple[Micro, ...]
    predicted: int | Tensor
    rows: int | Tensor
    tokens: int | Tensor

    def cut(self, rows: int) -> Self:
        """The same in micro-batches of at most `rows` rows."""
        return replace(self, micros=tuple(piece for micro in self.micros for piece in micro.cut(rows)))

    def padded(self, count: int) -> Self:
        """The same in `count` micro-batches: the last ones are not asked anything."""
        return replace(self, micros=self.micros + (self.micros[-1].unasked(),) * (count - len(self.micros)))
