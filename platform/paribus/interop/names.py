"""The weights of our encoders and heads under the names of `transformers`, and back: a table a family.

A name stands for a tensor, or for the weight and the bias of a module; three for one are queries, keys and values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paribus.errors import DataError
from paribus.interop.config import first_position
from paribus.spec import model as spec

Names = Mapping[str, str | tuple[str, ...]]
Weights = dict[str, Tensor]

EMBEDDINGS: Names = {
    "tokens": "embeddings.word_embeddings",
    "segments": "embeddings.token_type_embeddings",
    "position.places": "embeddings.position_embeddings.weight",
    "first_norm": "embeddings.LayerNorm",
}
LAYER: Names = {
    "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
RELATIVE: Names = {"position.relative.table": "encoder.rel_embeddings.weight"}
TRUNK: Mapping[str, Names] = {
    "bert": EMBEDDINGS,
    "roberta": EMBEDDINGS,
    "electra": {**EMBEDDINGS, "project": "embeddings_project"},
    "deberta": {**EMBEDDINGS, **RELATIVE},
    "deberta-v2": {
        **EMBEDDINGS,
        **RELATIVE,
        "position.relative.norm": "encoder.LayerNorm",
        "convolution.convolution": "encoder.conv.conv",
        "convolution.norm": "encoder.conv.LayerNorm",
    },
}
LAYERS: Mapping[str, Names] = {
    "bert": LAYER,
    "roberta": LAYER,
    "electra": LAYER,
    "deberta": {
        **LAYER,
        "attention.qkv": "attention.self.in_proj",
        "attention.qkv.query_value_bias": ("attention.self.q_bias", "attention.self.v_bias"),
        "attention.position_key": "attention.self.pos_proj",
        "attention.position_query": "attention.self.pos_q_proj",
    },
    "deberta-v2": {
        **LAYER,
        "attention.qkv": ("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"),
        "attention.position_key": "attention.self.pos_key_proj",
        "attention.position_query": "attention.self.pos_query_proj",
    },
}
# The vocabulary head, whose matrix is the token table.
MASKED: Names = {
    "head.dense": "cls.predictions.transform.dense",
    "head.norm": "cls.predictions.transform.LayerNorm",
    "head.bias": "cls.predictions.bias",
}
PAIR: Names = {"sentence_head.dense": "pooler.dense", "sentence_head.out": "cls.seq_relationship"}
HEADS: Mapping[str, Names] = {
    "bert": {**MASKED, **PAIR},
    "roberta": {"head.dense": "lm_head.dense", "head.norm": "lm_head.layer_norm", "head.bias": "lm_head.bias"},
    "electra": {
        "head.dense": "generator_predictions.dense",
        "head.norm": "generator_predictions.LayerNorm",
        "head.bias": "generator_lm_head.bias",
    },
    "deberta": MASKED,
    "deberta-v2": MASKED,
}
DISCRIMINATOR: Names = {
    "head.dense": "discriminator_predictions.dense",
    "head.out": "discriminator_predictions.dense_prediction",
}


@dataclass(frozen=True)
class Rule:
    """One tensor of ours and those of theirs that hold the same numbers."""

    ours: str
    theirs: tuple[str, ...]
    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor], Sequence[Tensor]]


def prefix_of(family: str) -> str:
    """What the names of a trunk begin with inside a model with a head."""
    return {"deberta-v2": "deberta"}.get(family, family) + "."


def rules(family: str, encoder: spec.Encoder, pad: int, discriminator: bool = False) -> Iterator[Rule]:
    """Every rule of a family; those whose tensor of ours an encoder lacks do not apply to it."""
    inside = prefix_of(family)
    trunk = dict(TRUNK[family].items())
    for layer in range(encoder.layers):
        for name, of in LAYERS[family].items():
            each = (of,) if isinstance(of, str) else of
            trunk[f"blocks.{layer}.{name}"] = tuple(f"encoder.layer.{layer}.{other}" for other in each)
    heads = DISCRIMINATOR if discriminator else HEADS[family]
    for name, of in [*trunk.items(), *heads.items()]:
        each = (of,) if isinstance(of, str) else of
        if name in trunk or each == ("pooler.dense",):
            each = tuple(inside + other for other in each)
        for end in ("", ".weight", ".bias"):
            yield _rule(name + end, tuple(other + end for other in each), family, encoder, pad)


def _rule(ours: str, theirs: tuple[str, ...], family: str, encoder: spec.Encoder, pad: int) -> Rule:
    heads, skipped = encoder.heads, first_position(family, pad)
    if family == "deberta" and ours.endswith("qkv.weight"):  # theirs go head by head
        return Rule(
            ours,
            theirs,
            lambda of: of[0].reshape(heads, 3, -1, encoder.width).transpose(0, 1).flatten(0, 2),
            lambda of: [of.reshape(3, heads, -1, encoder.width).transpose(0, 1).flatten(0, 2)],
        )
    if ours == "position.places" and skipped:
        return Rule(
            ours,
            theirs,
            lambda of: of[0][skipped:],
            lambda of: [torch.cat([of.new_zeros(skipped, of.shape[1]), of])],
        )
    attention = encoder.attention
    if ours == "position.relative.table" and isinstance(attention, spec.Disentangled):
        if attention.buckets and attention.clamp_distance:  # theirs reads row 0 where ours reads row 1, and never row 0
            return Rule(ours, theirs, lambda of: of[0], lambda of: [torch.cat([of[1:2], of[1:]])])
    return Rule(ours, theirs, torch.cat, lambda of: of.chunk(len(theirs)))  # type: ignore[arg-type]


def to_theirs(ours: Weights, found: Iterable[Rule]) -> Weights:
    """Their names and numbers of `ours`. Each of ours must have a rule."""
    by_name = {rule.ours: rule for rule in found}
    theirs: Weights = {}
    for name, tensor in ours.items():
        rule = by_name[name]
        theirs |= {other: part.contiguous() for other, part in zip(rule.theirs, rule.split(tensor), strict=True)}
    return theirs


def to_ours(theirs: Weights, found: Iterable[Rule], expected: Mapping[str, Tensor], where: str) -> Weights:
    """Our names and numbers for `expected`, whose shapes count. DataError names what is missing or otherwise."""
    by_name = {rule.ours: rule for rule in found}
    ours = {}
    for name, like in expected.items():
        rule = by_name.get(name)
        missing = [other for other in rule.theirs if other not in theirs] if rule else [name]
        if rule is None or missing:
            raise DataError(f"{where}: has no tensor {missing[0]!r}, which its config.json asks for")
        ours[name] = rule.join([theirs[other] for other in rule.theirs]).to(torch.float32)
        if ours[name].shape != like.shape:
            raise DataError(
                f"{where}: {', '.join(rule.theirs)}: found shape {tuple(ours[name].shape)}, "
                f"config.json asks for {tuple(like.shape)}"
            )
    return ours


def renamed(theirs: Weights, family: str) -> Weights:
    """`theirs` as models with a head name them today: the trunk below its prefix, norms with weight and bias."""
    inside, heads = prefix_of(family), ("cls.", "lm_head.", "lm_predictions.", "mask_predictions.")
    electra = ("generator_predictions.", "generator_lm_head.", "discriminator_predictions.")
    found = {}
    for name, tensor in theirs.items():
        new = name if name.startswith((inside, *heads, *electra)) else inside + name
        found[new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return found
