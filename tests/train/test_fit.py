"""Where a training runs."""

import pytest
import torch

from paribus.errors import ParibusError
from paribus.spec.run import Runtime
from paribus.train.fit import device, use_threads


def test_a_device_is_taken_by_its_name() -> None:
    assert device(Runtime(device="cpu")).type == "cpu"
    assert device(Runtime()).type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ParibusError, match="--device gpu: expected auto, cpu, cuda or cuda:N"):
        device(Runtime(device="gpu"))
    if not torch.cuda.is_available():
        with pytest.raises(ParibusError, match="--device cuda:1: no GPU is visible here"):
            device(Runtime(device="cuda:1"))


def test_the_number_of_threads_is_the_runtimes() -> None:
    before = torch.get_num_threads()
    use_threads(Runtime(threads=3))
    assert torch.get_num_threads() == 3
    use_threads(Runtime(threads=before))
