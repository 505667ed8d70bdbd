"""Batches as tensors, and made while the one before is used."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

A = TypeVar("A")


class Moved:
    """Base of a frozen dataclass that goes to a device: with its tensors, with what is of this class, and with tuples
    of either."""

    def to(self, device: torch.device) -> Self:
        """The same on `device`."""
        return self._each(lambda t: t.to(device, non_blocking=True) if isinstance(t, Tensor) else t.to(device))

    def pin_memory(self) -> Self:
        """The same in memory that a GPU reads while this process goes on."""
        return self._each(lambda there: there.pin_memory())

    def _each(self, move: Callable[[Any], Any]) -> Self:
        def moved(there: Any) -> Any:
            if isinstance(there, tuple):
                return tuple(map(moved, there))
            return move(there) if isinstance(there, Tensor | Moved) else there

        return replace(self, **{f.name: moved(getattr(self, f.name)) for f in fields(self)})  # type: ignore[arg-type, type-var]


class Tensors(Moved):
    """Base of a frozen dataclass of tensors, None where one is not there. CUDA graphs take it as an input."""

    def __init_subclass__(cls) -> None:
        def unflatten(tensors: Iterable[Tensor], names: tuple[str, ...]) -> Any:
            there = dict(zip(names, tensors, strict=True))
            return cls(**{field.name: there.get(field.name) for field in fields(cls)})  # type: ignore[arg-type]

        # A graph holds tensors of its own in its place.
        register_pytree_node(cls, lambda of: (list(of.tensors().values()), tuple(of.tensors())), unflatten)

    def tensors(self) -> dict[str, Tensor]:
        """By name, those that are there."""
        return {f.name: tensor for f in fields(self) if (tensor := getattr(self, f.name)) is not None}  # type: ignore[arg-type]


B = TypeVar("B", bound=Moved)


def ahead(items: Iterable[A], make: Callable[[A], B], pinned: bool = False) -> Iterator[B]:
    """What is made of each item: the next in a thread, while the last is used; `pinned` where a GPU will read it."""

    def ready(item: A) -> B:
        return make(item).pin_memory() if pinned else make(item)

    coming = None
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            made, coming = coming, thread.submit(ready, item)
            if made:
                yield made.result()
        if coming:
            yield coming.result()
