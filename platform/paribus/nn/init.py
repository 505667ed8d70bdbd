"""First values by name: a parameter starts from a stream of its own, so arms that share a parameter share its start."""

import torch
from torch import nn

from paribus.seeds import seed_for


@torch.no_grad()
def initialise(module: nn.Module, seed: int, std: float, purpose: str = "init") -> None:
    """Normal(0, std) for matrices, 0 for biases, 1 for norms; drawn on the CPU whatever the device.

    A module that has a method `start` is asked last, for what should start otherwise. Vectors and numbers that a user's
    own module holds itself keep the values its constructor gave them.
    """
    for prefix, part in module.named_modules():
        own = type(part).__module__.startswith("paribus_user_")
        for name, parameter in part.named_parameters(prefix, recurse=False):
            if parameter.ndim >= 2:
                generator = torch.Generator().manual_seed(seed_for(seed, purpose, name))
                parameter.copy_(torch.empty(parameter.shape).normal_(0.0, std, generator=generator))
            elif isinstance(part, nn.LayerNorm | nn.RMSNorm) and name.endswith("weight"):
                parameter.fill_(1.0)
            elif not own:
                parameter.zero_()
    for part in module.modules():
        start = getattr(part, "start", None)
        if callable(start):
            start()
