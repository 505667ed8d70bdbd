"""Spec to module: a dict a slot. A user's variants join through `modules()` of their file (see docs/extending.md)."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from paribus.errors import SpecError
from paribus.nn import attention, block, feed_forward, heads, position
from paribus.nn.convolution import Convolution
from paribus.nn.encoder import Encoder
from paribus.nn.rtd import GeneratorAndDiscriminator
from paribus.project import user_modules
from paribus.spec import model as spec
from paribus.spec.objective import Rtd

POSITION: Mapping[type[spec.Position], Callable[[Any, spec.Encoder], nn.Module]] = {
    spec.Absolute: lambda p, e: position.AbsolutePosition(p.max_length, e.table_width),
    spec.RelativeBias: lambda p, e: position.RelativeBias(e.layers, e.heads, p.max_distance, p.start == "sided"),
    spec.Alibi: lambda p, e: position.AlibiPosition(e.heads),
    spec.Unordered: lambda p, e: position.Unordered(),
}
ATTENTION: Mapping[type[spec.Attention], Callable[[Any, spec.Encoder, int, position.Position], nn.Module]] = {
    spec.FullAttention: lambda a, e, layer, p: attention.FullAttention(layer, e.width, e.heads, a.dropout, p),
    spec.Disentangled: lambda a, e, layer, p: attention.DisentangledAttention(
        layer, e.width, e.heads, a.dropout, p, a.c2p, a.p2c, a.share_projections, a.p2c_index == "paper", a.key_bias
    ),
}
FEED_FORWARD: Mapping[type[spec.FeedForward], Callable[[Any, spec.Encoder], nn.Module]] = {
    spec.Gelu: lambda f, e: feed_forward.GeluFeedForward(e.width, f.width),
    spec.GatedGelu: lambda f, e: feed_forward.GatedGeluFeedForward(e.width, f.width),
}
BLOCK: Mapping[type[spec.Norm], type[block.Block]] = {
    spec.PostNorm: block.PostNormBlock,
    spec.PreNorm: block.PreNormBlock,
}
RTD_HEAD: Mapping[str, Callable[[spec.Encoder], nn.Module]] = {
    "linear": lambda e: heads.LinearRtdHead(e.width),
    "electra": lambda e: heads.ElectraRtdHead(e.width),
    "deberta": lambda e: heads.DebertaRtdHead(e.width, e.norm.eps),
}
HEAD: Mapping[type[spec.Head], Callable[[Any, spec.Encoder, Encoder], nn.Module]] = {
    spec.BertHead: lambda h, e, encoder: heads.MlmHead(encoder.tokens, e.width, e.norm.eps),
    spec.EnhancedMaskDecoder: lambda h, e, encoder: heads.EnhancedMaskDecoder(
        encoder.tokens, e.width, e.norm.eps, h.steps, h.max_length
    ),
}


def _choose(table: Mapping[Any, Any], variant: object) -> Any:
    """The maker of a variant: shipped, or a user's class, which is called with the same arguments."""
    made = table.get(type(variant)) or user_modules().get(type(variant))  # type: ignore[arg-type]
    if made is None:
        file = sys.modules[type(variant).__module__].__file__
        raise SpecError(f"{file}: modules() has no module for {type(variant).__name__}")
    return made


def build_encoder(encoder: spec.Encoder, vocabulary: int) -> Encoder:
    """The encoder of a spec with `vocabulary` ids, parameters not yet initialised."""
    place = _choose(POSITION, encoder.position)(encoder.position, encoder)
    if isinstance(encoder.attention, spec.Disentangled) and (encoder.attention.c2p or encoder.attention.p2c):
        place.relative = _relative_table(encoder.attention, encoder)
    make_attention = _choose(ATTENTION, encoder.attention)
    make_feed_forward = _choose(FEED_FORWARD, encoder.feed_forward)
    make_block = _choose(BLOCK, encoder.norm)
    blocks = [
        make_block(
            make_attention(encoder.attention, encoder, layer, place),
            make_feed_forward(encoder.feed_forward, encoder),
            encoder.width,
            encoder.norm.eps,
            encoder.dropout,
        )
        for layer in range(encoder.layers)
    ]
    post = make_block.normalises_output
    norm, nothing = nn.LayerNorm(encoder.table_width if post else encoder.width, encoder.norm.eps), nn.Identity()
    first, last = (norm, nothing) if post else (nothing, norm)
    beside = None
    if encoder.convolution is not None:
        beside = Convolution(encoder.width, encoder.convolution, encoder.norm.eps, encoder.dropout)
    return Encoder(
        vocabulary,
        encoder.width,
        encoder.table_width,
        encoder.segments,
        place,
        blocks,
        first,
        last,
        encoder.dropout,
        beside,
        # A user's parts may do more than the shipped ones, which but for attention act on each token alone.
        padded=beside is not None
        or any(
            type(part) not in shipped
            for part, shipped in (
                (encoder.attention, ATTENTION),
                (encoder.feed_forward, FEED_FORWARD),
                (encoder.norm, BLOCK),
            )
        ),
    )


def _relative_table(attention: spec.Disentangled, encoder: spec.Encoder) -> position.RelativeTable:
    norm = nn.LayerNorm(encoder.width, encoder.norm.eps) if attention.table_norm else nn.Identity()
    return position.RelativeTable(
        encoder.width, attention.max_distance, attention.buckets, norm, encoder.dropout, attention.clamp_distance
    )


def build_head(encoder: spec.Encoder, module: Encoder) -> nn.Module:
    """The vocabulary head of a spec, tied to `module`'s token embedding."""
    head: nn.Module = _choose(HEAD, encoder.head)(encoder.head, encoder, module)
    return head


def build_rtd(encoder: spec.Encoder, objective: Rtd, vocabulary: int) -> GeneratorAndDiscriminator:
    """Both networks of replaced-token detection with their heads, their tables apart; `share` joins them."""
    small = objective.generator.encoder(encoder)
    generator, discriminator = build_encoder(small, vocabulary), build_encoder(encoder, vocabulary)
    head = None if objective.discriminator == "replace-mlm" else RTD_HEAD[objective.head](encoder)
    vocabulary_head = None if objective.detects else build_head(encoder, discriminator)
    return GeneratorAndDiscriminator(generator, build_head(small, generator), discriminator, head, vocabulary_head)
