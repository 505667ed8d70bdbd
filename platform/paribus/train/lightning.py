"""Lightning, without torchmetrics: two thirds of the seconds that it takes to import, and nothing here logs metrics.

torchmetrics brings scipy, matplotlib and transformers along. Lightning asks only whether a logged value is one of its
metrics. Whoever imports torchmetrics later gets the real one.
"""

import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def _without_torchmetrics() -> Iterator[None]:
    if {"torchmetrics", "pytorch_lightning"} & set(sys.modules):
        yield
        return
    stand_in = ModuleType("torchmetrics")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torchmetrics", None)
    stand_in.Metric, stand_in.MetricCollection = (type(name, (), {}) for name in ("Metric", "MetricCollection"))  # type: ignore[attr-defined]
    sys.modules["torchmetrics"] = stand_in
    try:
        yield
    finally:
        del sys.modules["torchmetrics"]


with _without_torchmetrics():
    import pytorch_lightning as pl

__all__ = ["pl"]
