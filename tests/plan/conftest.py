"""A project whose experiments and factors are the test's own; the base is a shipped one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.project import Project, find

FILES = {
    "paribus.toml": "",
    "experiments/one.yaml": "{question: q, expect: e, base: bert, factors: [rate], seeds: 3, tasks: [order, cloze]}",
    "experiments/two.yaml": "{question: q, expect: e, base: bert, factors: [rate, place], seeds: 2}",
    "experiments/full.yaml": "{question: q, expect: e, base: bert, factors: [rate, place], design: full, seeds: 1}",
    "ablations/rate.yaml": """
source: test
base: "15"
levels:
  "15": {objective.rate: 0.15}
  "30": {objective.rate: 0.3}
  "40": {objective.rate: 0.4}
""",
    "ablations/place.yaml": """
source: test
base: absolute
levels:
  absolute: {encoder.position: {kind: absolute, max_length: 32}}
  alibi: {encoder.position: {kind: alibi}}
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Project]:
    """Opens the project; further files (path to text) replace or join its own."""

    def make(files: dict[str, str] | None = None) -> Project:
        for name, text in {**FILES, **(files or {})}.items():
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return find(tmp_path / "project")

    return make
