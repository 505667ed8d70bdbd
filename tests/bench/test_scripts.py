"""The scripts in benchmarks/ measure what they say."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from paribus.bench.curves import apart
from paribus.bench.train import sized
from paribus.interop.config import family_of
from paribus.spec.run import Run, Runtime

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CPU = Runtime(device="cpu")
Script = Callable[[str], ModuleType]
WITHOUT_DROPOUT = {"encoder.dropout": 0.0, "encoder.attention.dropout": 0.0}


@pytest.fixture
def script() -> Script:
    """A script as a module."""

    def load(name: str) -> ModuleType:
        found = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert found and found.loader
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module

    return load


def test_every_row_of_the_table_of_benchmarks_can_be_had_and_has_its_peers(script: Script) -> None:
    for base, scale, changes, batch, _ in script("steps").ROWS.values():
        assert family_of(sized(base, scale, changes, batch).encoder, False) in ("bert", "deberta-v2")


OTHERS = "curves-", "finetune-", "rtd-", "runs-", "seeds-", "together-"
STEPS = [file for file in sorted(BENCHMARKS.glob("*/*.json")) if not file.stem.startswith(OTHERS)]


@pytest.mark.parametrize("file", STEPS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_what_is_in_the_table_of_benchmarks_can_be_measured_again(file: Path, script: Script) -> None:
    base, scale, changes, batch, _ = script("steps").ROWS[file.stem.removesuffix("-cudnn")]
    assert sized(base, scale, changes, batch) == Run.model_validate(json.loads(file.read_text())["run"])


@pytest.mark.parametrize("folder", ["h200-2", "h200-3"])
def test_the_curves_that_are_kept_are_of_the_base_as_it_is(folder: str) -> None:
    told = json.loads((BENCHMARKS / folder / "curves-bert-small.json").read_text())
    assert Run.model_validate(told["run"]) == sized("bert", "small", {}, None)
    assert (told["ways_apart"], told["seeds_apart"]) == apart(told["found"])


def test_the_rows_of_the_table_are_measured_with_one_ceiling(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, row = script("steps"), ("bert", "debug", {}, "8x16", ["off"])
    for name, value in (("ROWS", {"one": row, "other": row}), ("PEERS", []), ("STEPS", 2)):
        monkeypatch.setattr(steps, name, value)
    steps.main(tmp_path, ["one", "other"])
    one, other = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "other"))
    assert one["card"] == other["card"] and one["processes"] != other["processes"]


def test_seeds_that_are_batched_train_as_they_do_apart(script: Script) -> None:
    seeds, run = script("seeds"), sized("bert", "debug", WITHOUT_DROPOUT, "8x16")
    alone, together = seeds.apart(run, 3, torch.device("cpu"), "off"), seeds.batched(run, 3, torch.device("cpu"), "off")
    for _ in range(5):
        losses = torch.stack([one.step() for one in alone])
        torch.testing.assert_close(together.step(), losses, rtol=0, atol=5e-6)
    assert len(set(losses.tolist())) == 3 and losses.max() < 6


def test_each_way_of_training_seeds_is_compared_with_one_alone(script: Script, tmp_path: Path) -> None:
    script("seeds").main(tmp_path / "seeds.json", sized("bert", "debug", {}, "8x16"), [2], 2, CPU, "bert@debug")
    rows = json.loads((tmp_path / "seeds.json").read_text())["rows"]
    assert [(row["way"], row["seeds"]) for row in rows] == [("alone", 1), ("streams", 2), ("batched", 2)]
    assert [row["ratio"] * rows[0]["tokens_per_second"] for row in rows] == [
        pytest.approx(row["tokens_per_second"]) for row in rows
    ]


def test_fine_tuning_is_timed_in_both_ways(script: Script, tmp_path: Path) -> None:
    finetune, out = script("finetune"), tmp_path / "finetune.json"
    finetune.main(out, sized("bert", "debug", {}, None), finetune.recipe("debug"), 512, CPU, "bert@debug")
    told = json.loads(out.read_text())
    steps = told["recipe"]["epochs"] * 512 / told["recipe"]["batch_items"] - finetune.WARM_UP
    assert [(row["compile"], len(row["step_ms"])) for row in told["rows"]] == [("off", steps), ("graphs", steps)]
    assert all(row["items_per_second"] > 0 for row in told["rows"])


@pytest.mark.drill
def test_whole_runs_are_counted_after_the_first_of_each_worker(script: Script, tmp_path: Path) -> None:
    script("runs").main(tmp_path / "runs.json", "debug", [], [("off", 1)], CPU)
    (row,) = json.loads((tmp_path / "runs.json").read_text())["rows"]
    (first, last), (began, again) = row["ends"], row["first_readings"]
    assert row["seconds_a_run"] == pytest.approx(last - first) and 0 < began < first < again < last
    assert [stage["kind"] for stage in row["stages"]] == ["pretrain", "evaluate"] * 2
