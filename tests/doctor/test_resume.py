"""Resuming is proved by comparing, so what differs must be found."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from paribus import cli
from paribus.doctor.resume import first_difference


def stage(folder: Path, weight: float, rows: str = '{"metric": "updates"}\n') -> Path:
    folder.mkdir()
    (folder / "rows.jsonl").write_text(rows)
    save_file({"a": np.ones(3, np.float32), "b": np.array([[1.0, weight]], np.float32)}, folder / "encoder.safetensors")
    return folder


def test_the_first_tensor_or_row_that_differs_in_a_bit_is_named(tmp_path: Path) -> None:
    one = stage(tmp_path / "one", 0.0)
    assert first_difference(one, stage(tmp_path / "same", 0.0)) is None
    assert first_difference(one, stage(tmp_path / "sign", -0.0)) == "encoder.safetensors: b differs by up to 0"
    assert first_difference(one, stage(tmp_path / "far", 0.5)) == "encoder.safetensors: b differs by up to 0.5"
    rows = first_difference(one, stage(tmp_path / "rows", 0.0, '{"metric": "tokens"}\n'))
    assert rows == 'rows.jsonl: {"metric": "updates"} undisturbed, {"metric": "tokens"} resumed'


@pytest.mark.drill
def test_runs_killed_at_a_checkpoint_resume_to_the_same_bits_on_this_machine(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    command = [sys.executable, "-m", "paribus", "doctor", "resume", "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["mlm", "rtd"]
    assert all(line.endswith(": ok, the same bits") for line in lines)
