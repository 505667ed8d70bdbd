"""The device's memory: how much of it is in use, and what to do when it runs out."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from paribus.errors import ParibusError

T = TypeVar("T")


def peak_mb() -> float:
    """The most memory (MiB) that tensors of this process, and room kept for them, took on its GPU; 0 without one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0.0
    return sum(torch.cuda.max_memory_reserved(number) for number in range(torch.cuda.device_count())) / 2**20


def free() -> None:
    """Give back what is kept for tensors to come, and measure anew from here on."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()
        for number in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(number)


def too_small() -> ParibusError:
    """What there is to say when a single row runs out of memory."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "this device"
    return ParibusError(f"out of memory: a single row does not fit on {where}; take a larger device or a smaller model")


def in_parts(compute: Callable[[Any], T], items: Any) -> Iterator[T]:
    """`compute(items)`, or of as many parts of them, in their order, as the memory makes necessary."""
    try:
        found = [compute(items)]
    except torch.OutOfMemoryError:
        found = []  # tried again outside, where the failed attempt's tensors are gone
    if not found:
        if len(items) < 2:
            raise too_small()
        free()
        half = len(items) // 2
        for part in (items[:half], items[half:]):
            yield from in_parts(compute, part)
    yield from found
