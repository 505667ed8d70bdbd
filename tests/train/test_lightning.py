"""Lightning is imported without what it brings along for metrics."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("module", ["objectives.pretrain", "evaluate.finetune", "bench.train", "bench.together"])
def test_training_imports_nothing_of_torchmetrics(module: str) -> None:
    named = "{'torchmetrics', 'matplotlib', 'transformers'}"
    assert run(f"import sys, paribus.{module}; print({named} & set(sys.modules))") == "set()"


def test_whoever_imports_torchmetrics_later_gets_the_real_one() -> None:
    code = "import paribus.train.lightning, torchmetrics; print(torchmetrics.MeanMetric()(2.0).item())"
    assert run(code) == "2.0"


def test_a_torchmetrics_that_is_there_already_stays() -> None:
    code = "import torchmetrics; from paribus.train.lightning import pl; import sys"
    code += "; print(sys.modules['torchmetrics'] is torchmetrics, pl.core.module.Metric is torchmetrics.Metric)"
    assert run(code) == "True True"
