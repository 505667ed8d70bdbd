"""Which GPUs there are, and which worker gets which: a slot is a worker process pinned to its cards.

Asks nvidia-smi, since whoever starts workers does not load torch.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paribus import nvidia
from paribus.errors import ParibusError
from paribus.spec.run import Runtime

PACKED = 8
"""Workers a card where measured memory decides how many of them work at once; never more than CPU cores."""


@dataclass(frozen=True)
class Card:
    """A GPU."""

    uuid: str
    name: str
    memory_mb: int


@dataclass(frozen=True)
class Slot:
    """Where a worker process works: on these cards and no others, or, without any, on what its runtime says."""

    cards: tuple[Card, ...] = ()
    packed: bool = False
    """Whether it takes a run only if that fits beside those that are on its cards."""

    @property
    def environment(self) -> dict[str, str]:
        """What the process is started with."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(card.uuid for card in self.cards)} if self.cards else {}


ANYWHERE = Slot()


def visible() -> list[Card]:
    """The GPUs of this machine that CUDA_VISIBLE_DEVICES leaves, in the order in which CUDA then numbers them."""
    there = [Card(uuid, name, int(memory)) for uuid, name, memory in nvidia.ask("uuid", "name", "memory.total")]
    return allowed(there, os.environ.get("CUDA_VISIBLE_DEVICES"))


def allowed(there: Sequence[Card], asked: str | None) -> list[Card]:
    """The cards that a value of CUDA_VISIBLE_DEVICES leaves: by number or UUID, up to the first that is not there."""
    if asked is None:
        return list(there)
    found: list[Card] = []
    for name in asked.split(","):
        numbered = there[int(name) : int(name) + 1] if name.strip().isdecimal() else []
        named = [card for card in there if len(name.strip()) > 4 and card.uuid.startswith(name.strip())]
        if len(matching := [*numbered, *named]) != 1:
            break
        found += matching
    return found


def slots(
    workers: int, gpus: str | None, per_gpu: str, runtime: Runtime, cards: Callable[[], Sequence[Card]] = visible
) -> list[Slot]:
    """One slot a worker process. `gpus`: `all`, numbers as `0,2`, or None for none pinned; `per_gpu`: a number, `auto`.

    With several devices a run, a slot has as many cards. ParibusError if a card asked for is not there.
    """
    several = runtime.devices > 1 and runtime.device in ("auto", "cuda")
    if gpus is None and per_gpu != "1":
        raise ParibusError(f"--per-gpu {per_gpu}: needs --gpus, `all` or numbers as 0,2")
    if gpus is None and not (several and cards()):
        return [ANYWHERE] * workers
    if gpus is not None and workers > 1:
        raise ParibusError(f"--workers {workers}: with --gpus, workers follow from --per-gpu; leave one of them out")
    if runtime.device not in ("auto", "cuda"):
        raise ParibusError(f"--device {runtime.device}: with --gpus, expected auto or cuda")
    chosen = _chosen("all" if gpus is None else gpus, cards())
    each = runtime.devices
    if len(chosen) < each:
        raise ParibusError(f"--devices {each}: needs as many GPUs a run, found {len(chosen)}")
    groups = [tuple(chosen[start : start + each]) for start in range(0, len(chosen) - each + 1, each)]
    if gpus is None:
        groups = groups[:workers]
    if per_gpu == "auto":
        count = max(1, min(PACKED, (os.cpu_count() or 1) // len(chosen)))
    elif per_gpu.isdecimal() and int(per_gpu) > 0:
        count = int(per_gpu)
    else:
        raise ParibusError(f"--per-gpu {per_gpu}: expected a number from 1, or auto")
    # Card by card, so that few runs spread over many cards.
    return [Slot(group, per_gpu == "auto") for _ in range(count) for group in groups]


def _chosen(asked: str, there: Sequence[Card]) -> list[Card]:
    if not there:
        raise ParibusError(f"--gpus {asked}: no GPU is visible here; leave it out to use the CPU, with --workers N")
    if asked == "all":
        return list(there)
    numbers = asked.split(",")
    for number in numbers:
        if not number.strip().isdecimal():
            raise ParibusError(f"--gpus {asked}: expected `all` or numbers as 0,2")
        if int(number) >= len(there):
            raise ParibusError(f"--gpus {asked}: no GPU {int(number)}; {_there(len(there))}, numbered from 0")
    if len(set(map(int, numbers))) < len(numbers):
        raise ParibusError(f"--gpus {asked}: a GPU is named twice")
    return [there[int(number)] for number in numbers]


def _there(count: int) -> str:
    return f"{count} GPU{'s' if count > 1 else ''} {'are' if count > 1 else 'is'} visible here"
