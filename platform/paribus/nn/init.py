"""First values by name: a parameter starts from a stream of its own, so arms that share a parameter share its start."""

import torch
from torch import nn

from paribus.nn.position import Position
from paribus.seeds import seed_for


@torch.no_grad()
def initialise(module: nn.Module, seed: int, std: float, purpose: str = "init") -> None:
    """Normal(0, std) for matrices, 0 for biases, 1 for norms; drawn on the CPU whatever the device."""
    norms = {id(m.weight) for m in module.modules() if isinstance(m, nn.LayerNorm)}
    for name, parameter in module.named_parameters():
        if id(parameter) in norms:
            parameter.fill_(1.0)
        elif parameter.ndim < 2:
            parameter.zero_()
        else:
            generator = torch.Generator().manual_seed(seed_for(seed, purpose, name))
            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
    for part in module.modules():
        if isinstance(part, Position):
            part.start()
