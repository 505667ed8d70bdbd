"""torch's compiler, loaded late: that takes longer than the rest of torch, and it is seldom asked for."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def constant(function: Function) -> Function:
    """Let compiled steps take its answer as it is, as torch.compiler.assume_constant_result does, and load nothing."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection, in all threads; one at a time may ask for it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def compiler() -> Any:
    """torch._dynamo. It is many objects and little garbage, and to look for some takes a fifth of the time."""
    with uncollected():
        import torch._dynamo
    return torch._dynamo
