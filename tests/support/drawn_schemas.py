"""Strategies of JSON Schemas with a value of each, numbers of all sizes among them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypeAlias

from hypothesis import strategies as st

Case: TypeAlias = tuple[dict[str, Any], Any]
"""A schema, and a value that it probably allows."""

_NAMES = ["a", "b", "ab", "ac", "id"]
_PATTERNS = ["^a", "^b$", "c", "^[a-c]{2}$"]
_REFERENCES = {"a b": "a%20b", "Foo<string>": "Foo<string>", "x~y": "x~0y"}

_whole = st.one_of(
    st.integers(-20, 20),
    st.integers(-(2**53) - 8, 2**53 + 8),
    st.sampled_from([2**53, 2**63, 2**64, 10**18, 10**20, 2**31]).flatmap(
        lambda size: st.builds(
            lambda sign, less: sign * (size + less), st.sampled_from([1, -1]), st.integers(-2, 2)
        )
    ),
    st.sampled_from([-1e30, 1e20, 1e18, 5.0, -0.0]),
)
_fraction = st.builds(
    lambda digits, places: float(Decimal(digits).scaleb(-places)),
    st.one_of(
        st.integers(-300, 300), st.integers(-(10**15), 10**15), st.integers(-(10**17), 10**17)
    ),
    st.integers(0, 20),
)
NUMBERS = st.one_of(_whole, _fraction)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@st.composite
def _numbers(draw: st.DrawFn) -> Case:
    schema: dict[str, Any] = {}
    if draw(st.integers(0, 5)):
        schema["type"] = draw(st.sampled_from(["number", "integer", ["integer", "null"]]))
    near = draw(NUMBERS)
    for key in draw(st.lists(st.sampled_from(_BOUNDS), max_size=2, unique=True)):
        exact = draw(st.one_of(NUMBERS, st.integers(0, 3)))
        schema[key] = exact if draw(st.booleans()) else near
    if not draw(st.integers(0, 4)):
        schema["multipleOf"] = draw(st.sampled_from([1, 2, 7, 0.5, 0.25, 0.01, 3.0, 0.07, 1999]))
    edges = [schema[key] for key in _BOUNDS if key in schema] or [near]
    edge = draw(st.sampled_from(edges))
    return schema, draw(
        st.one_of(NUMBERS, st.just(edge), st.integers(-1, 1).map(lambda n: edge + n))
    )


_constants = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(0, 1), NUMBERS, st.sampled_from(["", "a", "ü"])
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=2)
    ),
    max_leaves=3,
)


@st.composite
def _enums(draw: st.DrawFn) -> Case:
    values = draw(st.lists(_constants, min_size=1, max_size=3))
    value = draw(st.sampled_from(values))
    schema: dict[str, Any] = draw(st.sampled_from([{"enum": values}, {"const": value}]))
    if "enum" in schema and not draw(st.integers(0, 2)):
        schema = {**schema, "not": {"const": draw(st.sampled_from([*values, 0, False]))}}
    return schema, value


@st.composite
def _texts(draw: st.DrawFn) -> Case:
    text = draw(st.text("abcü☃", max_size=4))
    schema: dict[str, Any] = {"type": "string"}
    if draw(st.booleans()):
        schema["maxLength"] = draw(st.sampled_from([3, 4.0, 2**40, 10**30]))
    if draw(st.booleans()):
        schema["minLength"] = draw(st.sampled_from([0, 1, 2.0]))
    if not draw(st.integers(0, 3)):
        schema["pattern"] = draw(st.sampled_from(["^a", "b", "^[ab]*$"]))
    return schema, text


@st.composite
def _lists(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, max_size=2))
    items, value = draw(inner)
    schema: dict[str, Any] = {"type": "array", "items": items}
    listed = [value] * draw(st.integers(0, 2))
    if draw(st.booleans()) and cases:
        schema["prefixItems"] = [case[0] for case in cases]
        listed = [*(case[1] for case in cases), *listed]
    for key in draw(st.lists(st.sampled_from(["minItems", "maxItems"]), unique=True)):
        schema[key] = draw(st.sampled_from([0, 1.0, 2, 2**40]))
    if not draw(st.integers(0, 4)):
        constants = draw(st.lists(_constants, min_size=1, max_size=3))
        return {"type": "array", "items": {"enum": constants}, "uniqueItems": True}, constants[:1]
    return schema, listed


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.dictionaries(st.sampled_from(_NAMES), inner, max_size=3))
    schema: dict[str, Any] = {"type": "object", "properties": {k: c[0] for k, c in cases.items()}}
    value = {key: case[1] for key, case in cases.items() if draw(st.integers(0, 3))}
    schema["required"] = draw(st.lists(st.sampled_from(_NAMES), max_size=2, unique=True))
    if draw(st.booleans()):
        schema["additionalProperties"] = draw(
            st.one_of(st.just(True), st.just(False), inner.map(lambda c: c[0]))
        )
    if not draw(st.integers(0, 2)):
        pattern, (part, more) = draw(st.sampled_from(_PATTERNS)), draw(inner)
        schema["patternProperties"] = {pattern: part}
        value.setdefault(draw(st.sampled_from(["abc", "ca"])), more)
    if not draw(st.integers(0, 3)):
        names = [{"pattern": draw(st.sampled_from(_PATTERNS))}, {"enum": ["a", "b"]}]
        schema["propertyNames"] = draw(st.sampled_from(names))
        if draw(st.booleans()):
            del schema["properties"]
    if not draw(st.integers(0, 3)):
        schema[draw(st.sampled_from(["minProperties", "maxProperties"]))] = draw(st.integers(0, 3))
    return schema, value


@st.composite
def _joined(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    cases = draw(st.lists(inner, min_size=1, max_size=3))
    key = draw(st.sampled_from(["anyOf", "oneOf", "allOf"]))
    nothing: Case = ({}, None)
    beside, _ = draw(st.one_of(st.just(nothing), _numbers(), inner))
    return {**beside, key: [case[0] for case in cases]}, draw(st.sampled_from(cases))[1]


@st.composite
def _references(draw: st.DrawFn, inner: st.SearchStrategy[Case]) -> Case:
    """References to definitions, which `CASES` collects at the root."""
    schema, value = draw(inner)
    name = draw(st.sampled_from([*_REFERENCES]))
    choices: list[dict[str, Any]] = [{}, {}, {"title": "t"}, {"type": ["number", "string"]}]
    beside = draw(st.sampled_from(choices))
    return {"$ref": f"#/$defs/{_REFERENCES[name]}", "x-to": (name, schema), **beside}, value


_PARTS = st.recursive(
    st.one_of(_numbers(), _numbers(), _enums(), _texts()),
    lambda inner: st.one_of(_lists(inner), _objects(inner), _joined(inner), _references(inner)),
    max_leaves=5,
)


def _collected(case: Case) -> Case:
    """Move what references name to the root, the first of each name."""
    definitions: dict[str, Any] = {}

    def clean(part: Any) -> Any:
        if isinstance(part, list):
            return [clean(item) for item in part]
        if not isinstance(part, dict):
            return part
        if isinstance(target := part.get("x-to"), tuple):
            name, schema = target
            if name not in definitions:
                definitions[name] = True  # a reference within is to this one
                definitions[name] = clean(schema)
        return {key: clean(one) for key, one in part.items() if key != "x-to"}

    schema = clean(case[0])
    return ({**schema, "$defs": definitions} if definitions else schema), case[1]


CASES = _PARTS.map(_collected)
