"""What can only be seen on a GPU: CUDA graphs, the kernels of attention, and that no step waits for the device."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.data.packing import load
from paribus.nn.unpadded import Unpadded
from paribus.objectives.module import Pretrained
from paribus.objectives.pretrain import prepare
from paribus.plan.stages import Pretraining
from paribus.spec.run import Runtime
from paribus.train.fit import fit
from paribus.train.lightning import pl
from paribus.train.passes import Graph, Passes
from paribus.train.ranks import Ranks

Make = Callable[..., Pretraining]
SIZE, STEPS = 512, 20
LONG = {"train_tokens": 256 * STEPS, "batch_tokens": 256}

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.fixture(autouse=True)
def made_once_may_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a shape costs once, at whatever step it comes: it is compiled, and captured."""
    from torch._dynamo.callback import callback_handler

    modes: list[int] = []

    def begin(_: object = None) -> None:
        modes.append(torch.cuda.get_sync_debug_mode())
        torch.cuda.set_sync_debug_mode("default")

    def end(_: object = None) -> None:
        torch.cuda.set_sync_debug_mode(modes.pop())

    def capture(self: Graph, *told: Any, make: Callable[..., None] = Graph.__init__) -> None:
        begin()
        try:
            make(self, *told)
        finally:
            end()

    monkeypatch.setattr(Graph, "__init__", capture)
    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    yield
    callback_handler.remove_start_callback(begin)
    callback_handler.remove_end_callback(end)


class Losses(pl.Callback):
    """The loss of each step. After the first ones no step may wait for the device, but for what is made once."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
        if trainer.global_step > 5:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")
        self.found.append(module.last["loss"].clone())  # type: ignore[index, union-attr, operator]


def trained(spec: Pretraining, packed: Path, **options: Any) -> tuple[Pretrained, list[float]]:
    runtime = Runtime(device="cuda", **options)
    steps, module = prepare(spec, 0, load(packed, "train"), SIZE, runtime, Ranks())
    losses = Losses()
    try:
        fit(module, steps, STEPS, spec.precision, runtime, [losses])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(module.passes._graphs) == (module.passes.how == "graphs")  # shapes come often enough for one
    return module, torch.stack(losses.found).tolist()


OBJECTIVES = [
    {"kind": "mlm"},
    {"kind": "rtd", "sharing": "es", "discriminator_weight": 1.0},
    {"kind": "rtd", "sharing": "gdes", "discriminator_weight": 1.0},
]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=["mlm", "rtd-es", "rtd-gdes"])
@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-3), ("bf16", 3e-2)])
@pytest.mark.parametrize("rows", [None, 4])
def test_graphs_and_compiled_passes_train_as_written(
    packed: Path,
    pretraining: Make,
    objective: dict[str, Any],
    precision: str,
    tolerance: float,
    rows: int | None,
) -> None:
    spec = pretraining(precision=precision, objective={"masking": "dynamic", **objective}, budget=LONG)
    _, plain = trained(spec, packed, micro_batch_rows=rows)
    for how in ("on", "graphs"):
        module, losses = trained(spec, packed, micro_batch_rows=rows, compile=how)
        assert module.passes.how == how
        assert losses == pytest.approx(plain, abs=tolerance) and losses[-1] < losses[0]


def test_dropout_falls_elsewhere_in_each_replay_and_the_same_in_each_training(packed: Path, pretraining: Make) -> None:
    spec = pretraining(
        encoder={**pretraining().encoder.model_dump(), "dropout": 0.5},
        optimizer={"kind": "adamw", "lr": 1e-12},
        budget=LONG,
    )
    (module, first), (_, second) = (trained(spec, packed, compile="graphs") for _ in range(2))
    assert module.passes.how == "graphs"
    assert first == pytest.approx(second, abs=1e-3)
    without = pretraining(optimizer={"kind": "adamw", "lr": 1e-12}, budget=LONG)
    plain = trained(without, packed, compile="graphs")[1]
    moved = [one - other for one, other in zip(first, plain, strict=True)]
    assert len({round(difference, 6) for difference in moved}) > STEPS // 2


def test_a_capture_that_fails_is_said_and_the_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).cuda()

    def compute(x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = module(x).square().sum()
        if torch.cuda.is_current_stream_capturing():
            loss.item()
        return loss, {"loss": loss}

    passes = Passes(module)
    passes.how = "graphs"
    passes._compiled[compute] = compute  # as written: torch.compile would refuse it sooner
    for _ in range(5):
        assert torch.isfinite(passes(compute, torch.ones(2, 4, device="cuda"))["loss"]).item()
    assert passes.how == "on"
    assert capsys.readouterr().err.startswith("--compile graphs: ")


@pytest.mark.parametrize("sdpa", ["cudnn", "flash", "efficient", "math"])
def test_kernels_of_attention_agree(packed: Path, pretraining: Make, sdpa: str) -> None:
    spec = pretraining(precision="bf16")
    assert trained(spec, packed, sdpa=sdpa)[1] == pytest.approx(trained(spec, packed)[1], abs=3e-2)


@pytest.mark.parametrize("how", ["off", "graphs"])
def test_rows_without_their_padding_train_as_padded_ones(
    packed: Path, pretraining: Make, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    spec, attend, taken = pretraining(precision="bf16", budget=LONG), Unpadded.attend, []
    monkeypatch.setattr(Unpadded, "attend", lambda *told: taken.append(1) or attend(*told))
    module, without = trained(spec, packed, compile=how, micro_batch_rows=4)
    assert module.passes.how == how and (taken or how != "off")  # a compiled step keeps no account
    taken.clear()
    monkeypatch.setattr("paribus.nn.encoder.halved", lambda device: False)
    _, padded = trained(spec, packed, compile=how, micro_batch_rows=4)
    assert not taken and without == pytest.approx(padded, abs=3e-2)
