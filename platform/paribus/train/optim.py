"""Spec to optimizer, parameter groups and schedule."""

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from paribus.spec.optim import AdamW, Constant, Linear, Optimizer, Schedule


def decayed(parameter: nn.Parameter) -> bool:
    """Whether weight decay applies: to matrices, not to biases and norms. By shape, since names miss some norms."""
    return parameter.ndim >= 2


def make_optimizer(spec: Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a spec over the parameters of `module`."""
    assert isinstance(spec, AdamW)
    parameters = list(module.parameters())
    decay = [p for p in parameters if spec.decay_norm_and_bias or decayed(p)]
    plain = [p for p in parameters if not (spec.decay_norm_and_bias or decayed(p))]
    groups = [{"params": decay, "weight_decay": spec.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=spec.lr,
        betas=(spec.beta1, spec.beta2),
        eps=spec.eps,
        fused=True,
    )


def lr_factor(spec: Schedule, step: float, steps: int) -> float:
    """The share of the peak learning rate after `step` of `steps` optimizer steps.

    Up to 1 at the end of the warm-up, then (linear) down to 0 when the budget ends, with no jump where they join.
    """
    assert isinstance(spec, Linear | Constant)
    warmup = spec.warmup * steps
    if step < warmup:
        return step / warmup
    return 1.0 if isinstance(spec, Constant) else (steps - step) / (steps - warmup)


def make_schedule(spec: Schedule, optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """The schedule of a spec over `steps` optimizer steps."""
    # Each update takes the rate at its own middle, so neither the first nor the last is lost to a rate of 0.
    return LambdaLR(optimizer, lambda done: lr_factor(spec, done + 0.5, steps))
