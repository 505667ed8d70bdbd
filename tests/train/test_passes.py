"""Compiled passes: the same numbers, one graph, no recompilation, and no end of a run where there is no compiler."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.replay import Replay, stand_in
from tests.rows import cut
from torch._dynamo.backends.debugging import aot_eager
from torch.utils._python_dispatch import TorchDispatchMode

from paribus.bench.devices import random_rows
from paribus.data.packing import Rows, load, save
from paribus.objectives.batch import Micro
from paribus.objectives.module import Pretrained
from paribus.objectives.pretrain import prepare, pretrain
from paribus.plan.stages import Pretraining
from paribus.spec.run import Runtime
from paribus.store.store import Work, read_jsonl
from paribus.train import passes
from paribus.train.fit import fit
from paribus.train.lightning import pl
from paribus.train.ranks import Ranks

Make = Callable[..., Pretraining]
SIZE = 512
ON = Runtime(device="cpu", compile="on", micro_batch_rows=4)
DISENTANGLED = {
    "position": "unordered",
    "attention": {"kind": "disentangled", "dropout": 0.0, "c2p": True, "p2c": True, "max_distance": 8},
    "head": {"kind": "emd", "max_length": 32},
}


ALIKE = {"train_tokens": 1920, "batch_tokens": 192}
"""Ten steps of eight rows of 24 tokens."""


@pytest.fixture
def alike(packed: Path, tmp_path: Path) -> Path:
    """Rows of 24 tokens and 8 of padding: micro-batches of one shape, as each shape takes seconds to trace."""
    rows = load(packed, "train")
    rows = Rows(**{name: array[rows.lengths >= 24] for name, array in rows.arrays.items()})
    save([cut(rows, np.full(len(rows), 24))], tmp_path, "train", SIZE)
    return tmp_path


@pytest.fixture(autouse=True)
def _traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same graphs, forward and backward, run by torch's own kernels: nothing is waited for but the tracing."""
    monkeypatch.setattr(passes, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class Losses(pl.Callback):
    """The loss of each step."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        self.found.append(float(module.last["loss"]))  # type: ignore[index, arg-type]


def trained(spec: Pretraining, packed: Path, runtime: Runtime, seed: int = 0) -> tuple[Pretrained, list[float]]:
    steps, module = prepare(spec, seed, load(packed, "train"), SIZE, runtime, Ranks())
    losses = Losses()
    fit(module, steps, 6, spec.precision, runtime, [losses])
    return module, losses.found


@pytest.mark.parametrize("encoder, precision, tolerance", [({}, "bf16", 1e-2), (DISENTANGLED, "fp32", 1e-5)])
def test_compiled_trains_as_written(
    packed: Path,
    encoder: dict[str, Any],
    precision: str,
    tolerance: float,
    pretraining: Make,
) -> None:
    whole = pretraining().encoder.model_dump() | encoder
    spec = pretraining(encoder=whole, precision=precision)
    _, plain = trained(spec, packed, ON.model_copy(update={"compile": "off"}))
    module, compiled = trained(spec, packed, ON)
    assert module.passes.how == "on"  # in one graph: torch refuses any break
    assert compiled == pytest.approx(plain, abs=tolerance) and plain[-1] < plain[0]


@pytest.mark.parametrize(
    "rows, changes",
    [
        ("packed", {"sharing": "es", "generator": {"kind": "shallow"}}),
        ("alike", {"sharing": "gdes", "head": "deberta", "mask_specials": True}),
        ("alike", {"sharing": "nes", "shared": "tokens", "discriminator": "replace-mlm"}),
        ("alike", {"sharing": "gdes", "optimizers": "joint", "discriminator": "all-tokens-mlm"}),
        ("alike", {"discriminator": "detect-masked"}),
    ],
)
def test_replaced_token_detection_compiled_trains_as_written(
    rows: str, changes: dict[str, Any], pretraining: Make, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(rows)
    objective = {"kind": "rtd", "masking": "dynamic", "discriminator_weight": 1.0, **changes}
    spec = pretraining(objective=objective, budget=ALIKE)
    plain_module, plain = trained(spec, folder, ON.model_copy(update={"compile": "off"}))
    module, compiled = trained(spec, folder, ON)
    assert module.passes.how == "on"
    assert compiled == pytest.approx(plain, abs=1e-4) and plain[-1] < plain[0]
    for (name, one), other in zip(module.named_parameters(), plain_module.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3, msg=name)


@pytest.mark.parametrize("sharing, pieces", [("es", 1), ("nes", 2), ("gdes", 2)])
def test_seeds_of_replaced_token_detection_share_what_was_compiled(
    tmp_path: Path, pretraining: Make, sharing: str, pieces: int
) -> None:
    save([random_rows(32, SIZE)], tmp_path, "train", SIZE)
    spec = pretraining(objective={"kind": "rtd", "masking": "dynamic", "sharing": sharing})
    for seed in (0, 1):
        trained(spec, tmp_path, ON, seed=seed)
        assert graphs() == pieces


@pytest.mark.parametrize("objective", [{"kind": "mlm"}, *({"kind": "rtd", "sharing": how} for how in ("es", "gdes"))])
def test_no_gradient_of_a_micro_batch_is_awaited_when_the_next_begins(
    packed: Path, pretraining: Make, monkeypatch: pytest.MonkeyPatch, objective: dict[str, Any]
) -> None:
    # While an earlier pass can still be gone back, gradients are summed on its stream: a capture then fails.
    begun = []

    def look(self: passes.Passes, *told: Any, run: Any = passes.Passes._run) -> Any:
        begun.append(1)
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                summing = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
                assert not summing.metadata  # type: ignore[union-attr]
        found = run(self, *told)
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                summing = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
                summing.metadata["begun"] = len(begun)  # type: ignore[union-attr]
        return found

    monkeypatch.setattr(passes.Passes, "_run", look)
    spec = pretraining(objective={"masking": "dynamic", **objective})
    trained(spec, packed, ON.model_copy(update={"compile": "off"}))
    assert len(begun) > 12


def test_a_capture_that_fails_says_what_went_wrong_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Capture:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> None:
            assert not gc.isenabled()

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("a previous error during capture")

    def compute(_: torch.Tensor) -> Any:
        try:
            return {}["inner"]
        except KeyError:
            raise ValueError("what went wrong")  # noqa: B904

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", Capture)
    with pytest.raises(ValueError, match="what went wrong"):
        passes.Graph(compute, (torch.ones(1),), None)
    assert gc.isenabled()


def test_a_step_is_first_compiled_without_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        looked.append(gc.isenabled())
        return aot_eager(graph, inputs)

    module = torch.nn.Linear(4, 4)

    def compute(x: torch.Tensor) -> Any:
        return module(x).sum(), {}

    monkeypatch.setattr(passes, "BACKEND", backend)
    made = passes.Passes(module)
    made.how = "on"
    made(compute, torch.ones(1, 4))
    assert looked == [False] and gc.isenabled()


class Replaying(pl.Callback):
    """From the second step on; the first has been told that there is no GPU."""

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: object) -> None:
        assert isinstance(module, Pretrained)
        if module.passes.how != "graphs":
            module.zero_grad()
        module.passes.how = "graphs"


@pytest.mark.parametrize("sharing", ["nes", "gdes", "es"])
def test_graphs_of_two_turns_keep_gradients_of_their_own_and_move_only_these(
    tmp_path: Path, pretraining: Make, monkeypatch: pytest.MonkeyPatch, sharing: str
) -> None:
    spec = pretraining(objective={"kind": "rtd", "masking": "dynamic", "sharing": sharing})
    save([random_rows(32, SIZE)], tmp_path, "train", SIZE)  # all full, so of one shape
    plain, _ = trained(spec, tmp_path, ON.model_copy(update={"compile": "off"}))
    stand_in(monkeypatch)
    monkeypatch.setattr(torch, "compile", lambda compute, **_: compute)
    steps, module = prepare(spec, 0, load(tmp_path, "train"), SIZE, ON, Ranks())
    fit(module, steps, 6, spec.precision, ON, [Replaying()])
    assert Replay.made >= (1 if sharing == "es" else 2) and module.passes.how == "graphs"
    for (name, one), other in zip(module.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-3, msg=name)


def test_compiled_without_padding_trains_as_with_it(
    packed: Path, pretraining: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pretraining()
    _, plain = trained(spec, packed, ON.model_copy(update={"compile": "off"}))
    monkeypatch.setattr("paribus.nn.encoder.halved", lambda device: True)
    monkeypatch.setattr("paribus.nn.unpadded.MOST", 2.0)
    computed = set()

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        computed.update(node.target for node in graph.graph.nodes)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(passes, "BACKEND", backend)
    module, compiled = trained(spec, packed, ON)
    assert module.passes.how == "on" and "index_copy" in computed
    assert compiled == pytest.approx(plain, abs=1e-5)


def test_however_much_padding_is_left_out_it_is_compiled_once(
    tmp_path: Path, pretraining: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.nn.encoder.halved", lambda device: True)
    monkeypatch.setattr("paribus.objectives.loader._up", lambda number, step: -(-number // 8) * 8)
    full = random_rows(32, SIZE)
    save([cut(full, np.random.default_rng(0).integers(4, 24, len(full)))], tmp_path, "train", SIZE)
    kept = set()
    monkeypatch.setattr(Micro, "vary", lambda micro, vary=Micro.vary: kept.add(len(micro.kept_N)) or vary(micro))
    module, _ = trained(pretraining(), tmp_path, ON.model_copy(update={"micro_batch_rows": 32}))
    assert module.passes.how == "on" and len(kept) > 1 and graphs() == 1


def test_steps_and_arms_of_one_shape_are_compiled_once(tmp_path: Path, pretraining: Make) -> None:
    save([random_rows(32, SIZE)], tmp_path, "train", SIZE)
    trained(pretraining(), tmp_path, ON)
    assert graphs() == 1
    static = {"kind": "mlm", "masking": {"kind": "static"}}
    long = {"train_tokens": 2**20, "batch_tokens": 256}
    trained(pretraining(objective=static, budget=long), tmp_path, ON, seed=1)
    trained(pretraining(optimizer={"kind": "adamw", "lr": 1e-3}), tmp_path, ON, seed=2)
    assert graphs() == 1


class Synchronising(TorchDispatchMode):
    """Refuses what makes a process wait for its device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero"), func
        return func(*args, **(kwargs or {}))


class Watched(pl.Callback):
    """Steps under that refusal."""

    def on_train_batch_start(self, *_: object) -> None:
        self._mode = Synchronising()
        self._mode.__enter__()

    def on_train_batch_end(self, *_: object) -> None:
        self._mode.__exit__(None, None, None)


@pytest.mark.parametrize("kind", ["mlm", "rtd"])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_step_waits_for_nothing(packed: Path, pretraining: Make, fixed: bool, kind: str) -> None:
    objective = {"kind": kind, "masking": "dynamic"}
    spec = pretraining(objective=objective, optimizer={"kind": "adamw", "lr": 1e-2, "clip": 1.0})
    steps, module = prepare(spec, 0, load(packed, "train"), SIZE, ON if fixed else Runtime(device="cpu"), Ranks())
    module.passes.how = "off"  # operation by operation
    fit(module, steps, 3, "fp32", ON, [Watched()])
    assert module.global_step == 3
    with pytest.raises(AssertionError), Synchronising():
        torch.ones(()).item()


def broken(*_: object) -> Any:
    raise RuntimeError("no compiler\nhere")


def broken_backwards(graph: Any, inputs: Any) -> Any:
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=lambda graph, inputs: graph, bw_compiler=broken)(graph, inputs)


