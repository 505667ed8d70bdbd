"""Optimizer, parameter groups and schedule against numbers worked out by hand."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from paribus.nn.build import build_encoder
from paribus.spec import model as spec
from paribus.spec.optim import AdamW, Budget, Constant, Cosine, Linear, Optimizer
from paribus.train.optim import lr_factor, make_optimizer, make_schedule


class Scalar(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1), value))


def step(optimizer: Optimizer, value: float, *gradients: float) -> float:
    """A scalar after updates with these gradients."""
    module = Scalar(value)
    made = make_optimizer(optimizer, module)
    for gradient in gradients:
        module.weight.grad = torch.full((1, 1), gradient)
        made.step()
    return module.weight.item()


def test_the_first_step_of_adam_is_the_learning_rate() -> None:
    # With bias correction m / sqrt(v) is g / |g|; without it would be 3.1623.
    assert step(AdamW(lr=1.0, weight_decay=0.0), 0.0, 1.0) == pytest.approx(-1.0, abs=1e-5)
    assert step(AdamW(lr=1.0, weight_decay=0.0), 0.0, 5.0) == pytest.approx(-1.0, abs=1e-5)


def test_without_bias_correction_steps_are_those_of_berts_code() -> None:
    assert step(AdamW(lr=1.0, weight_decay=0.0, bias_correction=False), 0.0, 1.0) == pytest.approx(-(10**0.5), abs=1e-3)
    m, v, x = 0.0, 0.0, 2.0
    for g in (1.0, -3.0):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        x -= 0.5 * (m / (v**0.5 + 0.01) + 0.1 * x)
    made = AdamW(lr=0.5, beta1=0.8, beta2=0.9, eps=0.01, weight_decay=0.1, bias_correction=False)
    assert step(made, 2.0, 1.0, -3.0) == pytest.approx(x, abs=1e-6)


def test_two_steps_of_adam_as_worked_out_by_hand() -> None:
    m, v, x = 0.0, 0.0, 2.0
    for t, g in enumerate((1.0, -3.0), 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        x -= 0.5 * (m / (1 - 0.8**t) / ((v / (1 - 0.9**t)) ** 0.5 + 0.01) + 0.1 * x)
    made = AdamW(lr=0.5, beta1=0.8, beta2=0.9, eps=0.01, weight_decay=0.1)
    assert step(made, 2.0, 1.0, -3.0) == pytest.approx(x, abs=1e-6)


def test_weight_decay_is_decoupled_from_the_gradient() -> None:
    assert step(AdamW(lr=0.5, weight_decay=0.1), 2.0, 0.0) == pytest.approx(2.0 * (1 - 0.5 * 0.1))


@pytest.mark.parametrize("everything", [False, True])
def test_groups_hold_every_parameter_once_and_decay_what_they_should(
    encoder: Callable[..., spec.Encoder], everything: bool
) -> None:
    module = build_encoder(encoder(position={"kind": "relative-bias"}), 50)
    made = make_optimizer(AdamW(lr=1.0, weight_decay=0.1, decay_norm_and_bias=everything), module)
    held = [parameter for group in made.param_groups for parameter in group["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(module.parameters()))
    decayed = {id(p) for group in made.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {id(p) for p in module.parameters() if everything or p.ndim > 1}


@pytest.mark.parametrize(
    ("done", "linear", "jump", "constant", "cosine"),
    [
        (0, 0, 0, 0, 0),
        (5, 0.5, 0.5, 0.5, 0.5),
        (10, 1, 0.9, 1, 1),
        (40, 2 / 3, 0.6, 1, 3 / 4),  # a third of the way: (1 + cos 60 degrees) / 2
        (55, 0.5, 0.45, 1, 0.5),
        (100, 0, 0, 1, 0),
    ],
)
def test_the_schedule_at_known_points(done: float, linear: float, jump: float, constant: float, cosine: float) -> None:
    assert lr_factor(Linear(warmup=0.1), done, 100) == pytest.approx(linear)
    assert lr_factor(Linear(warmup=0.1, join="jump"), done, 100) == pytest.approx(jump)
    assert lr_factor(Constant(warmup=0.1), done, 100) == pytest.approx(constant)
    assert lr_factor(Cosine(warmup=0.1), done, 100) == pytest.approx(cosine)


@given(st.floats(0, 0.99), st.integers(1, 1000))
def test_the_schedule_has_no_jump_and_spends_half_of_its_peak(warmup: float, steps: int) -> None:
    spec = Linear(warmup=warmup)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = make_schedule(spec, optimizer, steps)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert min(rates) > 0 and max(rates) <= 1
    slope = max(1 / (steps * warmup) if warmup * steps > 1 else 1.0, 1 / (steps - warmup * steps))
    assert all(abs(a - b) <= slope + 1e-9 for a, b in zip(rates, rates[1:], strict=False))
    if warmup == 0:
        assert sum(rates) == pytest.approx(steps / 2)


@pytest.mark.parametrize("batch_tokens", [1024, 8192, 32768])
def test_warm_up_and_decay_follow_the_steps_of_the_batch_size(batch_tokens: int) -> None:
    budget = Budget(train_tokens=2**20, batch_tokens=batch_tokens)
    optimizer = make_optimizer(AdamW(lr=1.0), Scalar(0.0))
    schedule = make_schedule(Linear(warmup=0.1), optimizer, budget.steps)
    for step in range(budget.steps):
        share = (step + 0.5) / budget.steps
        expected = share / 0.1 if share < 0.1 else (1 - share) / 0.9
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)
        optimizer.step()
        schedule.step()


def test_the_optimizer_is_torchs_adamw() -> None:
    both = [Scalar(1.0), Scalar(1.0)]
    ours = make_optimizer(AdamW(lr=0.1, weight_decay=0.1), both[0])
    theirs = torch.optim.AdamW(both[1].parameters(), 0.1, (0.9, 0.999), ours.defaults["eps"], 0.1, fused=True)
    for gradient in (1.0, -2.0, 0.5):
        for module, optimizer in zip(both, (ours, theirs), strict=True):
            optimizer.zero_grad()
            assert module.weight.grad is None
            module.weight.grad = torch.full((1, 1), gradient)
            optimizer.step()
        ours.load_state_dict(deepcopy(theirs.state_dict()))
        assert both[0].weight.item() == both[1].weight.item()
    moments = ours.state_dict()["state"][0]
    assert moments["step"].item() == 3 and moments["exp_avg"] == theirs.state[both[1].weight]["exp_avg"]
