"""Spec: data that can change a number in a table. Frozen, closed, hashed.

`Slot` is a union that grows by subclassing: a field typed `Position` takes any subclass of `Position`, told apart by
its `kind`.  A user's own module adds a variant by defining the subclass; keys, errors and contract tests follow.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr, ValidationError
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


def later(default: Any) -> Any:
    """A field added after results existed; `default` means 'as before', and then it stays out of the key."""
    return Field(default, json_schema_extra={"later": True})


def location(default: Any = ...) -> Any:
    """A field that says where content lies, not what it is: it stays out of the key, its checksum stands in."""
    return Field(default, json_schema_extra={"location": True})


class Spec(BaseModel):
    """Data that can change a number in a table."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
    _canonical: str | None = PrivateAttr(None)

    def __eq__(self, other: object) -> bool:
        """Equal fields; pydantic would also compare whether the canonical text has been asked for."""
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), canonical(self)))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy that works its canonical text out anew: pydantic would copy that of the original."""
        copy = super().model_copy(update=update, deep=deep)
        copy._canonical = None
        return copy


def _marked(field: Any, mark: str) -> bool:
    return bool((field.json_schema_extra or {}).get(mark))


def _content(value: Any) -> Any:
    """`value` as plain JSON data, without locations and without later fields that still mean 'as before'."""
    if isinstance(value, Spec):
        content = {
            name: _content(getattr(value, name))
            for name, field in type(value).model_fields.items()
            if not _marked(field, "location")
            and not (_marked(field, "later") and getattr(value, name) == field.default)
        }
        if isinstance(value, Slot) and value.code:
            content["code"] = value.code
        return content
    if isinstance(value, dict):
        return {key: _content(value[key]) for key in value}
    if isinstance(value, tuple | list):
        return [_content(item) for item in value]
    return value


def canonical(spec: Spec) -> str:
    """The text a spec is known by: two specs with equal canonical text are the same work. Computed once a spec."""
    known: str | None = (spec.__pydantic_private__ or {}).get("_canonical")  # as spec._canonical, ten times faster
    if known is None:
        known = spec._canonical = json.dumps(_content(spec), sort_keys=True, separators=(",", ":"))
    return known


def digest(text: str) -> str:
    """The 16 hexadecimal digits a content key ends in."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Slot(Spec):
    """Base of a union. A direct subclass names the slot; its subclasses are the variants, told apart by `kind`."""

    kind: str
    code: ClassVar[str] = ""
    """For a user's own variant, the checksum of the file that defines it: edited code is other work."""

    @classmethod
    def variants(cls) -> dict[str, type[Self]]:
        """Every variant of this slot by its kind, shipped ones and users' own."""
        found: dict[str, type[Self]] = {}
        for variant in cls.__subclasses__():
            kind = variant.model_fields["kind"].default
            if found.get(kind, variant) is not variant and found[kind].__module__ != variant.__module__:
                raise TypeError(f"two variants of {cls.__name__} are called {kind!r}: {found[kind]} and {variant}")
            found[kind] = variant
        return found

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        if cls.__name__ == "Slot" or Slot not in cls.__bases__:
            return handler(source)
        return core_schema.no_info_plain_validator_function(
            cls._choose,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.model_dump()),
        )

    @classmethod
    def _choose(cls, value: Any) -> Self:
        """The variant that `value` (a mapping with a kind, or the kind alone) describes."""
        if isinstance(value, cls):
            return value
        data = {"kind": value} if isinstance(value, str) else value
        if not isinstance(data, dict) or "kind" not in data:
            raise PydanticCustomError(
                "choices", "needs a kind", {"found": value, "choices": sorted(cls.variants()), "at": "kind"}
            )
        variant = cls.variants().get(data["kind"])
        if variant is None:
            raise PydanticCustomError(
                "choices", "unknown kind", {"found": data["kind"], "choices": sorted(cls.variants()), "at": "kind"}
            )
        try:
            return variant.model_validate(data)
        except ValidationError as error:
            # pydantic would flatten this to a string; `spec.load` unfolds it, so the key keeps its whole path.
            nested = error.errors(include_url=False)
            raise PydanticCustomError("nested", "nested", {"errors": nested, "model": variant}) from error
