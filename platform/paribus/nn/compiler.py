"""What is told to torch's compiler without loading it: that takes longer than the rest of torch."""

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def constant(function: Function) -> Function:
    """Let compiled steps take its answer as it is, as torch.compiler.assume_constant_result does."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
