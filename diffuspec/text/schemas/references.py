"""References within a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from diffuspec.text.schemas.parts import parts_of

_MAX_REFERENCES: Final = 8  # length of a chain of references
_ROOT: Final = "#"


def referred(schema: Any, whole: Any) -> Any:
    """Return the schema at the end of a chain of references within a whole; None if it breaks."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if reference is None:
            return schema
        schema = target(reference, whole)
    return schema


def target(reference: Any, whole: Any) -> Any:
    """Return what a reference names within a whole schema; None if it names nothing there."""
    place = pointer(reference)
    if place is None:
        return None
    if place != _ROOT and not place.startswith("#/"):
        return _anchored(place[1:], whole)
    schema = whole
    for key in place.split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema


def pointer(reference: Any) -> str | None:
    """Return a reference with its percent-encoding decoded; None if it leads out of the schema."""
    if not isinstance(reference, str) or not reference.startswith(_ROOT):
        return None
    return unquote(reference)


def _anchored(name: str, schema: Any) -> Any:
    """Return the part of a schema with a certain $anchor."""
    if not isinstance(schema, Mapping):
        return None
    if schema.get("$anchor") == name:
        return schema
    parts = (_anchored(name, part) for _, part in parts_of(schema))
    return next((part for part in parts if part is not None), None)
