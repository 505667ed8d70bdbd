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
    """No order from here: the control, or where the attention brings positions of its own."""

    kind: Literal["unordered"] = "unordered"


class Attention(Slot):
    """How tokens mix."""


class FullAttention(Attention):
    """Every token attends to every token of its row. Vaswani et al. 2017, arXiv:1706.03762, section 3.2."""

    kind: Literal["full"] = "full"
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the attention probabilities."""


class Disentangled(Attention):
    """Scores from contents and relative positions apart. He et al. 2020, arXiv:2006.03654, section 3.1.

    (q_c k_c + [c2p] q_c k_r + [p2c] k_c q_r) / sqrt(K x (1 + terms)), terms the number that is on: the paper does not
    say how it scaled its ablations, the reference code does it so. k_r and q_r are projections of one table of relative
    positions that all layers share. With both terms off there is no table, and this is full attention.
    """

    kind: Literal["disentangled"] = "disentangled"
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the attention probabilities. On the table acts the encoder's own dropout, anew in every layer."""
    c2p: bool = True
    """Content to position: what the query holds against where the key is."""
    p2c: bool = True
    """Position to content: where the query is against what the key holds."""
    max_distance: int = Field(512, ge=1)
    """The paper's k: distances beyond are treated as this one."""
    buckets: int | None = Field(None, ge=2)
    """Rows of the table to each side: up to half as many places each distance has its own, beyond they grow with the
    logarithm (v2, v3: 256). Null gives every distance a row of its own (v1). Reference code, position_buckets."""
    share_projections: bool = False
    """Project the table by the content's own query and key projections (v2, v3: share_att_key)."""
    table_norm: bool = False
    """LayerNorm on the table (v2, v3: norm_rel_ebd)."""
    key_bias: bool = True
    """Whether the projections of keys, of contents and of positions, have a bias (v2, v3) or none (v1, in_proj and
    pos_proj). Reference code."""
    clamp_distance: bool = True
    """With buckets, treat distances beyond max_distance - 1 as that one, so that row 0 is never used: Microsoft's code,
    make_log_bucket_position. False gives a key that far ahead row 0: transformers' code, of the same name."""
    p2c_index: Literal["code", "paper"] = "code"
    """Row of q_r for query i and key j: of i - j (`code`, both reference codes) or of j - i (`paper`, equation 4)."""

    @model_validator(mode="after")
    def _buckets(self) -> "Disentangled":
        if self.buckets is not None and (self.buckets % 2 or self.buckets > self.max_distance):
            raise ValueError(
                f"buckets must be even and at most max_distance, found {self.buckets} and {self.max_distance}"
            )
        return self


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


class EnhancedMaskDecoder(Head):
    """BERT's head on the last layer run `steps` times with absolute positions in the query, the only ones there are.

    He et al. 2020, arXiv:2006.03654, section 3.2; reference code (masked_language_model.py): keys and values stay the
    output of the last layer but one, the weights are those of the last layer. Fine-tuning reads that layer as it is.
    """

    kind: Literal["emd"] = "emd"
    steps: int = Field(2, ge=1)
    max_length: int = Field(512, ge=1)
    """Rows of the table of absolute positions."""


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
    convolution: int | None = Field(None, ge=1)
    """Kernel of a convolution over the embeddings, added to the first layer's output; null leaves it out.
    He et al. 2020, arXiv:2006.03654, table 13; DeBERTa v2 xlarge: 3."""
    embedding_width: int | None = Field(None, ge=2)
    """Width of the token, segment and position tables, projected to `width`; null: `width` itself, no projection.
    Lan et al. 2020, arXiv:1909.11942, section 3.1; 128 in ELECTRA-small (Clark et al. 2020, arXiv:2003.10555)."""
    segments: int = Field(2, ge=0, le=2)
    """Rows of the segment (token type) table; 0 leaves it out."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """On the embeddings and on each residual branch."""
    init_std: float = Field(0.02, gt=0)
    """Standard deviation of the normal that weights start from (biases 0, norms 1)."""

    @property
    def table_width(self) -> int:
        """Width of the token, segment and position tables."""
        return self.embedding_width or self.width

    @model_validator(mode="after")
    def _heads(self) -> "Encoder":
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, found width {self.width} and heads {self.heads}")
        return self

    @model_validator(mode="after")
    def _convolution(self) -> "Encoder":
        if self.convolution is not None and (self.convolution % 2 == 0 or self.layers < 2):
            raise ValueError(
                "convolution must be odd and needs layers of at least 2, "
                f"found convolution {self.convolution} and layers {self.layers}"
            )
        return self

    @model_validator(mode="after")
    def _mask_decoder(self) -> "Encoder":
        if isinstance(self.head, EnhancedMaskDecoder):
            if not isinstance(self.attention, Disentangled) or not (self.attention.c2p or self.attention.p2c):
                raise ValueError(
                    "head 'emd' needs relative attention, {kind: disentangled} with c2p or p2c, "
                    f"found attention {self.attention.model_dump()}"
                )
            if isinstance(self.position, Absolute):
                raise ValueError(
                    "head 'emd' brings the absolute positions, so the input takes none: "
                    "position must be {kind: unordered}, found 'absolute'"
                )
            if self.layers < 2:
                raise ValueError(f"head 'emd' needs layers of at least 2, found {self.layers}")
        return self