@pytest.mark.parametrize("backend", [broken, broken_backwards])
def test_without_a_compiler_it_is_said_once_and_trained_as_written(
    packed: Path,
    pretraining: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    backend: Any,
) -> None:
    _, plain = trained(pretraining(), packed, ON.model_copy(update={"compile": "off"}))
    monkeypatch.setattr(passes, "BACKEND", backend)
    module, losses = trained(pretraining(), packed, ON)
    assert module.passes.how == "off"
    assert losses == pytest.approx(plain, abs=1e-5)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("--compile on: ") and said[0].endswith("; from here on as written")


def test_a_stage_records_what_was_done(
    alike: Path, pretraining: Make, begin: Callable[..., Work], capsys: pytest.CaptureFixture[str]
) -> None:
    spec, curves = pretraining(budget=ALIKE), []
    for asked, done in (("off", "off"), ("graphs", "on")):
        with begin("pretrain", spec, pack=asked) as work:
            record = pretrain(spec, 0, alike, SIZE, work, ON.model_copy(update={"compile": asked}))
            curves.append([point["train/loss"] for point in read_jsonl(work.out / "curve.jsonl")])
        assert (record["compile"], record["sdpa"]) == (done, "auto")
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
    assert (
        capsys.readouterr().err == "--compile graphs: needs a GPU, found cpu; from here on compiled, without graphs\n"
    )


