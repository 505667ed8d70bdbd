"""Our encoders against those of transformers, by random weights that go over and back."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paribus.errors import DataError, SpecError
from paribus.interop.config import config_of, encoder_of, family_of
from paribus.interop.names import Weights, renamed, rules, to_ours, to_theirs
from paribus.nn.build import RTD_HEAD, build_encoder, build_head
from paribus.nn.encoder import Encoder
from paribus.objectives.module import named, part
from paribus.spec import model as spec

transformers = pytest.importorskip("transformers", reason="needs the extra paribus[hf]")

IDS, LONGEST = 60, 38
SIZES: dict[str, Any] = {
    "vocab_size": IDS,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
BUCKETS = {"position_buckets": 4, "max_relative_positions": 9, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
# The longest row is longer than every reach below: beyond the linear buckets, and beyond the last.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BERT": ("bert", {}),
    "BERT of one segment": ("bert", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "RoBERTa": ("roberta", {"type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "RoBERTa whose padding is id 0": ("roberta", {"type_vocab_size": 1, "pad_token_id": 0}),
    "ELECTRA": ("electra", {"embedding_size": 16}),
    "ELECTRA of one width": ("electra", {"embedding_size": 32}),
    "DeBERTa": ("deberta", {**RELATIVE, "max_relative_positions": 7}),
    "DeBERTa as long as its reach": ("deberta", RELATIVE),
    "DeBERTa by c2p": ("deberta", {**RELATIVE, "max_relative_positions": 7, "pos_att_type": ["c2p"]}),
    "DeBERTa without relative positions": ("deberta", {"type_vocab_size": 2}),
    "DeBERTa v3": ("deberta-v2", {**RELATIVE, **BUCKETS}),
    "DeBERTa v2": ("deberta-v2", {**RELATIVE, "position_buckets": 8, "conv_kernel_size": 3, "conv_act": "gelu"}),
    "DeBERTa v2, exact": ("deberta-v2", {**RELATIVE, "max_relative_positions": 7, "norm_rel_ebd": "layer_norm"}),
    "DeBERTa v2 by p2c": ("deberta-v2", {**RELATIVE, **BUCKETS, "pos_att_type": "p2c", "share_att_key": False}),
    "DeBERTa v2 with places": ("deberta-v2", {**RELATIVE, "position_biased_input": True, "type_vocab_size": 2}),
    "DeBERTa v2 without order": ("deberta-v2", {"position_biased_input": False}),
}


def made(family: str, changes: dict[str, Any], kind: str = "AutoModelForMaskedLM") -> tuple[Any, Any]:
    """A configuration and a model of it whose every number is random and large enough to be seen in the output."""
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **changes})
    model = getattr(transformers, kind).from_config(config).eval()
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        norm = name.lower().endswith(("layernorm.weight", "layer_norm.weight"))
        nn.init.normal_(parameter, float(norm), 0.4 if "embeddings" in name else 0.15, generator=generator)
    return config, model


def converted(config: Any, model: Any) -> tuple[Encoder, nn.Module]:
    """Our encoder and vocabulary head with the model's weights."""
    encoder = encoder_of(config.to_dict(), "config.json")
    module = build_encoder(encoder, IDS)
    head = build_head(encoder, module)
    found = list(rules(config.model_type, encoder, config.pad_token_id))
    theirs = renamed(model.state_dict(), config.model_type)
    module.load_state_dict(to_ours(theirs, iter(found), module.state_dict(), "here"))
    head.load_state_dict(part("head", to_ours(theirs, iter(found), named("head", head), "here")))
    return module.eval(), head.eval()


