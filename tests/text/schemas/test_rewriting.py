"""JSON Schemas as their users write them: obeyed, or refused with the place."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import AnyUrl, BaseModel, Field

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.text.schemas.rewriting import usable_schema
from tests.support.tiny_target import GRAMMARS, takes


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    colour: Colour
    path: Path
    price: Decimal
    url: AnyUrl | None = None


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Order(BaseModel):
    id: UUID
    stock: dict[Colour, int]
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    pair: tuple[int, str]
    colours: set[Colour] = set()


class Tags(BaseModel):
    tags: set[str]


KEYS = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "propertyNames"),
    *("items", "prefixItems", "uniqueItems", "minItems", "maxItems", "anyOf", "oneOf", "allOf"),
    *("not", "$ref", "$defs", "patternProperties", "unevaluatedProperties", "format", "pattern"),
)


def obeys(value: object, schema: object) -> bool:
    """Whether an answer of this schema may be this value."""
    form = StructuredOutput(json_schema=json.dumps(schema))
    return takes(form, json.dumps(value, ensure_ascii=False))


ORDER: dict[str, Any] = {
    "id": "12345678-1234-1234-1234-123456789abc",
    "stock": {"red": 3},
    "pet": {"kind": "dog", "name": "Rex"},
    "pair": [1, "a"],
    "colours": ["red", "blue"],
}


@pytest.mark.parametrize(
    ("model", "right", "wrong"),
    [
        (Item, {"colour": "red", "path": "/tmp/a", "price": 1.5, "url": None}, {"colour": "x"}),
        (Order, ORDER, {**ORDER, "stock": {"green": 1}}),
        (Order, {**ORDER, "colours": []}, {**ORDER, "colours": ["red", "red"]}),
        (Order, {**ORDER, "pet": {"kind": "cat"}}, {**ORDER, "pet": {"kind": "cow"}}),
    ],
)
def test_schemas_of_pydantic_are_obeyed(model, right, wrong):
    schema = model.model_json_schema()
    model.model_validate(right)
    assert obeys(right, schema) and not obeys(wrong, schema)


UNIQUE = {"type": "array", "items": {"enum": ["red", "blue", 3]}, "uniqueItems": True}
OBJECT = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "format": "color"}, "red", 5),
        ({"type": "string", "format": "date"}, "2024-02-01", "soon"),
        (OBJECT | {"propertyNames": {"enum": ["a", "b"]}}, {"b": 1}, {"c": 1}),
        (OBJECT | {"propertyNames": {"pattern": "^a+$"}}, {"aa": 1}, {"b": 1}),
        (OBJECT | {"propertyNames": {"type": "string"}}, {"b": 1}, {"b": "1"}),
        ({"enum": ["a", "b"], "not": {"const": "a"}}, "b", "a"),
        ({"enum": ["a", "b"], "not": False}, "b", "c"),
        ({"oneOf": [{"const": "a"}, {"const": "b"}]}, "b", "c"),
        ({"type": "array", "uniqueItems": False}, [1, 1], {}),
        (UNIQUE, ["red", "blue"], ["red", "red"]),
        (UNIQUE | {"minItems": 1}, ["blue"], []),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, [1], [1, 1]),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
        ({"const": {"format": "x", "uniqueItems": True}}, {"format": "x", "uniqueItems": True}, 1),
        ({"$ref": "#/$defs/a~1b/0", "$defs": {"a/b": [{"const": 5}]}}, 5, 6),
    ],
)
def test_what_can_be_obeyed_is(schema, right, wrong):
    assert obeys(right, schema) and not obeys(wrong, schema)


LOOP = {
    "$ref": "#/$defs/b",
    "$defs": {"b": {"properties": {"x": {"$ref": "#/$defs/b", "type": "object"}}}},
}
AB = {"type": "object", "$defs": {"a b": {"const": 5}, "Foo<string>": {"const": 5}}}
PATTERNS = {"patternProperties": {"^a": {"type": "integer"}}, "propertyNames": {"pattern": "^a"}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"const": 2**60}, [2**60], [2**60 + 1]),
        ({"enum": [10**18, -(10**18)]}, [10**18, -(10**18)], [10**18 + 1]),
        ({"const": 5.0}, [5], [6]),
        ({"enum": [0, 1, False, True], "not": {"const": False}}, [0, 1, True], [False]),
        ({"enum": [[0], [False]], "not": {"const": [False]}}, [[0]], [[False]]),
        ({"type": "string", "maxLength": 2.0}, ["ab"], ["abc"]),
        ({"type": "array", "minItems": 1.0}, [[1]], [[]]),
        ({"type": "string", "maxLength": 2**70}, ["ab"], [1]),
        ({"type": "object", "minProperties": 1, "required": ["a"]}, [{"a": 1}], [{}]),
        (AB | {"properties": {"x": {"$ref": "#/$defs/a b"}}}, [{"x": 5}], [{"x": 6}]),
        (AB | {"properties": {"x": {"$ref": "#/$defs/a%20b"}}}, [{"x": 5}], [{"x": 6}]),
        (AB | {"properties": {"x": {"$ref": "#/$defs/Foo<string>"}}}, [{"x": 5}], [{"x": 6}]),
        (AB | {"properties": {"x": {"$ref": "#/$defs/Foo%3Cstring%3E"}}}, [{"x": 5}], [{"x": 6}]),
        ({"$ref": "#/$defs/a%2520b", "$defs": {"a%20b": {"const": 5}}}, [5], [6]),
        ({"$ref": "#five", "$defs": {"a": {"$anchor": "five", "const": 5}}}, [5], [6]),
        ({"type": "array", "items": {"$ref": "#"}}, [[], [[[]]]], [1, [1]]),
        (PATTERNS, [{"a": 1, "ab": 2}, {}], [{"a": "x"}, {"b": 1}]),
        ({"propertyNames": {"pattern": "^a"}}, [{"a": 1}, 5], [{"b": 1}]),
        ({"prefixItems": [{"const": 1}], "additionalItems": False}, [[1], [1, 2]], [[2]]),
        ({"items": [{"const": 1}], "additionalItems": False}, [[1]], [[2], [1, 2]]),
        (UNIQUE | {"items": {"enum": [1, 1.0, True]}}, [[1, True]], [[1, 1]]),
        (UNIQUE | {"items": {"enum": ["a", 1], "type": "string"}}, [["a"]], [[1], ["a", 1]]),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, [1, 2], [3]),
        ({"oneOf": [{"type": "integer", "minimum": 5}, {"type": "null"}]}, [5, None], [4]),
    ],
)
def test_schemas_mean_what_they_say(schema, right, wrong):
    assert [value for value in right if not obeys(value, schema)] == []
    assert [value for value in wrong if obeys(value, schema)] == []


@pytest.mark.parametrize("nothing", [False, {"type": "integer", "minimum": 5, "maximum": 4}])
def test_an_optional_property_that_nothing_fits_is_left_out(nothing):
    schema = {"properties": {"a": {"$ref": "#/$defs/x"}, "b": {}}, "$defs": {"x": nothing}}
    assert obeys({}, schema) and obeys({"b": 1}, schema) and not obeys({"a": 5}, schema)
    with pytest.raises(InvalidRequestError, match="no value fits the schema"):
        obeys({}, {"type": "object", "required": ["a"], **schema})


def test_properties_are_in_the_order_of_the_schema():
    schema = {"allOf": [{"properties": {"z": {}}}], "properties": {"a": {}}}
    assert obeys({"z": 1, "a": 1}, schema) and not obeys({"a": 1, "z": 1}, schema)


VALUES = st.recursive(
    st.sampled_from([None, True, False, -1, 5, 0.5, "", "a", "#", "#/$defs/a", "object", "("]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYS, "a", ""]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(schema=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_anything_is_made_usable_or_refused(schema):
    with contextlib.suppress(InvalidRequestError):
        usable_schema(schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (Tags.model_json_schema(), "#/properties/tags/uniqueItems is supported for at most 6"),
        ({"items": {"not": {"type": "string"}}}, "#/items/not is supported beside enum only"),
        ({"allOf": [{}, {"if": {}}]}, "#/allOf/1/if is not supported"),
        ({"type": "text"}, "#/type must be string, number,"),
        ({"$defs": {"a": {"type": ["string", "x"]}}}, "#/$defs/a/type must be"),
        ({"$ref": "http://a.b/secret"}, "#/$ref refers to nothing within the schema"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "#/properties/a/$ref refers to nothing"),
        (
            {"$ref": "#/$defs/b", "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}]}}},
            "#/$defs/b/any",
        ),
        ({"anyOf": [{"$ref": "#"}]}, "#/anyOf/0/$ref refers to the schema that it is in"),
        (LOOP, "#/$defs/b/properties/x/$ref: a schema that contains itself must not be joined"),
        ({"minProperties": 2}, "#/minProperties must be at most one more than"),
        ({"propertyNames": {"minLength": 3}}, "#/propertyNames is supported with enum"),
        ({"properties": {"a": {"pattern": "(?=secret)"}}}, "#/properties/a/pattern: the regular"),
        ({"patternProperties": {"(": {}}}, "#/patternProperties/(: the regular expression is"),
        ({"unevaluatedProperties": False, "allOf": []}, "#/unevaluatedProperties is not supported"),
        ({"properties": "secret"}, "#/properties must be an object"),
        ({"properties": {"a": ["secret"]}}, "#/properties/a must be an object, true or false"),
        ({"items": {"anyOf": 5}}, "#/items/anyOf must be a list"),
        ({"required": ["a", 5]}, "#/required must be a list of names"),
        ({"enum": "secret"}, "#/enum must be a list"),
        ({"format": ["secret"]}, "#/format must be a text"),
        ({"pattern": {}}, "#/pattern must be a text"),
        ({"minimum": "secret"}, "#/minimum must be a number"),
        ({"const": 1234567890123456789}, "#/const is an integer that cannot be written: use"),
        ({"enum": [1, 123456789012345679]}, "#/enum/1 is an integer that cannot be written"),
        ({"properties": {"id": {"const": -(2**63)}}}, "#/properties/id/const is an integer that"),
        ({"enum": [{"a": [1, -(2**63) + 5]}]}, "#/enum/0/a/1 is an integer that cannot be"),
        ({"type": "integer", "const": -1e19}, "#/const is an integer that cannot be written"),
        ({"type": "integer", "enum": [-(2**63) + 400]}, "#/enum/0 is an integer that cannot be"),
        ({"allOf": [{"type": "integer"}, {"minimum": -1e19, "maximum": -1e19}]}, "#/allOf/1/max"),
        ({"const": 1e300}, "#/const is an integer that cannot be written"),
        ({"type": "integer", "minimum": 2**53 + 1}, "#/minimum has more digits than can be"),
        ({"type": "number", "maximum": 2**53 + 1}, "#/maximum has more digits than can be"),
        ({"type": "integer", "exclusiveMinimum": 2**63}, "#/exclusiveMinimum leaves only numbers"),
        ({"type": "number", "maximum": -1e30}, "#/maximum leaves only numbers beyond"),
        ({"multipleOf": 0}, "#/multipleOf must be a number above 0"),
        ({"items": {"multipleOf": 0.07}}, "#/items/multipleOf is supported for 1 to 2048"),
        ({"multipleOf": 400000001}, "#/multipleOf is supported for 1 to 2048"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 499}]}, "#/allOf/1/multipleOf cannot be"),
        ({"maxLength": 1.5}, "#/maxLength must be a whole number"),
        ({"minItems": 2**40}, "#/minItems must be at most 2147483647"),
        ({"properties": {"a": {}}, "maxProperties": 0}, "#/maxProperties is supported only if"),
        (PATTERNS | {"propertyNames": {"pattern": "b"}}, "#/propertyNames is supported beside"),
        ({"patternProperties": {"a": {}, "b": {}}}, "#/patternProperties: patterns of"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "#/oneOf must have alternatives that"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_its_place_and_no_value(schema, words):
    with pytest.raises(InvalidRequestError) as caught:
        GRAMMARS.compile(StructuredOutput(json_schema=json.dumps(schema)))
    assert words in str(caught.value) and "secret" not in str(caught.value)
