"""YAML to Spec. Every error names the file, the key, what was found and what would be accepted."""

import copy
import difflib
import json
import re
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from paribus.errors import SpecError
from paribus.spec.base import Slot
from paribus.spec.experiment import Times
from paribus.spec.run import Run

S = TypeVar("S", bound=BaseModel)


class _Repaired(SafeConstructor, Resolver):
    """YAML 1.1 with three repairs: 1e-4 is a number, and a key said twice and half of a character are errors."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        found = super().construct_scalar(node)
        if isinstance(found, str) and (half := re.search("[\ud800-\udfff]", found)):
            problem = f"{half[0]!r} is half of a surrogate pair, which is no character"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return found

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=deep)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Repaired.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?([0-9][0-9_]*)(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


class _Loader(_Repaired, yaml.SafeLoader):
    """Of what it refuses it says which character it is."""


# mypy follows no base that is chosen when it runs.
class _FastLoader(_Repaired, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml, where PyYAML was built with it: a plan reads dozens of files, and this takes a seventh of the time."""


def suggest(name: str, choices: Iterable[str]) -> str:
    """' (did you mean X?)' where something close exists, else the choices, else nothing."""
    choices = list(choices)
    near = difflib.get_close_matches(name, choices, n=1)
    if near:
        return f" (did you mean {near[0]}?)"
    return f"; there is {', '.join(sorted(choices))}" if 0 < len(choices) <= 20 else ""


def read_text(path: Path) -> str:
    """The text of a small file that a user wrote."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 (byte {error.start}: 0x{error.object[error.start]:02x})") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read ({error.strerror})") from None


def parse(text: str, where: str) -> Any:
    """The data in a YAML text."""
    try:
        with suppress(yaml.YAMLError, UnicodeError):
            return yaml.load(text, _FastLoader)
        return yaml.load(text, _Loader)
    except RecursionError:
        raise SpecError(f"{where}: not YAML that can be read (nested too deeply)") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"{where}{line}: {error.problem or 'not YAML'}") from None
    except yaml.YAMLError as error:
        raise SpecError(f"{where}: not YAML ({' '.join(str(error).split())})") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:  # of values: 2026-02-30, !!int x
        raise SpecError(f"{where}: not YAML that can be read ({error})") from None


def load(model: type[S], path: Path) -> S:
    """The YAML file at `path` as a `model`."""
    return build(model, parse(read_text(path), str(path)), str(path))


def build(model: type[S], data: Any, where: str = "") -> S:
    """`data` as a `model`; `where` is what errors call it, if anything."""
    where = where and f"{where}: "
    if not isinstance(data, dict):
        raise SpecError(f"{where}expected keys and values, found {_show(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(where + _explain(error.errors(include_url=False), model)) from None
    except Exception as error:  # of a user's variant: its validator, or what makes a default
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise SpecError(f"{where}{type(error).__name__}: {error} ({at.filename}, line {at.lineno})") from error


def _show(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _explain(errors: list[Any], model: type[BaseModel]) -> str:
    """The first error in one line, the rest counted."""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return _line(_first(errors), model) + more


def _first(errors: list[Any]) -> Any:
    """A misspelt key explains the missing one it stands for, so it comes first."""
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def _line(error: Any, model: type[BaseModel], prefix: str = "") -> str:
    path = [str(part) for part in error["loc"]]
    context = error.get("ctx", {})
    if error["type"] == "nested":
        return _line(_first(context["errors"]), context["model"], ".".join(filter(None, [prefix, *path])))
    if error["type"] == "choices":
        key = ".".join(filter(None, [prefix, *path, context["at"]]))
        choices = ", ".join(repr(choice) for choice in context["choices"])
        found = _show(context["found"])
        near = difflib.get_close_matches(str(context["found"]), context["choices"], n=1)
        return f"{key}: found {found}, expected one of {choices}" + (
            f" (did you mean {near[0]}?)" if near else ""
        )
    key = ".".join(filter(None, [prefix, *path]))
    if error["type"] == "extra_forbidden":
        fields = _fields(model, error["loc"][:-1])
        return f"{key}: no such key" + suggest(path[-1], fields)
    if error["type"] == "missing":
        return f"{key}: missing; it must be given"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{key + ': ' if key else ''}{message}"
    return f"{key}: found {_show(error['input'])}, but {message[0].lower()}{message[1:]}"


def _fields(model: type[BaseModel], path: Iterable[Any]) -> list[str]:
    """The field names of the model at `path` below `model` (as far as the path can be followed)."""
    current: Any = model
    for part in path:
        field = getattr(current, "model_fields", {}).get(part)
        if field is None:
            return []
        current = field.annotation
    return list(getattr(current, "model_fields", {}))


def _parent(data: dict[str, Any], path: str, where: str) -> dict[str, Any]:
    """What holds the last key of a dotted `path` of the plain data of a Run; a key that is not there is an error."""
    *parents, last = path.split(".")
    here: Any = data
    for depth, part in enumerate([*parents, last]):
        if not isinstance(here, dict) or part not in here:
            inside = ".".join([*parents, last][:depth])
            kind = f" for kind {here['kind']!r}" if isinstance(here, dict) and "kind" in here else ""
            choices = here if isinstance(here, dict) else ()
            raise SpecError(f"{where}: {path}: no such key{kind} in {inside or 'a run'}" + suggest(part, choices))
        if depth < len(parents):
            here = here[part]
    found: dict[str, Any] = here
    return found


def get_path(data: dict[str, Any], path: str, where: str) -> Any:
    """What stands at a dotted `path` of the plain data of a Run; a key that is not there is an error."""
    return _parent(data, path, where)[path.rpartition(".")[2]]


def set_path(data: dict[str, Any], path: str, value: Any, where: str) -> None:
    """Set a dotted `path` of the plain data of a Run in place; a key that is not there is an error.

    Another `kind` keeps what both kinds have, drops what only the old one has, and adds the new one's defaults. What a
    mapping leaves out has its default, so that a later path can set it.
    """
    parent, last = _parent(data, path, where), path.rpartition(".")[2]
    if isinstance(value, dict) and not is_relative(value) and _is_number(parent[last]):
        raise SpecError(f"{where}: {path}: found {_show(value)}, expected a number, or {{times: k}} for k times it")
    # A copy: a later path may set something inside it, and the file it came from serves other arms too.
    parent[last] = _times(value, parent[last], f"{where}: {path}") if is_relative(value) else copy.deepcopy(value)
    if last == "kind" and (variant := _model(data, path.split(".")[:-1])):
        kept = {name: old for name, old in parent.items() if name in variant.model_fields}
        parent.clear()
        parent.update({**_defaults(variant), **kept})
    elif isinstance(parent[last], dict) and (model := _model(data, path.split("."))):
        parent[last] = {**_defaults(model), **parent[last]}


def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The defaults of a class as plain data, but for those that its own code makes."""
    plain = {name: field for name, field in model.model_fields.items() if not field.is_required()}
    found = {name: field.get_default() for name, field in plain.items() if field.default_factory is None}
    return {name: value.model_dump() if isinstance(value, BaseModel) else value for name, value in found.items()}


