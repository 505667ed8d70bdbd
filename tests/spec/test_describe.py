"""A spec that explains itself."""

from pathlib import Path

import yaml

from paribus.plan.plan import plan
from paribus.project import find
from paribus.spec.describe import describe
from paribus.spec.load import build, parse
from paribus.spec.run import Run

ROOT = Path(__file__).parents[2]


def test_a_described_run_reads_back_as_the_same_run() -> None:
    run = plan(find(ROOT), "masking", "tiny").baseline.run
    assert build(Run, parse("\n".join(describe(run)), "described"), "described") == run


def test_values_come_with_their_meaning_and_variants_with_their_source() -> None:
    text = "\n".join(describe(plan(find(ROOT), "masking", "tiny").baseline.run))
    assert "attention:  # Every token attends to every token of its row. Vaswani et al. 2017" in text
    assert "  # Largest gradient norm; 0 does not clip.\n  clip: 1.0\n" in text


def test_plain_data_is_plain_yaml() -> None:
    data = {"a": {"b": [1, "two"], "c": None}, "d": "x: y"}
    assert yaml.safe_load("\n".join(describe(data))) == data
