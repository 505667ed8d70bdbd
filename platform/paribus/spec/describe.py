"""A spec as YAML that explains itself: each value with what its field means, each variant with its source."""

import inspect
from collections.abc import Iterator
from typing import Any

import yaml

from paribus.spec.base import Slot, Spec


def describe(value: Any, indent: int = 0) -> Iterator[str]:
    """The lines of `value` (a spec, or plain data with specs in it) as YAML with comments."""
    pad = "  " * indent
    fields = {} if isinstance(value, dict) else type(value).model_fields
    items = value if isinstance(value, dict) else {name: getattr(value, name) for name in fields}
    for name, item in items.items():
        key = _scalar(name)
        meaning = getattr(fields.get(name), "description", None)
        yield from (f"{pad}# {line}" for line in (meaning or "").splitlines())
        if isinstance(item, Spec | dict) and item:
            source = f"  # {_summary(item)}" if isinstance(item, Slot) else ""
            yield f"{pad}{key}:{source}"
            yield from describe(item, indent + 1)
        elif isinstance(item, tuple | list) and any(isinstance(entry, Spec) for entry in item):
            yield f"{pad}{key}:"
            for entry in item:
                lines = list(describe(entry, indent + 2))
                first = next(number for number, line in enumerate(lines) if not line.lstrip().startswith("#"))
                yield from lines[:first]
                yield f"{pad}  - {lines[first].lstrip()}"
                yield from lines[first + 1 :]
        else:
            yield f"{pad}{key}: {_scalar(item)}"


def _summary(slot: Slot) -> str:
    """The first paragraph of a variant's docstring, in one line: what it is and where it is from."""
    return " ".join(inspect.cleandoc(type(slot).__doc__ or "").split("\n\n")[0].split())


def _scalar(value: Any) -> str:
    """Plain data on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("\n...\n").strip()
