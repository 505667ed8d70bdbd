"""YAML to Spec, and what a user is told."""

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from paribus.errors import SpecError
from paribus.spec.base import Slot, Spec
from paribus.spec.load import apply, build, load, parse, parse_override


class Fruit(Slot):
    pass


class Apple(Fruit):
    kind: Literal["apple"] = "apple"
    weight: float


class Plum(Fruit):
    kind: Literal["plum"] = "plum"


def hollow() -> float:
    raise ZeroDivisionError("no flesh")


class Cherry(Spec):
    stone: float = Field(default_factory=hollow)


class Tray(Spec):
    fruit: Fruit


class Basket(Spec):
    name: str
    tray: Tray | None = None
    count: int = 1


def told(text: str) -> str:
    with pytest.raises(SpecError) as error:
        build(Basket, parse(text, "basket.yaml"), "basket.yaml")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nmae: a", "basket.yaml: nmae: no such key (did you mean name?) (and 1 more)"),
        ("count: 2", "basket.yaml: name: missing; it must be given"),
        (
            "{name: a, tray: {fruit: {kind: aple}}}",
            "basket.yaml: tray.fruit.kind: found \"aple\", expected one of 'apple', 'plum' (did you mean apple?)",
        ),
        ("{name: a, tray: {fruit: {weight: 1}}}", 'basket.yaml: tray.fruit.kind: found {"weight": 1}, expected one of'),
        ("{name: a, tray: {fruit: {kind: apple}}}", "basket.yaml: tray.fruit.weight: missing; it must be given"),
        (
            "{name: a, tray: {fruit: {kind: apple, wieght: 2}}}",
            "basket.yaml: tray.fruit.wieght: no such key (did you mean weight?)",
        ),
        (
            "{name: a, tray: {fruit: {kind: apple, weight: heavy}}}",
            'basket.yaml: tray.fruit.weight: found "heavy", but input should be a valid number',
        ),
        ("{name: a, count: many}", 'basket.yaml: count: found "many", but input should be a valid integer'),
        ("[a, b]", 'basket.yaml: expected keys and values, found ["a", "b"]'),
        ("", "basket.yaml: expected keys and values, found null"),
        ("{name: a, name: b}", "basket.yaml, line 1: key 'name' is given twice"),
        ("{[a]: 1}", "basket.yaml: not YAML that can be read (unhashable"),
        ("name: 2026-02-30", "basket.yaml: not YAML that can be read (day is out of range for month)"),
        ("name: !!bool x", "basket.yaml: not YAML that can be read ('x')"),
        ("name: !!timestamp x", "basket.yaml: not YAML that can be read ("),
        ("[" * 2000, "basket.yaml: not YAML that can be read (nested too deeply)"),
        ("name: a\ncount: [1", "basket.yaml, line 2: "),
        ('name: "a \\ud800"', "basket.yaml, line 1: '\\ud800' is half of a surrogate pair, which is no character"),
    ],
)
def test_an_error_names_file_key_finding_and_choices_in_one_line(text: str, expected: str) -> None:
    assert told(text).startswith(expected)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("2E5", 2e5), ("-1.5e-3", -1.5e-3), ("1e", "1e"), ("e4", "e4")]
)
def test_scientific_notation_is_a_number(text: str, value: object) -> None:
    assert parse(text, "x") == value


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("name: café".encode("latin-1"))
    with pytest.raises(SpecError, match=r"latin.yaml: not UTF-8 \(byte 9: 0xe9\)"):
        load(Basket, path)
    with pytest.raises(SpecError, match="none.yaml: cannot be read"):
        load(Basket, tmp_path / "none.yaml")


def test_an_override_is_a_path_and_a_yaml_value() -> None:
    assert parse_override("optimizer.lr=3e-4") == ("optimizer.lr", 3e-4)
    assert parse_override("packing={kind: x, a: [1, 2]}") == ("packing", {"kind": "x", "a": [1, 2]})
    for wrong in ("optimizer.lr", "=3", " =3"):
        with pytest.raises(SpecError, match="expected path=value"):
            parse_override(wrong)


def test_a_path_that_is_not_there_is_an_error_that_says_what_is() -> None:
    data: dict[str, Any] = {"fruit": {"kind": "apple", "weight": 1}}
    with pytest.raises(
        SpecError, match=r"f: fruit.wieght: no such key for kind 'apple' in fruit \(did you mean weight\?\)"
    ):
        apply(data, {"fruit.wieght": 2}, "f")
    with pytest.raises(SpecError, match="f: friut: no such key in a run"):
        apply(data, {"friut": 2}, "f")
    with pytest.raises(SpecError, match="f: fruit.weight.unit: no such key in fruit.weight"):
        apply(data, {"fruit.weight.unit": 2}, "f")
    assert data == {"fruit": {"kind": "apple", "weight": 1}}


