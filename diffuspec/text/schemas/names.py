"""Rules for the names of properties, expressed as properties and patterns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diffuspec.text.schemas.constants import constants_of
from diffuspec.text.schemas.references import referred
from diffuspec.text.schemas.refusal import RefusedSchemaError
from diffuspec.text.schemas.shapes import check_shape

_APPLICATORS: Final = ("allOf", "anyOf", "oneOf", "$ref", "not", "if")


def named_properties(schema: Mapping[str, Any], whole: Any, place: str) -> Mapping[str, Any]:
    """Return a schema without unevaluatedProperties and propertyNames.

    Raises RefusedSchemaError if other keys cannot express them.
    """
    schema = {**schema}
    if "unevaluatedProperties" in schema:
        if any(key in schema for key in _APPLICATORS):
            problem = "is not supported beside others"
            raise RefusedSchemaError(f"{place}/unevaluatedProperties", problem)
        schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
    if "propertyNames" in schema:
        at = f"{place}/propertyNames"
        schema |= _of_names(referred(schema.pop("propertyNames"), whole), schema, at)
    return schema


def _of_names(names: Any, schema: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the keys that allow only certain names."""
    if isinstance(names, Mapping):
        check_shape(names, place)
    if names is True or names in ({}, {"type": "string"}):
        return {}
    others, known = schema.get("additionalProperties", True), schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    constants = constants_of(names)
    if constants is not None and all(isinstance(constant, str) for constant in constants):
        if patterns:
            raise RefusedSchemaError(place, "is supported beside patternProperties as pattern only")
        allowed = {name: known.get(name, others) for name in constants}
        return {"properties": allowed, "additionalProperties": False}
    if not _has_only_pattern(names) or known:
        raise RefusedSchemaError(place, "is supported with enum, const or pattern only")
    if not patterns.keys() <= {names["pattern"]}:
        raise RefusedSchemaError(place, "is supported beside patternProperties of the same pattern")
    return {
        "patternProperties": {names["pattern"]: patterns.get(names["pattern"], others)},
        "additionalProperties": False,
    }


def _has_only_pattern(schema: Any) -> bool:
    return isinstance(schema, Mapping) and {"pattern"} <= schema.keys() <= {"pattern", "type"}
