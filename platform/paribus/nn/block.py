"""A block: attention and feed-forward, each in a residual branch; the subclass says where the norm sits.

Keys and values come from `source_BTD`, or from `x_BTD` itself where that is None.
"""

from typing import ClassVar

from torch import Tensor, nn

from paribus.nn.unpadded import Padding


class Block(nn.Module):
    """One layer of the encoder."""

    normalises_output: ClassVar[bool]
    """Whether what it returns went through a norm: the encoder then normalises its embeddings, else its last states."""

    def __init__(self, attention: nn.Module, feed_forward: nn.Module, width: int, eps: float, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_norm = nn.LayerNorm(width, eps)
        self.feed_forward_norm = nn.LayerNorm(width, eps)
        self.dropout = nn.Dropout(dropout)


class PostNormBlock(Block):
    """norm(x + branch(x)). Vaswani et al. 2017, arXiv:1706.03762, section 3.1; BERT."""

    normalises_output = True

    def forward(self, x_BTD: Tensor, padding: Padding, source_BTD: Tensor | None = None) -> Tensor:
        x_BTD = self.attention_norm(x_BTD + self.dropout(self.attention(x_BTD, padding, source_BTD)))
        out_BTD: Tensor = self.feed_forward_norm(x_BTD + self.dropout(self.feed_forward(x_BTD)))
        return out_BTD


class PreNormBlock(Block):
    """x + branch(norm(x)). Xiong et al. 2020, arXiv:2002.04745."""

    normalises_output = False

    def forward(self, x_BTD: Tensor, padding: Padding, source_BTD: Tensor | None = None) -> Tensor:
        source_BTD = None if source_BTD is None else self.attention_norm(source_BTD)
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), padding, source_BTD))
        out_BTD: Tensor = x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
        return out_BTD
