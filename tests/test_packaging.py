"""The wheel holds everything: code, shipped YAML, paper tables, task files."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {
    "ablations": ROOT / "ablations",
    "experiments": ROOT / "experiments",
    "dashboards": ROOT / "dashboards",
    "tasks": ROOT / "platform/paribus/tasks",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "paribus"
    # A copy of what git tracks, so that the build leaves nothing behind here and takes nothing untracked along.
    subprocess.run(["git", "clone", "-q", "--depth", "1", ROOT.as_uri(), source], check=True)
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", out, source]
    built = subprocess.run(argv, capture_output=True, text=True)
    if built.returncode and "setuptools" in built.stderr and "No matching distribution" in built.stderr:
        pytest.skip("needs a package index to build a wheel: setuptools could not be fetched")
    assert built.returncode == 0, built.stderr
    return next(Path(out).glob("*.whl"))


@pytest.mark.drill
def test_a_wheel_ships_every_yaml_file_and_runs_without_the_repository(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for folder, place in FOLDERS.items():
        for path in place.rglob("*.yaml"):
            if str(path.relative_to(ROOT)) in tracked:
                assert f"paribus/{folder}/{path.relative_to(place)}" in names
    listed = subprocess.run(
        [sys.executable, "-m", "paribus", "list", "experiments"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert "masking" in listed.stdout, listed.stderr