def _model(data: Mapping[str, Any], path: Iterable[str]) -> type[BaseModel] | None:
    """The class of what is at `path` of the plain data of a Run, None where it has none or its kind is unknown."""
    model: Any = Run
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        model, data = field and field.annotation, data[part]
        if isinstance(model, type) and issubclass(model, Slot):
            model = model.variants().get(data.get("kind", "") if isinstance(data, Mapping) else data)
    return model if isinstance(model, type) and issubclass(model, BaseModel) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_relative(value: Any) -> bool:
    """Whether the value of a patch is relative to what is there: {times: k}."""
    return isinstance(value, dict) and value.keys() == {"times"}


def _times(value: dict[str, Any], before: Any, where: str) -> int | float:
    """`before` times k, whole where `before` is whole."""
    times = build(Times, value, where).times
    if not _is_number(before):
        raise SpecError(f"{where}: found {{times: {times:g}}}, but {_show(before)} is no number")
    found = float(f"{before * times:.12g}")
    if isinstance(before, float):
        return found
    if found != int(found):
        raise SpecError(f"{where}: found {{times: {times:g}}}, but {times:g} x {before} is no whole number")
    return int(found)


def apply(data: dict[str, Any], patch: Mapping[str, Any], where: str) -> None:
    """Apply a patch (dotted path to value) to the plain data of a Run in place."""
    for path, value in patch.items():
        set_path(data, path, value, where)


def parse_override(text: str) -> tuple[str, Any]:
    """`optimizer.lr=3e-4` as its path and value, the value read as YAML."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise SpecError(f"--set {text}: expected path=value, for example optimizer.lr=3e-4")
    return path.strip(), parse(value, f"--set {text}")


def parse_overrides(texts: Iterable[str]) -> dict[str, Any]:
    """What `--set` says, path to value, in the order given; a path said twice is an error."""
    found: dict[str, Any] = {}
    for path, value in map(parse_override, texts):
        if path in found:
            raise SpecError(f"--set {path}: found twice, {_show(found[path])} and {_show(value)}; expected once")
        found[path] = value
    return found
