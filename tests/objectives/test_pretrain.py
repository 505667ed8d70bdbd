"""The pretrain stage: what it leaves behind, and that an interruption leaves no trace in the numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from paribus.errors import Stopped
from paribus.objectives.pretrain import Judge, pretrain
from paribus.plan.stages import Pretraining
from paribus.spec.load import build
from paribus.spec.objective import Rtd
from paribus.spec.run import Runtime
from paribus.store.store import Work, read_jsonl

Make = Callable[..., Pretraining]
Begin = Callable[..., Work]
SIZE = 512
OFTEN = Runtime(device="cpu", checkpoint_seconds=0)


@dataclass(frozen=True)
class Finished:
    """A committed stage."""

    folder: Path
    record: dict[str, Any]
    rows: dict[str, float]

    @property
    def losses(self) -> list[float]:
        return [point["train/loss"] for point in read_jsonl(self.folder / "curve.jsonl")]

    @property
    def weights(self) -> dict[str, Tensor]:
        generator = self.folder / "generator.safetensors"
        theirs = load_file(generator) if generator.is_file() else {}
        found = {f"generator.{name}": weight for name, weight in theirs.items()}
        return found | load_file(self.folder / "encoder.safetensors") | load_file(self.folder / "heads.safetensors")


def finish(work: Work, spec: Pretraining, packed: Path, seed: int = 0, runtime: Runtime = OFTEN) -> Finished:
    with work:
        said: dict[str, Any] = pretrain(spec, seed, packed, SIZE, work, runtime)
        work.commit("provenance", **said)
    store, key = work.store, work.stage.key
    return Finished(store.folder(key), store.record(key), {row["metric"]: row["value"] for row in store.rows(key)})


def stop(work: Work, spec: Pretraining, packed: Path, steps: int) -> Path:
    """Begin a training that is stopped at the end of step `steps`; its checkpoints' folder."""
    asked = iter(range(10**6))
    work._stop = lambda: next(asked) >= steps - 1
    with pytest.raises(Stopped), work:
        pretrain(spec, 0, packed, SIZE, work, OFTEN)
    return work.scratch / "checkpoints"


def assert_equal(one: Finished, other: Finished) -> None:
    assert one.losses == other.losses
    for name, weight in one.weights.items():
        assert torch.equal(other.weights[name], weight), name


@pytest.fixture(scope="session")
def spec(pretraining: Make) -> Pretraining:
    """Ten steps with dropout, whose draws must be the same after a resume."""
    base = pretraining()
    return pretraining(encoder={**base.encoder.model_dump(), "dropout": 0.1})


def test_training_learns_and_says_what_it_did(begin: Begin, spec: Pretraining, packed: Path) -> None:
    found = finish(begin("pretrain", spec), spec, packed)
    assert [point["step"] for point in read_jsonl(found.folder / "curve.jsonl")] == list(range(1, 11))
    assert found.losses[0] == pytest.approx(math.log(SIZE), rel=0.02) and found.losses[-1] < found.losses[0] - 0.1
    assert (found.record["outcome"], found.record["resumed_at"]) == ("done", 0)
    assert (found.rows["updates"], found.rows["tokens"]) == (10, 2560)
    assert found.rows["parameters"] == sum(weight.numel() for weight in found.weights.values())


def test_the_record_says_how_many_runs_shared_the_device_at_most(
    begin: Begin, spec: Pretraining, packed: Path
) -> None:
    answers, told = iter([0, 2, *[1] * 20]), []

    def seat(peak_mb: float) -> int:
        told.append(peak_mb)
        return next(answers)

    with begin("pretrain", spec) as work:
        said = pretrain(spec, 0, packed, SIZE, work, OFTEN, seat=seat)
    assert said["shared_with"] == 2 and (said["devices"], said["out_of_memory"]) == (1, 0)
    assert all(peak == 0 for peak in told) or torch.cuda.is_available()


@pytest.mark.parametrize("at", [1, 5, 9])
def test_a_training_that_was_interrupted_ends_bit_for_bit_like_one_that_was_not(
    begin: Begin, spec: Pretraining, packed: Path, at: int
) -> None:
    whole = finish(begin("pretrain", spec, pack="another"), spec, packed)
    stop(begin("pretrain", spec), spec, packed, at)
    resumed = finish(begin("pretrain", spec), spec, packed)
    assert resumed.record["resumed_at"] == at
    assert_equal(resumed, whole)


@pytest.mark.parametrize("sharing", ["es", "gdes"])
def test_an_interrupted_generator_and_discriminator_end_bit_for_bit_like_others(
    begin: Begin, spec: Pretraining, packed: Path, sharing: str
) -> None:
    objective = build(Rtd, {"masking": "dynamic", "sharing": sharing}, "objective")
    both = spec.model_copy(update={"objective": objective})
    whole = finish(begin("pretrain", both, pack="another"), both, packed)
    stop(begin("pretrain", both), both, packed, 5)
    resumed = finish(begin("pretrain", both), both, packed)
    assert (resumed.record["resumed_at"], resumed.record["outcome"]) == (5, "done")
    assert_equal(resumed, whole)
    assert len(whole.losses) == 10 and whole.losses[0] == pytest.approx(math.log(SIZE) + 50 * math.log(2), rel=0.05)
    assert any(name.startswith("generator_head.") for name in whole.weights)


