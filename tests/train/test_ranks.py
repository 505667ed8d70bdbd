"""Several processes that pretrain together: the numbers of one, and no hang when one is gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from paribus.data.packing import load
from paribus.data.vocabulary import PAD
from paribus.errors import ParibusError, Stopped
from paribus.objectives.loader import Steps
from paribus.objectives.pretrain import pretrain
from paribus.plan.stages import Pretraining
from paribus.spec.load import build
from paribus.spec.objective import Objective
from paribus.spec.run import Runtime
from paribus.store.store import Work, read_jsonl
from paribus.train.ranks import Ranks

Make = Callable[..., Pretraining]
Begin = Callable[..., Work]
SIZE = 512
OBJECTIVES = {
    "mlm": {"kind": "mlm", "masking": "dynamic"},
    "rtd": {"kind": "rtd", "masking": "dynamic", "sharing": "gdes"},
}


def on(devices: int, **options: Any) -> Runtime:
    return Runtime(device="cpu", devices=devices, checkpoint_seconds=0, **options)


def finish(work: Work, spec: Pretraining, packed: Path, runtime: Runtime) -> tuple[list[float], dict[str, Any], Any]:
    with work:
        said = pretrain(spec, 0, packed, SIZE, work, runtime)
        losses = [point["train/loss"] for point in read_jsonl(work.out / "curve.jsonl")]
        return losses, load_file(work.out / "encoder.safetensors"), said


def assert_near(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-4)
    for name, weight in one[1].items():
        torch.testing.assert_close(weight, other[1][name], rtol=1e-3, atol=1e-4)


def test_ranks_share_the_rows_of_a_step_and_count_all_of_it(pretraining: Make, packed: Path) -> None:
    rows, spec = load(packed, "train"), pretraining()
    whole = Steps(rows, spec, SIZE, 0, 2).step(3)
    shares = [Steps(rows, spec, SIZE, 0, 2, Ranks(rank, 3)).step(3) for rank in range(3)]
    assert {(s.predicted, s.rows, s.tokens) for s in shares} == {(whole.predicted, whole.rows, whole.tokens)}
    seen = [
        sorted(row[row != PAD].tolist() for step in steps for micro in step.micros for row in micro.tokens_BT)
        for steps in ([whole], shares)
    ]
    assert seen[0] == seen[1] and len(seen[0]) == whole.rows
    assert max(len(micro.tokens_BT) for share in shares for micro in share.micros) <= 2


@pytest.mark.parametrize("kind", list(OBJECTIVES))
def test_two_processes_train_as_one_with_accumulation(begin: Begin, pretraining: Make, packed: Path, kind: str) -> None:
    spec = pretraining().model_copy(update={"objective": build(Objective, OBJECTIVES[kind], "objective")})
    one = finish(begin("pretrain", spec, pack="one"), spec, packed, on(1, micro_batch_rows=4))
    two = finish(begin("pretrain", spec, pack="two"), spec, packed, on(2, micro_batch_rows=4))
    assert len(one[0]) == 10 and two[2]["devices"] == 2
    assert_near(two, one)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_processes(
    begin: Begin, pretraining: Make, packed: Path, before: int, after: int
) -> None:
    spec = pretraining()
    asked = iter(range(10**6))
    with pytest.raises(Stopped), begin("pretrain", spec) as work:
        work._stop = lambda: next(asked) >= 4
        pretrain(spec, 0, packed, SIZE, work, on(before))
    assert not [child for child in psutil.Process().children() if "paribus.objectives" in " ".join(child.cmdline())]
    resumed = finish(begin("pretrain", spec), spec, packed, on(after))
    assert resumed[2]["resumed_at"] == 5
    assert_near(resumed, finish(begin("pretrain", spec, pack="whole"), spec, packed, on(1)))


def test_a_process_that_is_gone_ends_the_training_and_says_so(begin: Begin, pretraining: Make, packed: Path) -> None:
    spec = pretraining()

    def kill() -> bool:
        for child in psutil.Process().children():
            if "paribus.objectives.pretrain" in " ".join(child.cmdline()):
                child.kill()
        return False

    with pytest.raises(RuntimeError, match="process 1 of 2 ended with code -9"), begin("pretrain", spec) as work:
        work._stop = kill
        pretrain(spec, 0, packed, SIZE, work, on(2))


def test_more_devices_than_rows_of_a_step_are_refused(begin: Begin, pretraining: Make, packed: Path) -> None:
    spec = pretraining()
    with (
        pytest.raises(ParibusError, match="--devices 9: a step has 8 rows, and each device needs one of them"),
        begin("pretrain", spec) as work,
    ):
        pretrain(spec, 0, packed, SIZE, work, on(9))
