"""Lightning, without torchmetrics and torch's compiler: most of the seconds that it takes to import.

torchmetrics brings scipy, matplotlib and transformers along, the compiler sympy. Lightning asks only whether a logged
value is a metric, and a module compiled; here neither ever is. Whoever imports them later gets the real ones, but not
another thread meanwhile.
"""

import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return function or _as_it_is


STAND_INS: dict[str, dict[str, Any]] = {
    "torchmetrics": {name: type(name, (), {}) for name in ("Metric", "MetricCollection")},
    "torch._dynamo": {"OptimizedModule": type("OptimizedModule", (), {}), "disable": _as_it_is},
}


@contextmanager
def _without(name: str) -> Iterator[None]:
    """With a stand-in for a module that nobody has loaded yet."""
    if {name, "pytorch_lightning"} & set(sys.modules):
        yield
        return
    stand_in = ModuleType(name)
    stand_in.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(stand_in).update(STAND_INS[name])
    sys.modules[name] = stand_in
    try:
        yield
    finally:
        del sys.modules[name]


try:
    with _without("torchmetrics"), _without("torch._dynamo"):
        import pytorch_lightning as pl
except (ImportError, AttributeError):  # a version of it, or of torch, that asks for more of them
    for name in [name for name in sys.modules if name.startswith(("pytorch_lightning", "lightning_fabric"))]:
        del sys.modules[name]
    import pytorch_lightning as pl

from lightning_fabric.plugins.environments.lightning import LightningEnvironment  # noqa: E402  -- is part of it

__all__ = ["LightningEnvironment", "pl"]
