"""The encoder: five slots (position, attention, norm, feed-forward, head) and the sizes."""

from typing import Literal

from pydantic import Field, model_validator

from paribus.spec.base import Slot, Spec


class Position(Slot):
    """Where word order enters."""


class Absolute(Position):
    """A learned vector for each place, added to the embedding. Devlin et al. 2019, arXiv:1810.04805, section 3."""

    kind: Literal["absolute"] = "absolute"
    max_length: int = Field(512, ge=1)


class RelativeBias(Position):
    """A learned number for each head, layer and clipped distance, added to the attention scores.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1, without their logarithmic buckets and not shared by layers.
    """

    kind: Literal["relative-bias"] = "relative-bias"
    max_distance: int = Field(32, ge=1)
    """Distances beyond are treated as this one."""
    start: Literal["normal", "sided"] = "normal"
    """`sided`: even heads start out looking left and odd ones right, nearer places first, with the slopes of ALiBi
    (Press et al. 2022, arXiv:2108.12409). A small encoder then finds its neighbours in a fraction of the tokens."""


class Alibi(Position):
    """A fixed penalty on distance, a slope a head. Press et al. 2022, arXiv:2108.12409, section 3. Symmetric here."""

    kind: Literal["alibi"] = "alibi"


class Unordered(Position):
    """No order at all: the control."""

    kind: Literal["unordered"] = "unordered"


class Attention(Slot):
    """How tokens mix."""


class FullAttention(Attention):
    """Every token attends to every token of its row. Vaswani et al. 2017, arXiv:1706.03762, section 3.2."""

    kind: Literal["full"] = "full"
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the attention probabilities."""


class Norm(Slot):
    """Where the layer norm of a residual branch sits."""

    eps: float = Field(1e-12, gt=0)


class PostNorm(Norm):
    """norm(x + branch(x)), as BERT."""

    kind: Literal["post"] = "post"


class PreNorm(Norm):
    """x + branch(norm(x)) and a last norm before the head. Xiong et al. 2020, arXiv:2002.04745."""

    kind: Literal["pre"] = "pre"


class FeedForward(Slot):
    """The part of a block that acts on each token alone."""

    width: int = Field(ge=1)


class Gelu(FeedForward):
    """Linear, GELU, linear. Devlin et al. 2019, section 3."""

    kind: Literal["gelu"] = "gelu"


class GatedGelu(FeedForward):
    """GELU of one projection times another. Shazeer 2020, arXiv:2002.05202."""

    kind: Literal["geglu"] = "geglu"


class Head(Slot):
    """From hidden states to vocabulary logits, at the masked places only."""


class BertHead(Head):
    """Linear, GELU, norm, then the transposed embedding and a free bias. Devlin et al. 2019, reference code."""

    kind: Literal["bert"] = "bert"


class Encoder(Spec):
    """A Transformer encoder."""

    layers: int = Field(ge=1)
    width: int = Field(ge=2)
    heads: int = Field(ge=1)
    position: Position
    attention: Attention
    norm: Norm
    feed_forward: FeedForward
    head: Head = BertHead()
    segments: int = Field(2, ge=0, le=2)
    """Rows of the segment (token type) table; 0 leaves it out."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the embeddings and on each residual branch."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the normal that weights start from (biases 0, norms 1)."""

    @model_validator(mode="after")
    def _heads(self) -> "Encoder":
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, found width {self.width} and heads {self.heads}")
        return self
