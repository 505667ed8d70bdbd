"""Parameters and FLOPs of a pretraining, from the real modules on the meta device: no memory, no second formula.

Run as a program (`python -m paribus.nn.count`) it reads [{"encoder": ..., ...}, ...] and prints the costs, so that
planning can ask without loading torch itself.
"""

import json
import sys
from dataclasses import asdict

import torch
from torch.utils.flop_counter import FlopCounterMode

from paribus.nn.build import build_encoder, build_head
from paribus.plan.estimate import Cost
from paribus.project import find
from paribus.spec.load import build
from paribus.spec.model import Encoder


def cost(encoder: Encoder, vocabulary: int, length: int, rate: float) -> Cost:
    """What one token of a row of `length` costs with a share `rate` predicted."""
    with torch.device("meta"):
        module = build_encoder(encoder, vocabulary)
        head = build_head(encoder, module)
        predicted = max(1, int(rate * length + 0.5))
        with FlopCounterMode(display=False) as flops:
            states = module.states(torch.zeros(1, length, dtype=torch.long))
            head(states, torch.arange(predicted))
    parameters = sum(p.numel() for m in (module, head) for p in m.parameters())
    tables = [module.tokens, module.segments, module.position, getattr(head, "position", None)]
    embedding = sum(p.numel() for m in tables if m is not None for p in m.parameters())
    return Cost(parameters, embedding, 3 * flops.get_total_flops() / length)


if __name__ == "__main__":
    find()  # a user's own variants are part of the vocabulary
    costs = [
        cost(build(Encoder, asked["encoder"], "encoder"), asked["vocabulary"], asked["length"], asked["rate"])
        for asked in json.load(sys.stdin)
    ]
    print(json.dumps([asdict(found) for found in costs]))