@pytest.mark.drill
@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["mlm", "rtd"])
def test_a_pretraining_killed_at_twenty_points_ends_bit_for_bit_like_one_that_was_not(
    killed: Callable[..., dict[str, Any]],
    pretraining: Make,
    spec: Pretraining,
    packed: Path,
    kind: str,
    masking: str,
    loader_workers: int,
) -> None:
    """With accumulation: each step is two or three micro-batches."""
    budget = {"train_tokens": 80 * 256, "batch_tokens": 256}
    objective = {"kind": kind, "masking": masking}
    asked = pretraining(encoder=spec.encoder.model_dump(), budget=budget, objective=objective)
    runtime = {"micro_batch_rows": 3, "loader_workers": loader_workers}
    said = killed("pretrain", asked, 80, runtime=runtime, places={"pack": str(packed)}, vocabulary=SIZE)
    assert said["killed"] == 20 and said["resumed_at"] > 60


def test_batches_made_ahead_are_the_same(begin: Begin, spec: Pretraining, packed: Path) -> None:
    whole = finish(begin("pretrain", spec, pack="another"), spec, packed)
    stop(begin("pretrain", spec), spec, packed, 5)
    ahead = OFTEN.model_copy(update={"loader_workers": 2})
    assert_equal(finish(begin("pretrain", spec), spec, packed, runtime=ahead), whole)


def test_a_damaged_checkpoint_costs_steps_and_no_difference(begin: Begin, spec: Pretraining, packed: Path) -> None:
    whole = finish(begin("pretrain", spec, pack="another"), spec, packed)
    newest = max(stop(begin("pretrain", spec), spec, packed, 5).glob("*.ckpt"))
    newest.write_bytes(newest.read_bytes()[:-1000])
    resumed = finish(begin("pretrain", spec), spec, packed)
    assert resumed.record["resumed_at"] == 4
    assert_equal(resumed, whole)


def test_seeds_differ_from_the_first_step(begin: Begin, spec: Pretraining, packed: Path) -> None:
    one, other = (finish(begin("pretrain", spec, seed), spec, packed, seed) for seed in (0, 1))
    assert all(a != b for a, b in zip(one.losses, other.losses, strict=True))


@pytest.mark.parametrize("lr", [1e4, 1e38])
def test_a_training_that_diverges_is_a_result(begin: Begin, pretraining: Make, packed: Path, lr: float) -> None:
    spec = pretraining(optimizer={"kind": "adamw", "lr": lr}, schedule="constant")
    found = finish(begin("pretrain", spec), spec, packed)
    assert found.record["outcome"] == "diverged"
    assert 1 < found.record["diverged_step"] <= 10
    assert len(found.losses) < found.record["diverged_step"]
    assert not (found.folder / "encoder.safetensors").exists()


def test_mixed_precision_is_near_and_not_equal(begin: Begin, pretraining: Make, packed: Path) -> None:
    specs = [pretraining(precision=precision) for precision in ("fp32", "bf16")]
    full, mixed = (finish(begin("pretrain", spec), spec, packed).losses for spec in specs)
    assert full != mixed and full == pytest.approx(mixed, rel=0.02)


# --- trials that are judged ---


def judge(packed: Path, worse_than: float = math.inf) -> Judge:
    """Told at each fifth of the budget, the loss being the norm of an encoder's weights; ended above `worse_than`."""

    def measure(folder: Path) -> float:
        return float(sum(weight.norm() for weight in load_file(folder / "encoder.safetensors").values()))

    return Judge(5, measure, lambda told: told[max(told)] > worse_than)


def tried(work: Work, spec: Pretraining, packed: Path, judge: Judge, steps: int | None = None) -> Finished | None:
    """A judged training to its end, or until it is stopped after `steps`."""
    asked = iter(range(10**6))
    work._stop = lambda: steps is not None and next(asked) >= steps - 1
    try:
        with work:
            said: dict[str, Any] = pretrain(spec, 0, packed, SIZE, work, OFTEN, judge=judge)
            work.commit("provenance", **said)
    except Stopped:
        return None
    store, key = work.store, work.stage.key
    return Finished(store.folder(key), store.record(key), {row["metric"]: row["value"] for row in store.rows(key)})


def test_what_is_judged_and_not_pruned_trains_bit_for_bit_like_what_nobody_judges(
    begin: Begin, spec: Pretraining, packed: Path
) -> None:
    plain = finish(begin("pretrain", spec), spec, packed)
    judged = tried(begin("pretrain", spec, trial0="an earlier one"), spec, packed, judge(packed))
    assert judged and judged.record["outcome"] == "done" and list(judged.record["reports"]) == ["1", "2", "3", "4"]
    assert_equal(judged, plain)
    assert not (judged.folder / "reported").exists()


@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_pruned_trial_is_ended_at_the_same_report_whether_it_was_interrupted_or_not(
    begin: Begin, spec: Pretraining, packed: Path, at: int
) -> None:
    whole = tried(begin("pretrain", spec), spec, packed, judge(packed))
    assert whole
    third = whole.record["reports"]["3"]
    limit = (third + whole.record["reports"]["2"]) / 2  # the norm grows, so the third report is the first above it
    pruned = tried(begin("pretrain", spec, trial0="a"), spec, packed, judge(packed, limit))
    assert tried(begin("pretrain", spec, trial0="b"), spec, packed, judge(packed, limit), at) is None
    resumed = tried(begin("pretrain", spec, trial0="b"), spec, packed, judge(packed, limit))
    for found in (pruned, resumed):
        assert found and (found.record["outcome"], found.record["pruned_step"]) == ("pruned", 6)
        assert found.record["reports"] == {k: whole.record["reports"][k] for k in ("1", "2", "3")}
        assert found.rows["updates"] == 6 and not (found.folder / "encoder.safetensors").exists()
    assert resumed and resumed.record["resumed_at"] == at
