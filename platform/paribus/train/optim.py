"""Spec to optimizer, parameter groups and schedule."""

import math
from collections.abc import Callable
from inspect import unwrap
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from paribus.spec.optim import AdamW, Constant, Cosine, Linear, Optimizer, Schedule


def decayed(parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices, not to biases and norms. By shape, since names miss some norms."""
    return parameter.ndim >= 2


# Of so many steps both bias corrections are 1, for any beta up to 0.999999, and counting on stays there in fp32.
FOREVER = 2.0**24


class PlainAdamW(torch.optim.AdamW):
    """torch's AdamW, which is never compiled: without the guards of its methods, which load the compiler to ask whether
    they are.
    """

    add_param_group = unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = unwrap(torch.optim.AdamW.zero_grad)
    state_dict = unwrap(torch.optim.AdamW.state_dict)
    load_state_dict = unwrap(torch.optim.AdamW.load_state_dict)
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class UncorrectedAdamW(PlainAdamW):
    """AdamW without bias correction: its first step is counted as one after very many, of which none moved a moment.

    Devlin et al. 2019, reference code, AdamWeightDecayOptimizer.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for parameter in (parameter for group in self.param_groups for parameter in group["params"]):
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.full((), FOREVER, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        return super().step(closure)


def make_optimizer(
    spec: Optimizer, module: nn.Module, share: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.Optimizer:
    """The optimizer of a spec over the parameters of `module`; `share` of the learning rate is that of a name."""
    assert isinstance(spec, AdamW)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        decay = spec.weight_decay if spec.decay_norm_and_bias or decayed(parameter) else 0.0
        groups.setdefault((share(name), decay), []).append(parameter)
    # The highest rate first: it is the one that is recorded.
    made = [
        {"params": groups[part, decay], "lr": part * spec.lr, "weight_decay": decay}
        for part, decay in sorted(groups, reverse=True)
    ]
    options: Any = {"lr": spec.lr, "betas": (spec.beta1, spec.beta2), "eps": spec.eps}
    return (PlainAdamW if spec.bias_correction else UncorrectedAdamW)(made, **options, fused=True)


def lr_factor(spec: Schedule, step: float, steps: int) -> float:
    """The share of the peak learning rate after `step` of `steps` optimizer steps.

    Up to 1 at the end of the warm-up, then (but for `constant`) down to 0 when the budget ends.
    """
    assert isinstance(spec, Linear | Constant | Cosine)
    warmup = spec.warmup * steps
    if step < warmup:
        return step / warmup
    left = (steps - step) / (steps - warmup)
    match spec:
        case Constant():
            return 1.0
        case Cosine():
            return (1 - math.cos(math.pi * left)) / 2
        case Linear(join="jump"):
            return (steps - step) / steps
    return left


def make_schedule(spec: Schedule, optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """The schedule of a spec over `steps` optimizer steps."""
    # Each update takes the rate at its own middle, so neither the first nor the last is lost to a rate of 0.
    return LambdaLR(optimizer, lambda done: lr_factor(spec, done + 0.5, steps))
