"""What a JSON Schema may allow at all: the types of its values, and whether two exclude each other.

Both err on one side only: a type that is not named is impossible, and schemas said to exclude each
other do.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any, Final

from diffuspec.text.schemas.constants import constants_of, identity
from diffuspec.text.schemas.references import target

TYPES: Final = frozenset(("string", "number", "boolean", "null", "array", "object"))
_MAX_COMPARED: Final = 50_000  # pairs of parts of one schema
_MAX_REFERENCES: Final = 8  # length of a chain of references
_NOTES: Final = frozenset(("title", "description", "default", "examples", "$comment"))
_LIMITS: Final = (
    ("string", "minLength", "maxLength"),
    ("array", "minItems", "maxItems"),
    ("object", "minProperties", "maxProperties"),
)


class Possibilities:
    """The values that parts of one whole schema may allow. Reads each part once."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._types: dict[int, frozenset[str]] = {}  # keys: id() of parts
        self._constants: dict[int, frozenset[Hashable] | None] = {}
        self._num_left = _MAX_COMPARED

    def types(self, schema: Any) -> frozenset[str]:
        """Return the types that values of a part may have; integers are numbers."""
        if schema is False:
            return frozenset()
        if not isinstance(schema, Mapping):
            return TYPES
        if id(schema) not in self._types:
            self._types[id(schema)] = TYPES  # the result for a part within a circle of references
            self._types[id(schema)] = self._possible(schema)
        return self._types[id(schema)]

    def exclude_each_other(self, one: Any, other: Any, within: frozenset[str] = TYPES) -> bool:
        """Return whether certainly no value of these types fits both parts."""
        self._num_left -= 1
        types = within & self.types(one) & self.types(other)
        if not types or self._num_left < 0:
            return not types
        one, other = self._resolved(one), self._resolved(other)
        ones, others = self._listed(one), self._listed(other)
        if ones is not None and others is not None:
            return ones.isdisjoint(others)
        for first, second in ((one, other), (other, one)):
            for key in ("anyOf", "oneOf"):
                if parts := _list(first, key):
                    return all(self.exclude_each_other(part, second, types) for part in parts)
        if types != {"object"} or not (isinstance(one, Mapping) and isinstance(other, Mapping)):
            return False
        return any(
            self.exclude_each_other(_property(one, key), _property(other, key))
            for key in {*_list(one, "required"), *_list(other, "required")}
        )

    def _listed(self, schema: Any) -> frozenset[Hashable] | None:
        """Return the identities of the constants of a part; None if it lists none."""
        if id(schema) not in self._constants:
            constants = constants_of(schema)
            listed = None if constants is None else frozenset(map(identity, constants))
            self._constants[id(schema)] = listed
        return self._constants[id(schema)]

    def _possible(self, schema: Mapping[str, Any]) -> frozenset[str]:
        types = listed_types(schema)
        constants = constants_of(schema)
        if constants is not None:
            types &= {type_of(value) for value in constants if _may_be_whole(value, schema)}
        if "$ref" in schema:
            types &= self.types(target(schema["$ref"], self._whole))
        for part in _list(schema, "allOf"):
            types &= self.types(part)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                types &= frozenset().union(*(self.types(part) for part in schema[key]))
        return types - self._excluded(schema)

    def _excluded(self, schema: Mapping[str, Any]) -> set[str]:
        """Return the types of which the limits of a schema leave no value."""
        excluded = {
            name
            for name, least, most in _LIMITS
            if _count(schema, least, 0) > _count(schema, most, math.inf)
        }
        known = schema.get("properties") or {}
        if any(key in known and not self.types(known[key]) for key in _list(schema, "required")):
            excluded.add("object")
        return excluded

    def _resolved(self, schema: Any) -> Any:
        """Return the target of a reference that has no other keys beside it."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, Mapping) or schema.keys() - _NOTES != {"$ref"}:
                break
            schema = target(schema["$ref"], self._whole)
        return schema


def type_of(value: Any) -> str:
    """Return the type of a value of JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def listed_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that a schema itself names, or all; integers are numbers."""
    types = schema.get("type")
    if types is None:
        return TYPES
    named = types if isinstance(types, list) else [types]
    return frozenset("number" if name == "integer" else name for name in named) & TYPES


def _may_be_whole(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a constant may be a number of a schema's type, if that is integer."""
    types = schema.get("type")
    named = types if isinstance(types, list) else [types]
    is_fraction = isinstance(value, float) and value % 1 != 0
    return not is_fraction or "number" in named or "integer" not in named


def _count(schema: Mapping[str, Any], key: str, default: float) -> float:
    value = schema.get(key)
    return default if isinstance(value, bool) or not isinstance(value, int | float) else value


def _property(schema: Mapping[str, Any], key: str) -> Any:
    return (schema.get("properties") or {}).get(key, True)


def _list(schema: Any, key: str) -> list[Any]:
    value = schema.get(key) if isinstance(schema, Mapping) else None
    return value if isinstance(value, list) else []
