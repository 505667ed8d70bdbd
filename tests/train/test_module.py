"""One optimizer step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from paribus.seeds import seed_for
from paribus.spec.optim import AdamW, Linear
from paribus.spec.run import Runtime
from paribus.store.store import read_jsonl
from paribus.train.fit import fit
from paribus.train.module import Losses, Trained
from paribus.train.passes import Parts
from paribus.train.watch import Watch

CPU = Runtime(device="cpu")


class Line(Trained):
    """Fits y = 0 from x = 1 with dropout; remembers what it dropped."""

    def __init__(self, steps: int, seed: int = 0, clip: float = 0.0, scale: float = 1.0) -> None:
        super().__init__(AdamW(lr=0.1, clip=clip), Linear(warmup=0.0), steps, seed, "test")
        self.weight = nn.Parameter(torch.ones(8, 1))
        self.scale = scale
        self.kept: list[list[bool]] = []
        self.gradient_norms: list[float] = []

    def transfer_batch_to_device(self, batch: list[float], *_: object) -> list[float]:
        return batch

    def training_step(self, parts: list[float], _: int) -> None:
        self.update(parts, self._losses)
        assert self.weight.grad is not None
        self.gradient_norms.append(self.weight.grad.norm().item())

    def _losses(self, parts: list[float]) -> Losses:
        for part in parts:
            yield self.passes(self._part, part)

    def _part(self, part: float) -> Parts:
        kept = F.dropout(self.weight, 0.5)
        self.kept.append((kept[:, 0] != 0).tolist())
        loss = part * self.scale * kept.square().sum()
        return loss, {"loss": loss, "part": torch.tensor(part)}


class Batches:
    """The same parts each step. (A list would be taken for several loaders.)"""

    def __init__(self, parts: list[float]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[list[float]]:
        while True:
            yield self.parts


def trained(parts: list[float], steps: int, **options: Any) -> Line:
    module = Line(steps, **options)
    fit(module, Batches(parts), steps, "fp32", CPU)
    return module


def test_dropout_draws_from_a_stream_named_after_the_step() -> None:
    trained([1.0], steps=3)
    assert torch.initial_seed() == seed_for(0, "test", "dropout", 2)


def test_dropout_draws_afresh_each_step_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    one = trained([1.0], 4)
    torch.manual_seed(2)
    again, other = trained([1.0], 4), trained([1.0], 4, seed=1)
    assert one.kept == again.kept != other.kept
    assert len({str(kept) for kept in one.kept}) > 1


def test_parts_are_added_up_over_micro_batches() -> None:
    module = trained([0.25, 0.5], 1)
    assert module.last["part"].item() == 0.75
    assert len(module.kept) == 2 and module.kept[0] != module.kept[1]


@pytest.mark.parametrize("clip", [0.5, 0.0])
def test_gradients_are_clipped_to_the_norm_asked_for_and_zero_clips_nothing(clip: float) -> None:
    module = trained([1.0], 1, clip=clip, scale=100.0)
    norm = module.last["grad_norm"].item()
    assert norm > 100
    assert module.gradient_norms == [pytest.approx(clip or norm, rel=1e-4)]


def test_the_rate_that_is_recorded_is_the_one_the_step_took(tmp_path: Path) -> None:
    module = Line(4)
    fit(module, Batches([1.0]), 4, "fp32", CPU, [Watch(tmp_path, 4, 1, float("inf"))])
    rates = [point["train/lr"] for point in read_jsonl(tmp_path / "curve.jsonl")]
    assert rates == pytest.approx([0.0875, 0.0625, 0.0375, 0.0125])
