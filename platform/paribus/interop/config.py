"""The encoder of a spec as a configuration of `transformers`, and back. Plain data: nothing is loaded.

Every value that changes what a model computes is translated or refused by its name; the rest is left to its default.
"""

from collections.abc import Mapping
from typing import Any

from paribus.errors import DataError
from paribus.spec import model as spec
from paribus.spec.load import build

FAMILIES = ("bert", "roberta", "electra", "deberta", "deberta-v2")

# What an encoder of ours always is; a key that is absent is at this value.
ALWAYS = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "tie_word_embeddings": True,
    "talking_head": False,
    "conv_groups": 1,
}


def family_of(encoder: spec.Encoder, discriminator: bool) -> str:
    """The model type that computes what `encoder` does. DataError, naming the key, where none does."""
    attention, position = encoder.attention, encoder.position
    relative = isinstance(attention, spec.Disentangled) and (attention.c2p or attention.p2c)
    for key, value, known in (
        ("norm", encoder.norm, spec.PostNorm),
        ("feed_forward", encoder.feed_forward, spec.Gelu),
        ("position", position, spec.Absolute | spec.Unordered),
        ("attention", attention, spec.FullAttention | spec.Disentangled),
        ("head", encoder.head, spec.BertHead | spec.EnhancedMaskDecoder),
    ):
        if not isinstance(value, known):
            raise _no_counterpart(f"{key}.kind", value.kind)
    if isinstance(attention, spec.Disentangled) and attention.p2c and attention.p2c_index == "paper":
        raise _no_counterpart("attention.p2c_index", "paper")
    keyless = isinstance(attention, spec.Disentangled) and not attention.key_bias
    if relative or keyless or isinstance(position, spec.Unordered) or encoder.segments == 0 or encoder.convolution:
        if encoder.embedding_width not in (None, encoder.width):
            raise _no_counterpart("embedding_width", encoder.embedding_width)
        if not keyless:
            return "deberta-v2"
        assert isinstance(attention, spec.Disentangled)
        if relative:
            for key, none in (("buckets", None), ("share_projections", False), ("table_norm", False)):
                if getattr(attention, key) != none:
                    raise _no_counterpart(f"attention.{key}", getattr(attention, key), " where key_bias is false")
        if encoder.convolution:
            raise _no_counterpart("convolution", encoder.convolution, " where attention.key_bias is false")
        return "deberta"
    if discriminator or encoder.table_width != encoder.width:
        return "electra"
    return "roberta" if encoder.segments == 1 else "bert"


def _no_counterpart(key: str, value: Any, where: str = "") -> DataError:
    return DataError(
        f"encoder.{key}: {value!r}{where} has no counterpart in transformers' BERT, RoBERTa, ELECTRA, DeBERTa"
    )


def config_of(encoder: spec.Encoder, family: str, vocabulary: int, length: int) -> dict[str, Any]:
    """The fields of the configuration of `family`; our ids, so [PAD] is 0. `length`: the longest row."""
    config: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.feed_forward.width,
        "hidden_act": "gelu",
        "hidden_dropout_prob": encoder.dropout,
        "attention_probs_dropout_prob": getattr(encoder.attention, "dropout", 0.0),
        "type_vocab_size": encoder.segments,
        "layer_norm_eps": encoder.norm.eps,
        "initializer_range": encoder.init_std,
        "max_position_embeddings": length,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if isinstance(encoder.position, spec.Absolute):
        config["max_position_embeddings"] = encoder.position.max_length + first_position(family, 0)
    if family == "electra":
        config["embedding_size"] = encoder.table_width
    if family.startswith("deberta"):
        config |= {"position_biased_input": isinstance(encoder.position, spec.Absolute), "relative_attention": False}
        config |= {"pos_att_type": []}
        if encoder.convolution:
            config |= {"conv_kernel_size": encoder.convolution, "conv_act": "gelu"}
        attention = encoder.attention
        if isinstance(attention, spec.Disentangled) and (attention.c2p or attention.p2c):
            config |= {
                "relative_attention": True,
                "pos_att_type": [term for term in ("c2p", "p2c") if getattr(attention, term)],
                "max_relative_positions": attention.max_distance,
            }
            if family == "deberta-v2":
                config |= {
                    "position_buckets": attention.buckets or -1,
                    "share_att_key": attention.share_projections,
                    "norm_rel_ebd": "layer_norm" if attention.table_norm else "none",
                }
    return config


