"""The encoder: token ids in, hidden states out.

Here: embedding, the stack of blocks, the last norm.  Elsewhere: position.py (where order enters), attention.py (how
tokens mix), feed_forward.py, convolution.py (beside the first block), heads.py (logits), init.py (first values),
build.py (spec to module).  This page names no variant.

B batch, T tokens, D width, H heads, K width of a head, M predicted places, V vocabulary
"""

from dataclasses import dataclass

from torch import Tensor, nn

from paribus.nn.block import Block
from paribus.nn.convolution import Convolution
from paribus.nn.position import Position
from paribus.nn.unpadded import Padding, Unpadded, halved


class Encoder(nn.Module):
    """`tokens_BT` int64 ids, `segments_BT` 0 or 1, `padding` (B, T) True at [PAD]; returns hidden states (B, T, D).

    `padding` may also be (B, T, T), True where a token (first) does not attend to another; or say how rows are without
    padding, which is then left out where that is faster: blocks take (1, N, D), unless the encoder is always `padded`.

    A table of one segment, as RoBERTa's, adds its row everywhere.

    What stands at padded places, and how many there are, does not change the other places.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        table_width: int,
        segments: int,
        position: Position,
        blocks: list[Block],
        first_norm: nn.Module,
        last_norm: nn.Module,
        dropout: float,
        convolution: Convolution | None = None,
        padded: bool = True,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, table_width)
        self.segments = nn.Embedding(segments, table_width) if segments else None
        self.position = position
        self.first_norm = first_norm
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(table_width, width) if table_width != width else None
        self.blocks = nn.ModuleList(blocks)
        self.last_norm = last_norm
        self.convolution = convolution
        self.padded = padded

    def depth(self, name: str) -> int:
        """The layer, from 1, that a parameter belongs to; 0 below the first. The last norm goes with the last layer."""
        part, _, rest = name.partition(".")
        if part == "blocks":
            return 1 + int(rest.partition(".")[0])
        return {"convolution": 1, "last_norm": len(self.blocks)}.get(part, 0)

    def forward(self, tokens_BT: Tensor, segments_BT: Tensor | None = None, padding: Padding = None) -> Tensor:
        return self.states(tokens_BT, segments_BT, padding).last_BTD

    def states(self, tokens_BT: Tensor, segments_BT: Tensor | None = None, padding: Padding = None) -> "States":
        """The same before the last block, for heads that use that block in their own way."""
        x_BTD = self.tokens(tokens_BT)
        if self.segments is not None:
            one = segments_BT is None or self.segments.num_embeddings == 1
            x_BTD = x_BTD + (self.segments.weight[0] if one else self.segments(segments_BT))
        x_BTD = self.position.embed(x_BTD)
        if isinstance(padding, Unpadded):
            if not self.padded and halved(x_BTD.device.type) and padding.pays():
                x_BTD = padding.take(x_BTD)
            else:
                padding = padding.unseen
        x_BTD = self.dropout(self.first_norm(x_BTD))
        below = [x_BTD if self.project is None else self.project(x_BTD)]
        *blocks, last = self.blocks
        for layer, block in enumerate(blocks):
            x_BTD = block(below[-1], padding)
            if layer == 0 and self.convolution is not None:
                x_BTD = self.convolution(below[0], x_BTD, padding)
            below.append(x_BTD)
        return States(below, padding, last, self.last_norm)


@dataclass
class States:
    """What enters the blocks (the embeddings first, the last block's input last), the last block, the norm after it.

    Whoever reads them sees padded rows.
    """

    below: list[Tensor]
    """As the blocks take them."""
    padding: Padding
    last_block: nn.Module
    last_norm: nn.Module
    _last_BTD: Tensor | None = None  # no cached_property: torch.compile knows none with a lock

    @property
    def padding_BT(self) -> Tensor | None:
        """What attention leaves out: `padding` of the encoder."""
        return self.padding.unseen if isinstance(self.padding, Unpadded) else self.padding

    @property
    def before_BTD(self) -> Tensor:
        """What enters the last block."""
        return self._whole(self.below[-1])

    @property
    def layers(self) -> list[Tensor]:
        """The embeddings and the output of each layer, (B, T, D) each; of the last one after the norm."""
        return [*map(self._whole, self.below), self.last_BTD]

    @property
    def last_BTD(self) -> Tensor:
        """The encoder's hidden states. Computed when asked for, once."""
        if self._last_BTD is None:
            self._last_BTD = self._whole(self.last_norm(self.last_block(self.below[-1], self.padding)))
        return self._last_BTD

    def _whole(self, x: Tensor) -> Tensor:
        """With the places that were left out, which hold zeros."""
        return self.padding.put(x) if isinstance(self.padding, Unpadded) else x