def test_a_patch_is_left_as_it_was_when_a_later_one_sets_something_inside_it() -> None:
    data: dict[str, Any] = {"fruit": None}
    first = {"fruit": {"kind": "apple", "weight": 1}}
    apply(data, first, "first")
    apply(data, {"fruit.weight": 2}, "second")
    assert data == {"fruit": {"kind": "apple", "weight": 2}}
    assert first == {"fruit": {"kind": "apple", "weight": 1}}


def test_a_relative_value_multiplies_what_is_there_and_whole_numbers_stay_whole() -> None:
    data: dict[str, Any] = {"budget": {"tokens": 96, "name": "b", "on": True}, "lr": 0.004}
    patch = {"budget.tokens": {"times": 8}, "lr": {"times": 2.83}}
    apply(data, patch, "here")
    assert data["budget"]["tokens"] == 768 and isinstance(data["budget"]["tokens"], int)
    assert data["lr"] == 0.01132
    apply(data, {"budget.tokens": {"times": 0.25}}, "here")
    assert data["budget"]["tokens"] == 192 and patch["lr"] == {"times": 2.83}


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ({"budget.tokens": {"times": 0.3}}, "here: budget.tokens: found {times: 0.3}, but 0.3 x 96 is no whole number"),
        ({"budget.name": {"times": 2}}, 'here: budget.name: found {times: 2}, but "b" is no number'),
        ({"budget.on": {"times": 2}}, "here: budget.on: found {times: 2}, but true is no number"),
        ({"budget.tokens": {"times": 0}}, "here: budget.tokens: times: found 0, but input should be greater than 0"),
    ],
)
def test_a_relative_value_that_cannot_be_is_refused(patch: dict[str, Any], expected: str) -> None:
    with pytest.raises(SpecError) as error:
        apply({"budget": {"tokens": 96, "name": "b", "on": True}}, patch, "here")
    assert str(error.value) == expected


def test_another_kind_keeps_what_both_have_and_drops_and_adds_the_rest() -> None:
    data: dict[str, Any] = {"packing": {"kind": "full-sentences", "length": 64, "train_tokens": 5}}
    apply(data, {"packing.kind": "segment-pairs", "packing.negatives": "swapped"}, "f")
    pairs = {"length": 64, "train_tokens": 5, "negatives": "swapped"}
    assert data == {"packing": {"kind": "segment-pairs", **pairs, "lone": "skip", "short": 0.0}}
    apply(data, {"packing.kind": "sentence-pairs"}, "f")
    assert data == {"packing": {"kind": "sentence-pairs", **pairs}}
    apply(data, {"packing.kind": "doc-sentences"}, "f")
    assert data == {"packing": {"kind": "doc-sentences", "length": 64, "train_tokens": 5}}
    with pytest.raises(SpecError, match="packing.negatives: no such key for kind 'doc-sentences' in packing"):
        apply(data, {"packing.negatives": "swapped"}, "f")


def test_another_kind_inside_a_slot_is_of_that_slot() -> None:
    data: dict[str, Any] = {"objective": {"kind": "mlm", "unit": {"kind": "token"}, "rate": 0.15}}
    apply(data, {"objective.unit.kind": "span"}, "f")
    assert data["objective"]["unit"] == {"kind": "span", "p": 0.2, "longest": 10, "replacement_per": "unit"}
    apply(data, {"objective.unit.kind": "n-gram"}, "f")
    assert data["objective"]["unit"] == {
        "kind": "n-gram",
        "longest": 10,
        "truncation": "random",
        "replacement_per": "unit",
    }


def test_a_kind_that_is_not_known_is_left_for_the_whole_to_refuse() -> None:
    data: dict[str, Any] = {"packing": {"kind": "full-sentences", "length": 64}}
    apply(data, {"packing.kind": "half-sentences"}, "f")
    assert data == {"packing": {"kind": "half-sentences", "length": 64}}


def test_a_variant_whose_own_code_raises_is_named_with_its_line() -> None:
    with pytest.raises(SpecError, match=r"^cherry.yaml: ZeroDivisionError: no flesh \(.*test_load.py, line \d+\)$"):
        build(Cherry, {}, "cherry.yaml")
