"""Parameters and FLOPs of a pretraining, from the real modules on the meta device: no memory, no second formula.

Run as a program (`python -m paribus.nn.count`) it reads [{"encoder": ..., ...}, ...] and prints the costs, so that
planning can ask without loading torch itself.
"""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paribus.errors import ParibusError
from paribus.nn.build import build_encoder, build_head, build_rtd
from paribus.plan.estimate import Cost
from paribus.project import find
from paribus.spec.load import build
from paribus.spec.model import Encoder
from paribus.spec.objective import Rtd


def cost(encoder: Encoder, vocabulary: int, length: int, rate: float, rtd: Rtd | None = None) -> Cost:
    """What one token of a row of `length` costs with a share `rate` predicted, by MLM or as `rtd` says."""
    with torch.device("meta"):
        tokens, places = torch.zeros(1, length, dtype=torch.long), torch.arange(max(1, int(rate * length + 0.5)))
        with FlopCounterMode(display=False) as flops:
            if rtd:
                both = build_rtd(encoder, rtd, vocabulary)
                both.share(rtd.sharing, rtd.shared)
                both.predict(tokens, None, None, places)
                if rtd.detects:
                    both.detect(tokens, None, None)
                else:
                    both.restore(tokens, None, None, torch.arange(length) if rtd.of_all_tokens else places)
                modules: list[nn.Module] = [both]
            else:
                module = build_encoder(encoder, vocabulary)
                modules = [module, build_head(encoder, module)]
                modules[1](module.states(tokens), places)
    parts = [part for module in modules for part in module.modules()]
    tables = [getattr(part, name, None) for part in parts for name in ("tokens", "segments", "position")]
    return Cost(_count(modules), _count(tables), 3 * flops.get_total_flops() / length)


def _count(modules: Iterable[nn.Module | None]) -> int:
    """The parameters of `modules`, each once."""
    return sum({p: p.numel() for module in modules if module is not None for p in module.parameters()}.values())


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """The cost that `paribus.plan.estimate.cost_question` asks for."""
    encoder = build(Encoder, question["encoder"], "encoder")
    rtd = build(Rtd, question["rtd"], "objective") if question.get("rtd") else None
    return asdict(cost(encoder, question["vocabulary"], question["length"], question["rate"], rtd))


def _main() -> int:
    """2: what was asked cannot be built, for a reason that a user can mend."""
    try:
        find()  # a user's own variants are part of the vocabulary
        answers = [answer(question) for question in json.load(sys.stdin)]
    except ParibusError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(answers))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
