"""What the layout promises: imports point downwards, heavy ones wait, and the standard library keeps its names."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from paribus.plan.estimate import Cost, cost_key
from paribus.plan.plan import plan
from paribus.project import find

HEAVY = {"torch", "pytorch_lightning", "lightning", "mlflow", "optuna", "transformers", "pandas"}
LOADED = """
import sys
from paribus.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def loaded(root: Path, store: Path, *arguments: str) -> set[str]:
    """The top-level packages that a command line loads."""
    environment = {**os.environ, "PARIBUS_STORE": str(store)}
    command = [sys.executable, "-c", LOADED, *arguments]  # sys.argv[0] is then "-c"
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout, done.stderr
    return {name.split(".")[0] for name in done.stderr.split()}


def test_imports_keep_their_contracts(root: Path) -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_platform_is_still_the_module_of_the_standard_library(root: Path) -> None:
    assert not (root / "platform" / "__init__.py").exists()
    assert not list((root / "platform").rglob("test_*.py"))
    command = [sys.executable, "-c", "import platform; print(platform.system(), platform.__file__)"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert str(root) not in done.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["list", "experiments"], ["list", "tables"], ["show", "masking"]])
def test_looking_loads_nothing_heavy(root: Path, tmp_path: Path, arguments: list[str]) -> None:
    assert not loaded(root, tmp_path, *arguments) & HEAVY


def test_planning_loads_nothing_heavy_once_costs_are_known(root: Path, tmp_path: Path) -> None:
    costs = {cost_key(arm.run): asdict(Cost(1, 1, 1.0)) for arm in plan(find(root), "masking", "debug").arms}
    (tmp_path / "costs.json").write_text(json.dumps(costs))
    assert not loaded(root, tmp_path, "plan", "masking", "--scale", "debug") & HEAVY


def test_one_place_builds_a_trainer(root: Path) -> None:
    files = [path for path in (root / "platform" / "paribus").rglob("*.py") if "pl.Trainer(" in path.read_text()]
    assert [path.name for path in files] == ["fit.py"]
