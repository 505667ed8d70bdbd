"""Batches as tensors."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import register_pytree_node

A = TypeVar("A")
B = TypeVar("B")


class Tensors:
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

    def to(self, device: torch.device, **options: Any) -> Self:
        """The same on `device`."""
        return replace(self, **{n: t.to(device, non_blocking=True) for n, t in self.tensors().items()})  # type: ignore[type-var]

    def pin_memory(self) -> Self:
        """The same in memory that a GPU reads while this process goes on."""
        return replace(self, **{n: t.pin_memory() for n, t in self.tensors().items()})  # type: ignore[type-var]


def ahead(items: Iterable[A], make: Callable[[A], B]) -> Iterator[B]:
    """What is made of each item: the next in a thread, while the last is used."""
    coming = None
    with ThreadPoolExecutor(1) as thread:
        for item in items:
            made, coming = coming, thread.submit(make, item)
            if made:
                yield made.result()
        if coming:
            yield coming.result()
