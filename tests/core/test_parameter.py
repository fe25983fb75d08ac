"""One declaration says what a value may be, what it is by default and how users are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import pytest
from annotated_types import Interval, Len
from pydantic import TypeAdapter

from diffuspec.core.checks import check_fields
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import declare, declared, spell
from diffuspec.core.params import SamplingParams, SpeculationParams

Price: TypeAlias = Annotated[float, Interval(ge=-1, le=1)]


@dataclass(frozen=True, slots=True)
class Params:
    size: Annotated[int, Interval(ge=1, le=9)] | Literal["auto"] = declare("auto", "How large.")
    shape: Literal["round", "square"] = declare("round", "Which shape.", option="form")
    names: Annotated[tuple[Annotated[str, Len(1, 3)], ...], Len(0, 2)] = declare((), "Names.")
    weight: Annotated[float, Interval(gt=0, le=1)] | None = declare(None, "How heavy.")
    runs: Annotated[tuple[Annotated[tuple[int, ...], Len(1, 3)], ...], Len(0, 2)] = declare(
        (), "Runs of numbers."
    )
    prices: Annotated[Mapping[int, Price], Len(0, 2)] = declare({}, "What each one costs.")

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_declaration_is_read_from_the_annotation() -> None:
    size, shape, names, weight, runs, prices = declared(Params)
    assert (size.kind, size.words, size.bounds) == (int, ("auto",), Interval(ge=1, le=9))
    assert (shape.kind, shape.words, shape.option) == (str, ("round", "square"), "form")
    assert (names.kind, names.length, names.num_items) == (str, Len(1, 3), Len(0, 2))
    assert (weight.kind, weight.is_optional, weight.default) == (float, True, None)
    assert (runs.kind, runs.length, runs.num_items) == (int, Len(1, 3), Len(0, 2))
    assert runs.is_nested and not names.is_nested
    assert (prices.kind, prices.bounds, prices.num_items) == (
        float,
        Interval(ge=-1, le=1),
        Len(0, 2),
    )
    assert prices.is_mapping and prices.default == {}
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
    ("field", "value"),
    [
        ("size", 10),
        ("weight", 0),
        ("shape", "oval"),
        ("names", ["long"]),
        ("runs", [[]]),
        ("runs", [[1, 2, 3, 4]]),
        ("runs", [[1]] * 3),
        ("runs", [1]),
        ("runs", "ab"),
        ("runs", [[1.5]]),
        ("prices", {1: 2}),
        ("prices", {-1: 0}),
        ("prices", {"x": 0}),
        ("prices", {True: 0}),
        ("prices", {1: "high"}),
        ("prices", {1: 0, "1": 0}),
        ("prices", {1: 0, 2: 0, 3: 0}),
        ("prices", [(1, 0)]),
    ],
)
def test_values_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field} must "):
        Params(**{field: value})


def test_keys_of_a_mapping_may_be_digits_as_in_json() -> None:
    prices: Any = {"7": 1, 8: -0.5}
    params = Params(prices=prices)
    assert params.prices == {7: 1.0, 8: -0.5}
    prices["7"] = 0  # it is a copy
    assert params.prices[7] == 1.0 and hash(params) == hash(Params())


@pytest.mark.parametrize("cls", [Params, SamplingParams, SpeculationParams])
def test_pydantic_reads_the_same_declaration(cls: type) -> None:
    schema = TypeAdapter(cls).json_schema()["properties"]
    for parameter in declared(cls):
        field = schema[parameter.name]
        assert field["description"] == parameter.help
        assert field.get("default", {}) == (
            list(parameter.default) if field.get("type") == "array" else parameter.default
        )
        if parameter.bounds.le is not None and parameter.num_items is None:
            numbers = [one for one in field.get("anyOf", [field]) if "maximum" in one]
            assert [one["maximum"] for one in numbers] == [parameter.bounds.le]


@pytest.mark.parametrize("cls", [SamplingParams, SpeculationParams])
def test_every_default_is_a_right_value(cls: type) -> None:
    assert all(getattr(cls(), one.name) == one.default for one in declared(cls))
