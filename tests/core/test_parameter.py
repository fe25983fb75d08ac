"""One declaration says what a value may be, what it is by default and how users are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import pytest
from annotated_types import Interval, Len
from pydantic import TypeAdapter

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import check_fields, declare, declared, spell
from diffuspec.core.params import SamplingParams, SpeculationParams


@dataclass(frozen=True, slots=True)
class Params:
    size: Annotated[int, Interval(ge=1, le=9)] | Literal["auto"] = declare("auto", "How large.")
    shape: Literal["round", "square"] = declare("round", "Which shape.", option="form")
    names: Annotated[tuple[Annotated[str, Len(1, 3)], ...], Len(0, 2)] = declare((), "Names.")
    weight: Annotated[float, Interval(gt=0, le=1)] | None = declare(None, "How heavy.")

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_declaration_is_read_from_the_annotation() -> None:
    size, shape, names, weight = declared(Params)
    assert (size.kind, size.words, size.bounds) == (int, ("auto",), Interval(ge=1, le=9))
    assert (shape.kind, shape.words, shape.option) == (str, ("round", "square"), "form")
    assert (names.kind, names.length, names.num_items) == (str, Len(1, 3), Len(0, 2))
    assert (weight.kind, weight.is_optional, weight.default) == (float, True, None)
    assert [one.help for one in (size, shape)] == ["How large.", "Which shape."]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (Interval(ge=0, le=1), "from 0 to 1"),
        (Interval(gt=0, le=1), "above 0 and at most 1"),
        (Interval(ge=3), "3 or more"),
        (Interval(), ""),
    ],
)
def test_a_range_is_spelled_in_words(bounds: Interval, expected: str) -> None:
    assert spell(bounds) == expected


def test_values_of_every_alternative_are_taken() -> None:
    assert Params(size=9).size == 9 and Params(size="auto").size == "auto"
    assert Params(weight=1).weight == 1 and Params(weight=None).weight is None


@pytest.mark.parametrize(
    ("field", "value"), [("size", 10), ("weight", 0), ("shape", "oval"), ("names", ["long"])]
)
def test_values_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must "):
        Params(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", [Params, SamplingParams, SpeculationParams])
def test_pydantic_reads_the_same_declaration(cls: type) -> None:
    schema = TypeAdapter(cls).json_schema()["properties"]
    for parameter in declared(cls):
        field = schema[parameter.name]
        assert field["description"] == parameter.help
        assert field["default"] == (
            list(parameter.default) if field.get("type") == "array" else parameter.default
        )
        if parameter.bounds.le is not None and parameter.num_items is None:
            numbers = [one for one in field.get("anyOf", [field]) if "maximum" in one]
            assert [one["maximum"] for one in numbers] == [parameter.bounds.le]


@pytest.mark.parametrize("cls", [SamplingParams, SpeculationParams])
def test_every_default_is_a_right_value(cls: type) -> None:
    assert all(getattr(cls(), one.name) == one.default for one in declared(cls))
