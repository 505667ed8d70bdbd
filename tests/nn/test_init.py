"""First values by name."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from paribus.nn.build import build_encoder, build_head
from paribus.nn.init import initialise
from paribus.spec import model as spec

Make = Callable[..., spec.Encoder]


def start(encoder: spec.Encoder, seed: int = 0) -> dict[str, Tensor]:
    module = build_encoder(encoder, 50)
    both = torch.nn.ModuleDict({"encoder": module, "head": build_head(encoder, module)})
    initialise(both, seed, 0.02)
    return dict(both.named_parameters())


def test_weights_are_normal_biases_zero_and_norms_one() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(768, 768), torch.nn.LayerNorm(768))
    initialise(module, 0, 0.02)
    weight, bias, scale, shift = (parameter.detach() for parameter in module.parameters())
    assert weight.std().item() == pytest.approx(0.02, abs=2e-4) and abs(weight.mean().item()) < 2e-4
    assert (bias == 0).all() and (scale == 1).all() and (shift == 0).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "alibi"},
        {"position": {"kind": "relative-bias"}},
        {"position": {"kind": "relative-bias", "start": "sided"}},
        {"norm": "pre"},
        {"layers": 3},
        {"segments": 0},
        {"dropout": 0.5},
    ],
    ids=str,
)
def test_encoders_that_share_a_parameter_share_its_start(encoder: Make, changes: dict[str, object]) -> None:
    one, other = start(encoder()), start(encoder(**changes))
    shared = one.keys() & other.keys()
    assert len(shared) > 20
    for name in shared:
        assert torch.equal(one[name], other[name]), name


def test_seeds_start_apart_and_no_two_matrices_start_alike(encoder: Make) -> None:
    one, other = start(encoder(), 0), start(encoder(), 1)
    matrices = [name for name, parameter in one.items() if parameter.ndim >= 2]
    assert all(not torch.equal(one[name], other[name]) for name in matrices)
    firsts = {one[name].flatten()[0].item() for name in matrices}
    assert len(firsts) == len(matrices)


def test_the_global_generator_neither_matters_nor_moves(encoder: Make) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    module = build_encoder(encoder(), 50)
    torch.set_rng_state(before)
    initialise(module, 0, 0.02)
    assert torch.equal(torch.get_rng_state(), before)
