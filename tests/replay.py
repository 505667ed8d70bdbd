"""A stand-in for CUDA graphs where there is no GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from paribus.train import passes


class Replay:
    """Adds to gradients where they were when it was made, of inputs that are tensors, as a CUDA graph does."""

    made = 0

    def __init__(self, compute: Callable[..., Any], inputs: Any, pool: object) -> None:
        Replay.made += 1
        leaves, self._structure = tree_flatten(inputs)
        assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
        self._compute = compute
        self._parameters = list(compute.__self__.parameters())  # type: ignore[attr-defined]
        self._there = [parameter.grad for parameter in self._parameters]

    def __call__(self, leaves: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        loss, parts = self._compute(*self._structure.unflatten(leaves))
        loss.backward()
        for parameter, gradient in zip(self._parameters, self._there, strict=True):
            assert parameter.grad is gradient
        return {name: part.detach().clone() for name, part in parts.items()}


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay takes the place of graphs; none is made yet."""
    monkeypatch.setattr(passes, "Graph", Replay)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(Replay, "made", 0)
