"""The masks of single tokens, drawn where the batch is: the same as those of paribus.data.masking, bit for bit.

The state of a row's stream comes with the batch, so the device goes on where the loader stopped.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from paribus.data.vocabulary import CLS, FIRST_ORDINARY, MASK, SEP, UNK
from paribus.nn.rtd import put
from paribus.objectives.batch import IGNORED, Micro
from paribus.spec.data import Tokens
from paribus.spec.objective import Objective


def drawable(objective: Objective) -> bool:
    """Whether a device can draw the masks of an objective: those of distinct single tokens."""
    return isinstance(objective.unit, Tokens) and objective.unit.drawn == "distinct"


class Draw(nn.Module):
    """Draws masks: shares as in paribus.spec.data.Replacement, random ids from the pool's lowest to `size`."""

    golden: Tensor

    def __init__(self, objective: Objective, size: int) -> None:
        super().__init__()
        found = objective.replacement
        self.mask, self.random, self.size = found.mask, found.random, size
        self.lowest = FIRST_ORDINARY if found.pool == "ordinary" else 0
        self.specials = objective.mask_specials
        # Lies in memory, for a compiler that knew it would take its product with an index for 32 bits.
        self.register_buffer("golden", torch.tensor([GOLDEN]), persistent=False)

    def forward(self, micro: Micro) -> Micro:
        """The same with masks, as many slots a row as there were; as it is where they are drawn already."""
        if micro.stream_B is None or micro.count_B is None:
            return micro
        tokens_BT = micro.tokens_BT
        rows, length = tokens_BT.shape
        slots = len(micro.places_M) // rows
        place_T = torch.arange(length, device=tokens_BT.device)
        steps_T = (place_T + 1) * self.golden
        stream_BT = _mixed(micro.stream_B[:, None] + steps_T)
        row_B1 = torch.arange(rows, device=tokens_BT.device)[:, None]
        first_B1 = length * row_B1

        draws_BT = torch.where(self.candidates(tokens_BT), _uniform(_next(stream_BT, 0)), 2.0)
        asked_BT = _rank(draws_BT, place_T) < micro.count_B[:, None]
        # As the loader has them: those that are asked first, in the order of their places.
        slot_BT = slots * row_B1 + asked_BT.cumsum(1) - 1
        places_M = put(first_B1.expand(rows, slots), slot_BT, first_B1 + place_T, asked_BT).flatten()
        asked_M = (place_T[:slots] < micro.count_B[:, None]).flatten()
        original_M = tokens_BT.flatten()[places_M]

        fate_M = _uniform(_next(stream_BT, 1)).flatten()[places_M]
        drawn_M = _modulo(_next(stream_BT, 2), self.size - self.lowest).flatten()[places_M] + self.lowest
        shown_M = torch.where(fate_M < self.mask + self.random, drawn_M, original_M)
        shown_M = torch.where(fate_M < self.mask, MASK, shown_M)
        # Slots that are not asked stand at the first place of their row, with what stands there.
        shown_BT = put(tokens_BT, places_M, shown_M, asked_M)
        targets_M = torch.where(asked_M, original_M, IGNORED)
        drawn = replace(micro, tokens_BT=shown_BT, places_M=places_M, targets_M=targets_M, stream_B=None, count_B=None)
        if micro.sampling_B is None:
            return drawn
        sampling_BT = _mixed(micro.sampling_B[:, None] + steps_T)
        return replace(drawn, draws_M=_uniform24(sampling_BT).flatten()[places_M], sampling_B=None)

    def candidates(self, tokens_BT: Tensor) -> Tensor:
        """Whether a token may be chosen."""
        found_BT = tokens_BT >= UNK
        return found_BT | (tokens_BT == CLS) | (tokens_BT == SEP) if self.specials else found_BT


def _rank(draws_BT: Tensor, place_T: Tensor) -> Tensor:
    """How many draws of the row are lower, or as high and before. All are compared: compilers choke on sorts."""
    this_BT1, other_B1T = draws_BT[:, :, None], draws_BT[:, None, :]
    before_TT = place_T[None, :] < place_T[:, None]
    return ((other_B1T < this_BT1) | ((other_B1T == this_BT1) & before_TT)).sum(-1)


def _signed(word: int) -> int:
    """Unsigned 64 bits as torch's signed ones, which are added and multiplied alike."""
    return word - 2**64 if word >= 2**63 else word


GOLDEN, FIRST, SECOND = (_signed(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shifted right, zeros from the left."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _next(state: Tensor, counter: int) -> Tensor:
    """One more counter of a stream: paribus.seeds.bits."""
    return _mixed(state + _wrapped((counter + 1) * GOLDEN))


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def _wrapped(number: int) -> int:
    return _signed(number % 2**64)


def _uniform(bits: Tensor) -> Tensor:
    """Uniform in [0, 1): paribus.seeds.uniforms."""
    return _shifted(bits, 11).double() * 2.0**-53


def _uniform24(bits: Tensor) -> Tensor:
    """The same of 24 bits, in fp32: paribus.data.masking.sampling_draws."""
    return _shifted(bits, 40).float() * 2.0**-24


def _modulo(bits: Tensor, size: int) -> Tensor:
    """The remainder of unsigned 64 bits; `size` at most 2**24."""
    high, low = _shifted(bits, 32), bits & (2**32 - 1)
    return (high % size * (2**32 % size) + low) % size
