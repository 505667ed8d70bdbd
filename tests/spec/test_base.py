"""Specs and slots, on classes of the test's own."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paribus.spec.base import Slot, Spec, canonical, digest, later, location
from paribus.spec.data import Replacement


class Shape(Slot):
    pass


class Circle(Shape):
    kind: Literal["circle"] = "circle"
    radius: float


class Square(Shape):
    kind: Literal["square"] = "square"
    side: float = 1.0


class Drawing(Spec):
    shape: Shape
    colours: tuple[str, ...] = ()
    path: str = location("a")


class GrownSquare(Spec):
    side: float = 1.0
    angle: float = later(0.0)


class OldSquare(Spec):
    side: float = 1.0


def test_a_spec_is_frozen_and_closed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        OldSquare().side = 2.0  # type: ignore[misc]
    with pytest.raises(ValidationError, match="extra"):
        OldSquare.model_validate({"sied": 2.0})


def test_canonical_text_does_not_know_the_order_of_keys_or_the_spelling_of_numbers() -> None:
    assert canonical(Drawing.model_validate({"colours": ["red"], "shape": {"side": 2, "kind": "square"}})) == canonical(
        Drawing(shape=Square(side=2.0), colours=("red",))
    )


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_two_numbers_have_one_text_only_if_they_are_equal(a: float, b: float) -> None:
    assert (canonical(OldSquare(side=a)) == canonical(OldSquare(side=b))) == (a == b)


def test_a_field_that_was_added_later_stays_out_of_the_key_while_it_means_as_before() -> None:
    assert canonical(GrownSquare()) == canonical(OldSquare())
    assert canonical(GrownSquare(angle=0.5)) != canonical(OldSquare())


def test_a_location_stays_out_of_the_key() -> None:
    assert canonical(Drawing(shape=Square(), path="a")) == canonical(Drawing(shape=Square(), path="b"))


def test_a_changed_copy_has_a_text_of_its_own() -> None:
    one = OldSquare()
    canonical(one)
    assert canonical(one.model_copy(update={"side": 3.0})) == canonical(OldSquare(side=3.0))


def test_the_code_of_a_users_variant_is_part_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = canonical(Drawing(shape=Square()))
    monkeypatch.setattr(Square, "code", "edited")
    assert canonical(Drawing(shape=Square())) != before


def test_a_digest_is_the_same_for_ever() -> None:
    assert digest(canonical(Drawing(shape=Square()))) == "2586e4810479a3ce"


def test_a_slot_takes_a_variant_by_its_kind() -> None:
    assert Drawing.model_validate({"shape": "square"}).shape == Square()
    assert Drawing.model_validate({"shape": {"kind": "circle", "radius": 2}}).shape == Circle(radius=2.0)
    assert Drawing.model_validate(Drawing(shape=Square()).model_dump()) == Drawing(shape=Square())
    assert Drawing.model_validate_json(Drawing(shape=Square()).model_dump_json()) == Drawing(shape=Square())


def test_a_variant_that_is_defined_joins_its_slot() -> None:
    class Letter(Slot):
        pass

    assert Letter.variants() == {}

    class A(Letter):
        kind: Literal["a"] = "a"

    assert Letter.variants() == {"a": A}


def test_two_variants_of_one_kind_are_refused() -> None:
    class Digit(Slot):
        pass

    class One(Digit):
        kind: Literal["one"] = "one"

    type("Other", (Digit,), {"__module__": "elsewhere", "__annotations__": {"kind": Literal["one"]}, "kind": "one"})
    with pytest.raises(TypeError, match="two variants of Digit are called 'one'"):
        Digit.variants()


def test_equality_does_not_depend_on_whether_the_canonical_text_was_asked_for() -> None:
    one, other = Replacement(), Replacement()
    canonical(one)
    assert one == other and hash(one) == hash(other)
    assert one != Replacement(mask=1.0, random=0.0)
