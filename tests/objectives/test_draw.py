"""Micro-batches of a fixed shape, and masks that are drawn where the batch is: the same as those of the loader."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.rows import cut

from paribus.bench.devices import random_rows
from paribus.data.packing import ISOLATED, Rows, load
from paribus.data.vocabulary import PAD
from paribus.objectives.batch import IGNORED, Micro
from paribus.objectives.draw import Draw, drawable
from paribus.objectives.loader import Steps
from paribus.objectives.mlm import Mlm
from paribus.plan.stages import Pretraining
from paribus.train.ranks import Ranks

Make = Callable[..., Pretraining]
SIZE = 512


@pytest.fixture
def rows(packed: Path) -> Rows:
    return load(packed, "train")


def ragged(rows: Rows) -> Rows:
    """Every third row is half as long, all are of two segments."""
    lengths = rows.lengths.copy()
    lengths[::3] = np.minimum(lengths[::3], 16)
    return replace(cut(rows, lengths), flags=rows.flags.copy(), second=np.full_like(rows.second, 9))


def asked_of(micro: Micro) -> tuple[torch.Tensor, torch.Tensor]:
    """Places and targets of the slots that are asked."""
    inside = micro.targets_M != IGNORED
    return micro.places_M[inside], micro.targets_M[inside]


@pytest.mark.parametrize(
    "objective",
    [
        {},
        {"rate": 0.4, "replacement": {"mask": 0.5, "random": 0.5}},
        {"mask_specials": True, "replacement": {"mask": 0.2, "random": 0.6, "pool": "all"}},
        {"masking": {"kind": "static", "visits": 2}},
        {"kind": "rtd", "masking": {"kind": "static", "visits": 2}},
    ],
)
def test_masks_of_the_device_are_those_of_the_loader_bit_for_bit(
    rows: Rows, pretraining: Make, objective: dict[str, object]
) -> None:
    budget = {"train_tokens": 2560 * 20, "batch_tokens": 256}
    spec = pretraining(objective={"kind": "mlm", "masking": "dynamic", **objective}, budget=budget)
    for given in (rows, ragged(rows)):
        drawn, there = (Steps(given, spec, SIZE, 3, None, fixed=fixed) for fixed in (False, True))
        for number in (0, 101):  # in another pass over the rows
            step, other = drawn.step(number), there.step(number)
            assert float(other.predicted) == step.predicted and float(other.rows) == step.rows
            for micro, undrawn in zip(step.micros, other.micros, strict=True):
                assert (undrawn.targets_M == IGNORED).all() and undrawn.stream_B is not None
                found = Draw(spec.objective, SIZE)(undrawn)
                count, width = micro.tokens_BT.shape
                assert torch.equal(found.tokens_BT[:count, :width], micro.tokens_BT)
                places, targets = asked_of(found)
                length = found.tokens_BT.shape[1]
                assert torch.equal(places // length * width + places % length, micro.places_M)
                assert torch.equal(targets, micro.targets_M)
                if micro.draws_M is None:
                    assert found.draws_M is None
                else:
                    assert found.draws_M is not None
                    assert torch.equal(found.draws_M[found.targets_M != IGNORED], micro.draws_M)


@pytest.mark.parametrize("unit", ["token", "whole-word"])
def test_a_fixed_shape_changes_neither_losses_nor_gradients(rows: Rows, pretraining: Make, unit: str) -> None:
    spec = pretraining(objective={"kind": "mlm", "masking": "dynamic", "unit": unit})
    assert drawable(spec.objective) == (unit == "token")
    isolated = ragged(rows)
    isolated.flags[isolated.tokens != 0] |= ISOLATED
    for given in (rows, ragged(rows), isolated):
        found = []
        for fixed in (False, True):
            module = Mlm(spec, SIZE, 0)
            steps = Steps(given, spec, SIZE, 0, 5, fixed=fixed)
            losses = [named["loss"] for named in module._parts(steps.step(2))]
            found.append((torch.stack(losses).sum(), [p.grad for p in module.parameters()]))
        assert torch.allclose(found[0][0], found[1][0], rtol=1e-5)
        for one, other in zip(found[0][1], found[1][1], strict=True):
            assert (one is None) == (other is None)
            assert one is None or other is None or torch.allclose(one, other, atol=1e-6)


def test_rows_are_filled_up_to_an_eighth_a_quarter_a_half_or_all_of_the_longest(rows: Rows, pretraining: Make) -> None:
    given = cut(rows, np.random.default_rng(0).integers(1, 33, len(rows)))
    spec = pretraining(budget={"train_tokens": 32 * 50, "batch_tokens": 32})
    found = {fixed: Steps(given, spec, SIZE, 0, 1, fixed=fixed) for fixed in (False, True)}
    lengths_of = {
        fixed: {micro.tokens_BT.shape[1] for n in range(50) for micro in made.step(n).micros}
        for fixed, made in found.items()
    }
    assert lengths_of == {False: {8, 16, 24, 32}, True: {8, 16, 32}}


def test_rows_that_are_not_all_full_come_in_a_few_shapes(rows: Rows, pretraining: Make) -> None:
    spec = pretraining(budget={"train_tokens": 2048 * 50, "batch_tokens": 2048})
    steps = {fixed: Steps(ragged(rows), spec, SIZE, 0, None, fixed=fixed) for fixed in (False, True)}
    shapes = {fixed: {made.step(n).micros[0].tokens_BT.shape for n in range(50)} for fixed, made in steps.items()}
    assert len(shapes[True]) < len(shapes[False])
    for number in range(50):
        (micro,) = steps[True].step(number).micros
        assert micro.padding_BT is not None and micro.segments_BT is not None
        assert len(micro.places_M) == len(micro.tokens_BT) * int(0.15 * micro.tokens_BT.shape[1] + 0.5)


@pytest.mark.parametrize("world", [1, 2])
def test_those_of_a_step_are_about_as_large_as_each_other(pretraining: Make, world: int) -> None:
    full = random_rows(32, SIZE)
    spec = pretraining(budget={"train_tokens": 32 * 210, "batch_tokens": 32 * 21})
    for most, sizes in ((8, ([7, 7, 7], [6, 5])), (20, ([11, 10], [11])), (50, ([21], [11]))):
        step = Steps(full, spec, SIZE, 0, most, Ranks(0, world), fixed=True).step(3)
        assert [len(micro.tokens_BT) for micro in step.micros] == sizes[world - 1]


def test_without_padding_the_tokens_of_the_rows_that_are_asked_are_kept(
    rows: Rows, pretraining: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.nn.unpadded.MOST", 2.0)
    spec = pretraining(budget={"train_tokens": 2048 * 50, "batch_tokens": 2048})
    plain, alike = (Steps(ragged(rows), spec, SIZE, 0, None, fixed=fixed) for fixed in (False, True))
    more = 0
    for number in range(10):
        (micro,), (filled,) = plain.step(number).micros, alike.step(number).micros
        real_N = (micro.tokens_BT != PAD).flatten().nonzero()[:, 0]
        width, length = micro.tokens_BT.shape[1], filled.tokens_BT.shape[1]
        places_N = real_N // width * length + real_N % width
        for found, expected in ((micro, real_N), (filled, places_N)):
            assert found.kept_N is not None and found.starts_S is not None
            assert torch.equal(found.kept_N[: len(real_N)], expected)
            assert found.starts_S[-1] == len(found.kept_N) <= len(real_N) * 17 / 16
            assert micro.kept_N is not None and len(found.kept_N) == len(micro.kept_N)
        more += len(filled.tokens_BT) - len(micro.tokens_BT)
        for piece in filled.cut(7):
            assert piece.kept_N is not None
            assert set((piece.tokens_BT != PAD).flatten().nonzero()[:, 0].tolist()) <= set(piece.kept_N.tolist())
    assert more > 0


def test_a_micro_batch_of_a_fixed_shape_is_cut_into_such(rows: Rows, pretraining: Make) -> None:
    spec = pretraining()
    (whole,) = Steps(rows, spec, SIZE, 0, None, fixed=True).step(1).micros
    draw = Draw(spec.objective, SIZE)
    pieces = [draw(piece) for piece in whole.cut(4)]
    assert {len(piece.places_M) for piece in pieces} == {4 * int(0.15 * 32 + 0.5)}
    assert torch.equal(torch.cat([piece.tokens_BT for piece in pieces]), draw(whole).tokens_BT)
    assert torch.equal(torch.cat([piece.targets_M for piece in pieces]), draw(whole).targets_M)
