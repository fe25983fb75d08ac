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
from diffuspec.text.json_schemas import usable_schema
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
        ({"minimum": "secret"}, "a key of the schema has a wrong value"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "oneOf must exclude each other"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_with_its_place_and_no_value(schema, words):
    with pytest.raises(InvalidRequestError) as caught:
        GRAMMARS.compile(StructuredOutput(json_schema=json.dumps(schema)))
    assert words in str(caught.value) and "secret" not in str(caught.value)
