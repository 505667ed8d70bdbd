"""Replaced-token detection: a generator, a discriminator, and the embedding tables they share.

He et al. 2021, arXiv:2111.09543, section 3.2.  The discriminator is called `encoder`, as every encoder that is
fine-tuned; the generator's vocabulary head is tied to the generator's own token table in all three ways of sharing.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from paribus.nn.encoder import Encoder
from paribus.nn.position import AbsolutePosition
from paribus.nn.unpadded import Padding

Table = tuple[nn.Module, str]

_kinds: dict[tuple[object, ...], type[nn.Module]] = {}
"""Of modules with parametrized tables, by what they were and the names of these."""


class GeneratorAndDiscriminator(nn.Module):
    """The two networks and their heads."""

    def __init__(
        self,
        generator: Encoder,
        generator_head: nn.Module,
        encoder: Encoder,
        head: nn.Module | None,
        vocabulary_head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        # The generator first: a table that is one for both is then its table by name, as in the other two ways.
        self.generator, self.generator_head = generator, generator_head
        self.encoder, self.head, self.vocabulary_head = encoder, head, vocabulary_head

    def predict(self, tokens_BT: Tensor, segments_BT: Tensor | None, padding: Padding, places_M: Tensor) -> Tensor:
        """The generator's logits (M, V) at the masked places."""
        logits_MV: Tensor = self.generator_head(self.generator.states(tokens_BT, segments_BT, padding), places_M)
        return logits_MV

    def detect(self, tokens_BT: Tensor, segments_BT: Tensor | None, padding: Padding) -> Tensor:
        """The discriminator's logit (B, T) that a token was replaced."""
        assert self.head is not None
        logits_BT: Tensor = self.head(self.encoder(tokens_BT, segments_BT, padding))
        return logits_BT

    def restore(
        self, tokens_BT: Tensor, segments_BT: Tensor | None, padding: Padding, places_N: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Of an encoder that predicts: logits (N, V) of the original tokens, and where it may copy the logit (N,)."""
        assert self.vocabulary_head is not None
        states = self.encoder.states(tokens_BT, segments_BT, padding)
        copy_N = None if self.head is None else self.head(states.last_BTD).flatten()[places_N]
        return self.vocabulary_head(states, places_N), copy_N

    def share(self, sharing: Literal["es", "nes", "gdes"], shared: Literal["tokens", "all"]) -> None:
        """Join the tables of the two, which have their first values."""
        if sharing == "nes":
            return
        mine = tables(self.encoder, shared)
        for name, (owner, attribute) in tables(self.generator, shared).items():
            module, _ = mine[name]
            if sharing == "es":
                setattr(module, attribute, getattr(owner, attribute))
            else:
                parametrize.register_parametrization(module, attribute, Disentangled(owner, attribute))
        if sharing == "gdes":
            # torch makes a class for each module, and what was compiled for a class is not taken for another.
            for module in {module for module, _ in mine.values()}:
                kind = type(module)
                names = tuple(name for name, _ in module.get_submodule("parametrizations").named_children())
                module.__class__ = _kinds.setdefault((kind.__bases__, names), kind)

    def discriminator_state(self) -> dict[str, Tensor]:
        """The discriminator's encoder with plain tables: E_G + E_delta where they are disentangled."""
        found = {}
        for name in self.encoder.state_dict():
            plain = name.replace("parametrizations.", "").removesuffix(".original")
            owner, _, attribute = plain.rpartition(".")
            found[plain] = getattr(self.encoder.get_submodule(owner), attribute).detach()
        return found


class Disentangled(nn.Module):
    """sg(E_G) + E_delta in place of a table E_D: what moves the discriminator's table does not move the generator's."""

    def __init__(self, owner: nn.Module, attribute: str) -> None:
        super().__init__()
        self._table = [owner], attribute  # in a list: it belongs to the generator

    def forward(self, delta: Tensor) -> Tensor:
        (owner,), attribute = self._table
        table: Tensor = getattr(owner, attribute)
        return table.detach() + delta

    def right_inverse(self, table: Tensor) -> Tensor:
        """What E_delta starts from, whatever E_D started from."""
        return torch.zeros_like(table)


def tables(encoder: Encoder, shared: Literal["tokens", "all"]) -> dict[str, Table]:
    """By name, the module and attribute of what is shared: see `Rtd.shared`."""
    found: dict[str, Table] = {"tokens": (encoder.tokens, "weight")}
    if shared == "all":
        if encoder.segments is not None:
            found["segments"] = encoder.segments, "weight"
        if isinstance(encoder.position, AbsolutePosition):
            found["places"] = encoder.position, "places"
        if isinstance(encoder.first_norm, nn.LayerNorm):
            found["norm"], found["norm bias"] = (encoder.first_norm, "weight"), (encoder.first_norm, "bias")
    return found


@torch.no_grad()
def sample(logits_MV: Tensor, draws_M: Tensor) -> Tensor:
    """A token a place from softmax(logits): the one in whose part of [0, 1) the place's uniform draw lies."""
    cumulative_MV = logits_MV.float().softmax(-1).cumsum(-1)
    at_M = draws_M * cumulative_MV[:, -1]
    found_M1 = torch.searchsorted(cumulative_MV, at_M[:, None], right=True)
    return found_M1[:, 0].clamp(max=logits_MV.shape[1] - 1)


def corrupt(tokens_BT: Tensor, places_M: Tensor, sampled_M: Tensor, asked_M: Tensor | None = None) -> Tensor:
    """`tokens_BT` with the samples at the masked places, kept or masked; only at those that are `asked_M`, if told."""
    if asked_M is None:
        return tokens_BT.flatten().scatter(0, places_M, sampled_M).view_as(tokens_BT)
    return put(tokens_BT, places_M, sampled_M, asked_M)


def put(there: Tensor, places: Tensor, values: Tensor, asked: Tensor) -> Tensor:
    """`there` with `values` at the places, of it flattened, that are asked."""
    flat = there.flatten()
    spare = torch.where(asked, places, len(flat)).flatten()  # one place more, for what is not asked
    return torch.cat([flat, flat[:1]]).scatter(0, spare, values.flatten())[:-1].view_as(there)