def test_a_stage_that_fell_back_says_that_its_micro_batches_had_fixed_shapes(
    packed: Path, pretraining: Make, begin: Callable[..., Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "BACKEND", broken)
    with begin("pretrain", pretraining()) as work:
        assert pretrain(pretraining(), 0, packed, SIZE, work, ON)["compile"] == "off, in fixed shapes"


def test_the_kernel_that_is_asked_for_computes_the_attention(packed: Path, pretraining: Make) -> None:
    losses = {how: trained(pretraining(), packed, Runtime(device="cpu", sdpa=how))[1] for how in ("math", "flash")}
    assert losses["math"] == pytest.approx(losses["flash"], abs=1e-5)


@pytest.mark.drill
@pytest.mark.parametrize(
    "objective", [{"kind": "mlm"}, {"kind": "rtd", "sharing": "gdes", "discriminator_weight": 1.0}], ids=["mlm", "rtd"]
)
def test_compiled_by_inductor_it_trains_as_written(
    tmp_path: Path, pretraining: Make, monkeypatch: pytest.MonkeyPatch, objective: dict[str, Any]
) -> None:
    spec = pretraining(objective={"masking": "dynamic", **objective})
    save([random_rows(32, SIZE)], tmp_path, "train", SIZE)
    monkeypatch.setattr(passes, "BACKEND", "inductor")
    _, plain = trained(spec, tmp_path, ON.model_copy(update={"compile": "off"}))
    module, compiled = trained(spec, tmp_path, ON)
    assert module.passes.how == "on"
    assert compiled == pytest.approx(plain, abs=1e-4)
