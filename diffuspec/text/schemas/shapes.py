"""Values that the keys of JSON Schemas may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from diffuspec.text.schemas.parts import OF_DEFINITIONS, OF_LISTS, OF_NAMES, parts_of
from diffuspec.text.schemas.refusal import RefusedSchemaError

_TYPES: Final = ("string", "number", "integer", "boolean", "null", "array", "object")
_SHAPES: Final[tuple[tuple[str, type, str], ...]] = (
    *((key, dict, "an object") for key in OF_NAMES),
    *((key, list, "a list") for key in (*OF_LISTS, "enum", "required")),
    *((key, str, "a text") for key in ("format", "pattern")),
)
_REFUSED: Final = (
    *("if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired"),
    *("dependentSchemas", "dependencies", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)
_LEAST: Final = ("minLength", "minItems", "minProperties")
_MOST: Final = ("maxLength", "maxItems", "maxProperties")
_MOST_COUNTED: Final = 2**31 - 1


def check_shape(schema: Mapping[str, Any], place: str) -> None:
    """Raise RefusedSchemaError for an unsupported key, or a value that its key cannot have."""
    for key in _REFUSED:
        if key in schema:
            raise RefusedSchemaError(f"{place}/{key}", "is not supported")
    for key, kind, right in _SHAPES:
        if key in schema and not isinstance(schema[key], kind):
            raise RefusedSchemaError(f"{place}/{key}", f"must be {right}")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise RefusedSchemaError(f"{place}/required", "must be a list of names")
    for at, part in parts_of(schema):
        is_definition = at.startswith(OF_DEFINITIONS)  # a definition may group others
        if not (isinstance(part, Mapping | bool) or is_definition):
            raise RefusedSchemaError(f"{place}/{at}", "must be an object, true or false")
    types = schema.get("type", ())
    for name in types if isinstance(types, list) else [types] if types else []:
        if name not in _TYPES:
            raise RefusedSchemaError(
                f"{place}/type", f"must be {', '.join(_TYPES)}, or a list of them"
            )


def counts_of(schema: Mapping[str, Any], place: str) -> dict[str, int]:
    """Return limits of lengths as integers: 10 for 10.0; those above any answer are left out."""
    counts = {}
    for key in (*_LEAST, *_MOST):
        value = schema.get(key)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value < 0 or value % 1:
            raise RefusedSchemaError(f"{place}/{key}", "must be a whole number, 0 or more")
        if value <= _MOST_COUNTED:
            counts[key] = int(value)
        elif key in _LEAST:
            raise RefusedSchemaError(f"{place}/{key}", f"must be at most {_MOST_COUNTED}")
    return counts
