"""Several processes that keep a shard of the model each: the numbers of one device, and its checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paribus.cli import app
from paribus.data.packing import load
from paribus.errors import ParibusError, Stopped
from paribus.nn.block import PostNormBlock
from paribus.objectives.loader import Steps
from paribus.objectives.mlm import Mlm
from paribus.objectives.pretrain import Judge, pretrain
from paribus.plan.stages import Pretraining, make
from paribus.spec.run import Runtime
from paribus.store.store import Store, Work, read_jsonl
from paribus.train.fit import fit as train
from paribus.train.ranks import Ranks

Make = Callable[..., Pretraining]
Begin = Callable[..., Work]
SIZE = 512
DEBERTA = {
    "layers": 2,
    "width": 16,
    "heads": 2,
    "position": {"kind": "unordered"},
    "attention": {"kind": "disentangled", "dropout": 0.0, "max_distance": 8},
    "norm": "pre",
    "feed_forward": {"kind": "gelu", "width": 32},
    "head": {"kind": "emd", "max_length": 32},
    "dropout": 0.0,
}
SPECS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "deberta": {"encoder": DEBERTA, "optimizer": {"kind": "adamw", "lr": 1e-2, "bias_correction": False}},
}


def on(devices: int, **options: Any) -> Runtime:
    strategy = "fsdp" if devices > 1 else "ddp"
    return Runtime(device="cpu", devices=devices, strategy=strategy, checkpoint_seconds=0, **options)


def finish(work: Work, spec: Pretraining, packed: Path, runtime: Runtime) -> tuple[list[float], dict[str, Any], Any]:
    def measure(folder: Path) -> float:
        return load_file(folder / "encoder.safetensors")["tokens.weight"].norm().item()

    with work:
        said = pretrain(spec, 0, packed, SIZE, work, runtime, judge=Judge(2, measure, lambda told: False))
        losses = [point["train/loss"] for point in read_jsonl(work.out / "curve.jsonl")]
        files = [load_file(work.out / f"{name}.safetensors") for name in ("encoder", "heads")]
        return losses, files[0] | files[1], said


def assert_near(one: tuple[Any, ...], other: tuple[Any, ...], tolerance: float = 1e-4) -> None:
    assert one[0] == pytest.approx(other[0], rel=tolerance)
    assert one[1].keys() == other[1].keys()
    for name, weight in one[1].items():
        torch.testing.assert_close(weight, other[1][name], rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("kind", list(SPECS))
def test_shards_train_as_one_device_with_accumulation(
    begin: Begin, pretraining: Make, packed: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    spec = pretraining(**SPECS[kind])
    rows = load(packed, "train")
    shares = [Steps(rows, spec, SIZE, 0, 5, Ranks(rank, 2)) for rank in range(2)]
    assert {(2, 2), (2, 1)} <= {tuple(len(share.step(number).micros) for share in shares) for number in range(10)}
    one = finish(begin("pretrain", spec, pack="one"), spec, packed, on(1, micro_batch_rows=5))
    held: list[float] = []

    def fit(module: Any, *rest: Any) -> None:
        train(module, *rest)
        states = [m for s in module.trainer.optimizers[0].state.values() for m in s.values() if m.ndim]
        mine = sum(tensor.to_local().numel() for tensor in [*module.parameters(), *states])
        held.append(mine / sum(tensor.numel() for tensor in [*module.parameters(), *states]))

    monkeypatch.setattr("paribus.objectives.pretrain.fit", fit)
    two = finish(begin("pretrain", spec, pack="two"), spec, packed, on(2, micro_batch_rows=5))
    assert len(one[0]) == 10 and (two[2]["devices"], two[2]["strategy"]) == (2, "fsdp")
    assert held == [0.5]
    assert two[2]["reports"] == pytest.approx(one[2]["reports"], rel=1e-3)
    assert_near(two, one, 1e-3 if kind == "bf16" else 1e-4)


@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 2)])
def test_a_run_goes_on_with_or_without_shards(
    tmp_path: Path, begin: Begin, pretraining: Make, packed: Path, before: int, after: int
) -> None:
    spec = pretraining()
    asked = iter(range(10**6))
    work = Store(tmp_path / "store").claim(make("pretrain", spec, {}, 0), lambda: next(asked) >= 4)
    assert work
    with pytest.raises(Stopped), work:
        pretrain(spec, 0, packed, SIZE, work, on(before))
    resumed = finish(begin("pretrain", spec), spec, packed, on(after))
    assert resumed[2]["resumed_at"] == 5
    assert_near(resumed, finish(begin("pretrain", spec, pack="whole"), spec, packed, on(1)))


def test_a_micro_batch_that_is_not_asked_anything_adds_nothing(pretraining: Make, packed: Path) -> None:
    spec = pretraining(objective={"kind": "mlm", "masking": "dynamic", "sentence": "nsp"})
    module = Mlm(spec, SIZE, 0)
    step = Steps(load(packed, "train"), spec, SIZE, 0, 4).step(0).padded(4)
    assert [len(micro.tokens_BT) for micro in step.micros] == [4, 4, 2, 1]
    losses = module.losses(step.micros[-1])
    assert losses[1] is not None
    (losses[0] + losses[1]).backward()
    grads = [parameter.grad for parameter in module.parameters()]
    assert [*map(float, losses)] == [0, 0] and all(grad is not None and not grad.any() for grad in grads)


def test_running_out_of_memory_is_told_and_not_tried_again(
    begin: Begin, pretraining: Make, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(PostNormBlock, "forward", forward)
    spec = pretraining()
    with (
        pytest.raises(ParibusError, match="out of memory; with --strategy fsdp, expected a smaller --micro-batch-rows"),
        begin("pretrain", spec) as work,
    ):
        pretrain(spec, 0, packed, SIZE, work, on(2))


def test_shards_of_two_networks_are_refused(begin: Begin, pretraining: Make, packed: Path) -> None:
    spec = pretraining(objective={"kind": "rtd", "masking": "dynamic"})
    with (
        pytest.raises(ParibusError, match="--strategy fsdp: expected objective.kind mlm, found rtd; ddp takes it"),
        begin("pretrain", spec) as work,
    ):
        pretrain(spec, 0, packed, SIZE, work, on(2))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--strategy", "fsdp"], "--strategy fsdp: needs --devices 2 or more, found 1"),
        (["--strategy", "zero", "--devices", "2"], "--strategy zero: expected ddp or fsdp"),
    ],
)
def test_a_strategy_that_cannot_be_is_one_line(given: list[str], said: str) -> None:
    with pytest.raises(ParibusError, match=said):
        app(["work", *given], standalone_mode=False)
