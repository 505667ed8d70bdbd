"""Lightning is imported without what it brings along for metrics, and nothing loads a compiler unasked."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


TRAINING = ["objectives.pretrain", "evaluate.finetune", "train.fit", "bench.train", "bench.together"]


@pytest.mark.parametrize("module", TRAINING)
def test_training_imports_nothing_of_torchmetrics(module: str) -> None:
    named = "{'torchmetrics', 'matplotlib', 'transformers'}"
    assert run(f"import sys, paribus.{module}; print({named} & set(sys.modules))") == "set()"


def test_a_training_as_written_loads_no_compiler_and_its_evaluation_no_scikit_learn() -> None:
    code = """
import sys, torch, paribus.evaluate.held_out
from paribus.bench.train import Clock, sized, train
from paribus.spec.run import Runtime
clock = Clock(1, torch.device("cpu"))
train(sized("bert", "debug", {}, "8x16"), 1, Runtime(device="cpu"), 0, clock)
print(len(clock.step_ms()), {"torch._dynamo", "sympy", "sklearn", "pandas", "scipy"} & set(sys.modules))
"""
    assert run(code) == "1 set()"


def test_whoever_compiles_later_gets_the_real_compiler() -> None:
    code = "import torch; from paribus.train.lightning import pl; f = torch.compile(lambda x: x + 1, backend='eager')"
    code += "; print(f(torch.ones(1)).item(), torch._dynamo.config is not None)"
    assert run(code) == "2.0 True"


def test_a_lightning_that_asks_more_of_what_is_left_out_gets_all_of_it() -> None:
    code = """
import importlib, sys

class Curious:
    def find_spec(self, name, path=None, target=None):
        if name == "pytorch_lightning.callbacks":
            importlib.import_module("torch._dynamo").config
sys.meta_path.insert(0, Curious())
from paribus.train.lightning import pl
print(pl.Trainer.__name__, sys.modules["torch._dynamo"].__file__ is not None)
"""
    assert run(code) == "Trainer True"


def test_whoever_imports_torchmetrics_later_gets_the_real_one() -> None:
    code = "import paribus.train.lightning, torchmetrics; print(torchmetrics.MeanMetric()(2.0).item())"
    assert run(code) == "2.0"


def test_a_torchmetrics_that_is_there_already_stays() -> None:
    code = "import torchmetrics; from paribus.train.lightning import pl; import sys"
    code += "; print(sys.modules['torchmetrics'] is torchmetrics, pl.core.module.Metric is torchmetrics.Metric)"
    assert run(code) == "True True"