def first_position(family: str, pad: int) -> int:
    """The row of the first place in the table of positions: RoBERTa's begin behind that of padding."""
    return pad + 1 if family == "roberta" else 0


def encoder_of(config: Mapping[str, Any], where: str) -> spec.Encoder:
    """The encoder that a configuration, complete with its defaults, describes. DataError naming what it cannot be."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise DataError(f"{where}: model_type: found {family!r}, expected one of {', '.join(FAMILIES)}")
    _require(config, ALWAYS, where)
    width = config["hidden_size"]
    sizes: dict[str, Any] = {
        "layers": config["num_hidden_layers"],
        "width": width,
        "heads": config["num_attention_heads"],
        "position": {
            "kind": "absolute",
            "max_length": config["max_position_embeddings"] - first_position(family, config["pad_token_id"]),
        },
        "attention": {"kind": "full", "dropout": config["attention_probs_dropout_prob"]},
        "norm": {"kind": "post", "eps": config["layer_norm_eps"]},
        "feed_forward": {"kind": "gelu", "width": config["intermediate_size"]},
        "segments": config["type_vocab_size"],
        "dropout": config["hidden_dropout_prob"],
        "init_std": config["initializer_range"],
    }
    if family == "electra" and config["embedding_size"] != width:
        sizes["embedding_width"] = config["embedding_size"]
    if family.startswith("deberta"):
        sizes |= _deberta(config, where)
    return build(spec.Encoder, sizes, where)


def _deberta(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What DeBERTa has otherwise."""
    heads_width = config["hidden_size"] // config["num_attention_heads"]
    _require(config, {"embedding_size": config["hidden_size"], "attention_head_size": heads_width}, where)
    first = config["model_type"] == "deberta"
    found: dict[str, Any] = {}
    if not config["position_biased_input"]:
        found["position"] = "unordered"
    if kernel := config.get("conv_kernel_size", 0):
        _require(config, {"conv_kernel_size": 0} if first else {"conv_act": "gelu"}, where, absent="tanh")
        found["convolution"] = kernel
    terms = config["pos_att_type"] or []
    if set(terms) - {"c2p", "p2c"} or (terms and not config["relative_attention"]):
        with_it = "" if config["relative_attention"] else " without relative_attention"
        raise DataError(f"{where}: pos_att_type: found {terms}{with_it}, expected c2p, p2c or both with it, or none")
    if not terms and not first:
        return found
    reach = config.get("max_relative_positions", -1)
    buckets = config.get("position_buckets", -1)
    found["attention"] = {
        "kind": "disentangled",
        "dropout": config["attention_probs_dropout_prob"],
        "c2p": "c2p" in terms,
        "p2c": "p2c" in terms,
        "max_distance": reach if reach >= 1 else config["max_position_embeddings"],
        "buckets": None if first or buckets <= 0 else buckets,
        "share_projections": not first and config.get("share_att_key", False),
        "table_norm": not first and "layer_norm" in config.get("norm_rel_ebd", "none").lower(),
        "key_bias": not first,
        "clamp_distance": first or buckets <= 0,
    }
    return found


def _require(config: Mapping[str, Any], values: Mapping[str, Any], where: str, absent: Any = None) -> None:
    for key, value in values.items():
        found = config.get(key, value if absent is None else absent)
        if found != value:
            raise DataError(f"{where}: {key}: found {found!r}, expected {value!r}")
