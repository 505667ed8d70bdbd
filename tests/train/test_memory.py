"""Memory that runs out: the same step in smaller pieces."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.data.packing import load
from paribus.errors import ParibusError
from paribus.objectives.loader import Steps
from paribus.objectives.module import Pretrained
from paribus.objectives.pretrain import build_objective, pretrain
from paribus.plan.stages import Pretraining
from paribus.spec.load import build
from paribus.spec.objective import Objective
from paribus.spec.run import Runtime
from paribus.store.store import Work
from paribus.train.fit import fit
from paribus.train.lightning import pl
from paribus.train.memory import in_parts

Make = Callable[..., Pretraining]
SIZE = 512
CPU = Runtime(device="cpu")
OBJECTIVES = {
    "mlm": {"kind": "mlm", "masking": "dynamic"},
    "rtd": {"kind": "rtd", "masking": "dynamic", "sharing": "gdes"},
    "joint": {"kind": "rtd", "masking": "dynamic", "sharing": "es", "optimizers": "joint"},
}


class Device:
    """A device whose memory holds `rows` rows: more run out in the backward pass, their gradients half added up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Pretrained, rows: int) -> None:
        self.tried: list[int] = []
        backward, losses = Tensor.backward, {}

        def count(name: str) -> None:
            before = getattr(module, name)

            def asked(micro: Any, *more: Any) -> Any:
                self.tried.append(len(micro.tokens_BT))
                losses["rows"] = len(micro.tokens_BT)
                return before(micro, *more)

            monkeypatch.setattr(module, name, asked)

        def run_out(loss: Tensor, *told: Any, **options: Any) -> None:
            backward(loss, *told, **options)  # type: ignore[no-untyped-call]
            if losses["rows"] > rows:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        for name in ("losses", "generate", "detect"):
            if hasattr(module, name):
                count(name)
        monkeypatch.setattr(Tensor, "backward", run_out)


class Gradients(pl.Callback):
    """The gradients each update took, and the weights at the end."""

    def __init__(self) -> None:
        self.found: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        self.found.append({n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})


def trained(spec: Pretraining, packed: Path, rows: int | None, device: Callable[[Pretrained], Any]) -> tuple[Any, ...]:
    module = build_objective(spec, SIZE, 0)
    module.micro_rows = rows
    seen, gradients = device(module), Gradients()
    fit(module, Steps(load(packed, "train"), spec, SIZE, 0, rows), 3, "fp32", CPU, [gradients])
    return module, gradients.found, seen


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_a_step_whose_memory_runs_out_has_the_gradients_of_smaller_micro_batches(
    pretraining: Make, packed: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    objective: Any = build(Objective, OBJECTIVES[kind], "objective")
    spec = pretraining().model_copy(update={"objective": objective})
    (whole,) = Steps(load(packed, "train"), spec, SIZE, 0, None).step(0).micros
    rows = len(whole.tokens_BT)
    small, expected, _ = trained(spec, packed, rows // 4, lambda module: None)
    module, found, device = trained(spec, packed, None, lambda module: Device(monkeypatch, module, rows // 4))
    assert (module.micro_rows, module.out_of_memory, module.global_step) == (rows // 4, 2, 3)
    assert device.tried[0] == rows and device.tried.count(rows) == (2 if kind == "joint" else 1)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-6)
    for name, weight in module.state_dict().items():
        torch.testing.assert_close(weight, small.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_what_runs_out_in_the_second_turn_repeats_that_turn_alone(
    pretraining: Make, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pretraining().model_copy(update={"objective": build(Objective, OBJECTIVES["rtd"], "objective")})
    _, expected, _ = trained(spec, packed, None, lambda module: None)

    def once(module: Pretrained) -> None:
        detect, failed = module.detect, []  # type: ignore[operator]

        def fail(*asked: Any) -> Any:
            if not failed:
                failed.append(True)
                raise torch.OutOfMemoryError
            return detect(*asked)

        monkeypatch.setattr(module, "detect", fail)

    module, found, _ = trained(spec, packed, None, once)
    assert module.out_of_memory == 1
    # The generator's optimizer has stepped once when the discriminator's turn begins, and not again.
    for name in found[-1]:
        torch.testing.assert_close(found[-1][name], expected[-1][name], rtol=1e-3, atol=1e-5)


def test_the_record_says_what_fitted_and_how_often_memory_ran_out(
    begin: Callable[..., Work], pretraining: Make, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(*asked: Any) -> Pretrained:
        module = build_objective(*asked)
        Device(monkeypatch, module, 5)
        return module

    spec = pretraining()
    monkeypatch.setattr("paribus.objectives.pretrain.build_objective", small)
    with begin("pretrain", spec) as work:
        said = pretrain(spec, 0, packed, SIZE, work, CPU)
    assert said["out_of_memory"] == 1 and said["micro_batch_rows"] == 5


def test_a_row_that_does_not_fit_is_one_line(pretraining: Make, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParibusError, match="^out of memory: a single row does not fit on this device; take a larger"):
        trained(pretraining(), packed, None, lambda module: Device(monkeypatch, module, 0))


def test_after_a_resume_the_rows_are_those_that_fitted(pretraining: Make) -> None:
    one, other = (build_objective(pretraining(), SIZE, 0) for _ in range(2))
    one.micro_rows, one.out_of_memory, other.micro_rows = 4, 2, 16
    checkpoint: dict[str, Any] = {"state_dict": one.state_dict(), "optimizer_states": []}
    one.on_save_checkpoint(checkpoint)
    other.on_load_checkpoint(checkpoint)
    assert (other.micro_rows, other.out_of_memory) == (4, 2)


def test_what_is_only_computed_is_computed_in_parts() -> None:
    tried = []

    def double(items: list[int]) -> list[int]:
        tried.append(len(items))
        if len(items) > 3:
            raise torch.OutOfMemoryError
        return [2 * item for item in items]

    assert [item for part in in_parts(double, list(range(10))) for item in part] == list(range(0, 20, 2))
    assert tried == [10, 5, 2, 3, 5, 2, 3]
    with pytest.raises(ParibusError, match="a single row"):
        next(in_parts(lambda items: double([0] * 9), [1]))
