"""Held-out loss: the same places whatever is measured, whenever and in whatever batches."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paribus.evaluate import held_out as module
from paribus.evaluate.held_out import held_out
from paribus.nn.build import build_encoder, build_head
from paribus.nn.init import initialise
from paribus.spec import model as spec
from paribus.spec.run import HeldOut, Runtime
from paribus.store.store import Work

Measure = Callable[..., dict[tuple[str, str], float]]
SIZE = 512


@pytest.fixture
def measure(encoder: Callable[..., spec.Encoder], packed: Path, tmp_path: Path, begin: Callable[..., Work]) -> Measure:
    """The rows of an encoder started from `seed` with `std`, as (split, metric) to value."""

    def found(seed: int = 0, std: float = 0.1, asked: HeldOut | None = None) -> dict[tuple[str, str], float]:
        encoder_module = build_encoder(encoder(dropout=0.5), SIZE)
        head = build_head(encoder(), encoder_module)
        for part in (encoder_module, head):
            initialise(part, seed, std)
        save_file(encoder_module.state_dict(), tmp_path / "encoder.safetensors")
        save_file({f"head.{n}": w for n, w in head.state_dict().items()}, tmp_path / "heads.safetensors")
        with begin("evaluate", asked or HeldOut()) as work:
            held_out(asked or HeldOut(), encoder(dropout=0.5), SIZE, tmp_path, packed, work, Runtime(device="cpu"))
            return {(str(row["split"]), row["metric"]): row["value"] for row in work._rows} | {
                (str(row["split"]), "n"): row["n"] for row in work._rows
            }

    return found


def test_a_model_that_guesses_uniformly_costs_the_logarithm_of_the_vocabulary(measure: Measure) -> None:
    found = measure(std=1e-30)
    for split in ("validation", "test"):
        assert found[split, "loss"] == pytest.approx(math.log(SIZE), abs=1e-5)
        assert found[split, "perplexity"] == pytest.approx(SIZE, rel=1e-4)


@pytest.mark.parametrize("rows", [1, 7])
def test_neither_repetition_nor_the_batch_size_matters(
    measure: Measure, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    once = measure()
    assert measure() == once
    monkeypatch.setattr(module, "BATCH_ROWS", rows)
    assert measure() == pytest.approx(once, rel=2e-6)


def test_the_global_generator_does_not_matter(measure: Measure) -> None:
    torch.manual_seed(1)
    once = measure()
    torch.manual_seed(2)
    assert measure() == once


def test_every_model_is_asked_for_the_same_places(measure: Measure) -> None:
    one, other = measure(seed=0), measure(seed=1)
    assert one["test", "loss"] != other["test", "loss"]
    assert one["test", "n"] == other["test", "n"]
    assert measure(asked=HeldOut(rate=0.3))["test", "n"] == pytest.approx(2 * one["test", "n"], rel=0.1)