def rows(length: int, segments: int, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, segments and padding of three rows, one of them full."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(5, IDS, (3, length), generator=generator)
    padding = torch.arange(length) >= torch.tensor([[length], [max(1, length // 2)], [max(1, length - 1)]])
    kinds = torch.randint(0, max(1, segments), (3, length), generator=generator)
    return tokens.masked_fill(padding, pad), kinds, padding


@pytest.mark.parametrize("length", [1, 7, LONGEST])
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_states_and_logits_are_those_of_transformers(case: str, length: int) -> None:
    config, model = made(*CASES[case])
    module, head = converted(config, model)
    tokens, segments, padding = rows(length, config.type_vocab_size, config.pad_token_id)
    expected = model(tokens, attention_mask=(~padding).long(), token_type_ids=segments, output_hidden_states=True)
    states = module.states(tokens, segments, padding)
    logits = head(states, torch.arange(tokens.numel())).view(*tokens.shape, -1)
    assert length == 1 or expected.logits[0].std(0).mean() > 0.1  # places and rows differ
    assert torch.allclose(states.last_BTD[~padding], expected.hidden_states[-1][~padding], rtol=0, atol=1e-5)
    assert torch.allclose(logits[~padding], expected.logits[~padding], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_discriminator_says_what_that_of_transformers_says() -> None:
    config, model = made("electra", {"embedding_size": 16}, "AutoModelForPreTraining")
    encoder = encoder_of(config.to_dict(), "config.json")
    module, head = build_encoder(encoder, IDS).eval(), RTD_HEAD["electra"](encoder)
    found = list(rules("electra", encoder, 0, discriminator=True))
    module.load_state_dict(to_ours(model.state_dict(), iter(found), module.state_dict(), "here"))
    head.load_state_dict(part("head", to_ours(model.state_dict(), iter(found), named("head", head), "here")))
    tokens, segments, padding = rows(7, 2, 0)
    expected = model(tokens, attention_mask=(~padding).long(), token_type_ids=segments).logits
    assert torch.allclose(head(module(tokens, segments, padding))[~padding], expected[~padding], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_what_came_over_goes_back_as_it_was(case: str) -> None:
    config, model = made(*CASES[case])
    module, head = converted(config, model)
    encoder, family = encoder_of(config.to_dict(), "config.json"), config.model_type
    ours: Weights = {**module.state_dict(), **named("head", head)}
    back = to_theirs(ours, rules(family, encoder, config.pad_token_id))
    theirs = renamed(model.state_dict(), family)
    if family == "roberta":  # rows that no token is at
        back["roberta.embeddings.position_embeddings.weight"][: config.pad_token_id + 1] = theirs[
            "roberta.embeddings.position_embeddings.weight"
        ][: config.pad_token_id + 1]
    tied = {name for name in theirs if "decoder" in name or name == "generator_lm_head.weight"}
    assert back.keys() == theirs.keys() - tied
    assert all(torch.equal(back[name], theirs[name]) for name in back)


@pytest.mark.parametrize("case", CASES)
def test_a_configuration_goes_over_and_back(case: str) -> None:
    config, _ = made(*CASES[case])
    encoder = encoder_of(config.to_dict(), "config.json")
    family = family_of(encoder, discriminator=False)
    again = transformers.AutoConfig.for_model(family, **config_of(encoder, family, IDS, 40))
    assert encoder_of(again.to_dict(), "config.json").model_dump(exclude={"attention"}) == encoder.model_dump(
        exclude={"attention"}
    )
    if family == config.model_type:  # the others compute the same: BERT of one segment is RoBERTa
        assert encoder_of(again.to_dict(), "config.json") == encoder


@torch.no_grad()
def test_clamped_distances_go_over_as_a_row_that_is_there_twice() -> None:
    config, model = made("deberta-v2", {**RELATIVE, **BUCKETS})
    encoder = encoder_of(config.to_dict(), "config.json")
    assert isinstance(encoder.attention, spec.Disentangled)
    clamped = encoder.model_copy(update={"attention": encoder.attention.model_copy(update={"clamp_distance": True})})
    module = build_encoder(clamped, IDS).eval()
    theirs = {name: tensor for name, tensor in renamed(model.state_dict(), "deberta-v2").items()}
    module.load_state_dict(to_ours(theirs, rules("deberta-v2", clamped, 0), module.state_dict(), "here"))
    tokens, _, padding = rows(LONGEST, 0, 0)
    before = model.deberta(tokens, attention_mask=(~padding).long()).last_hidden_state
    model.load_state_dict(to_theirs(module.state_dict(), rules("deberta-v2", clamped, 0)), strict=False)
    after = model.deberta(tokens, attention_mask=(~padding).long()).last_hidden_state
    found = module(tokens, None, padding)
    assert torch.allclose(found[~padding], after[~padding], rtol=0, atol=1e-5)
    assert not torch.allclose(before[~padding], after[~padding], rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("bert", {"hidden_act": "gelu_new"}, "hidden_act: found 'gelu_new', expected 'gelu'"),
        ("bert", {"type_vocab_size": 3}, "segments: found 3"),
        ("bert", {"is_decoder": True}, "is_decoder: found True, expected False"),
        ("deberta", {**RELATIVE, "talking_head": True}, "talking_head: found True, expected False"),
        ("deberta-v2", {**RELATIVE, "embedding_size": 16}, "embedding_size: found 16, expected 32"),
        ("deberta-v2", {**RELATIVE, "conv_kernel_size": 3}, "conv_act: found 'tanh', expected 'gelu'"),
        ("deberta-v2", {**RELATIVE, "position_buckets": 5}, "buckets must be even"),
        ("deberta-v2", {"pos_att_type": ["c2p"]}, "pos_att_type: found ['c2p'] without relative_attention"),
        ("gpt2", {}, "model_type: found 'gpt2', expected one of bert, roberta"),
    ],
)
def test_what_ours_cannot_be_is_refused_by_its_key(family: str, changes: dict[str, Any], said: str) -> None:
    config = transformers.AutoConfig.for_model(family, **({} if family == "gpt2" else SIZES), **changes).to_dict()
    with pytest.raises((DataError, SpecError)) as caught:
        encoder_of(config, "config.json")
    assert str(caught.value).startswith("config.json: ") and said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm": "pre"}, "encoder.norm.kind: 'pre' has no counterpart"),
        ({"position": "alibi"}, "encoder.position.kind: 'alibi' has no counterpart"),
        ({"feed_forward": {"kind": "geglu", "width": 32}}, "encoder.feed_forward.kind: 'geglu' has no counterpart"),
        ({"attention": {"kind": "disentangled", "p2c_index": "paper"}}, "p2c_index: 'paper' has no counterpart"),
        (
            {"attention": {"kind": "disentangled", "key_bias": False, "table_norm": True}},
            "attention.table_norm: True where key_bias is false has no counterpart",
        ),
        ({"embedding_width": 8, "segments": 0}, "encoder.embedding_width: 8 has no counterpart"),
    ],
)
def test_what_transformers_has_not_is_refused_by_its_key(encoder: Any, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        family_of(encoder(**changes), discriminator=False)


def test_a_tensor_of_another_shape_is_named() -> None:
    config, model = made("bert", {})
    encoder = encoder_of({**config.to_dict(), "intermediate_size": 40}, "config.json")
    module = build_encoder(encoder, IDS)
    with pytest.raises(DataError, match=r"bert.encoder.layer.0.intermediate.dense.weight: found shape \(48, 32\)"):
        to_ours(renamed(model.state_dict(), "bert"), rules("bert", encoder, 0), module.state_dict(), "here")
