"""The keys of JSON Schemas that hold schemas, and where these are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

OF_DEFINITIONS: Final = ("$defs", "definitions")
OF_NAMES: Final = ("properties", "patternProperties", *OF_DEFINITIONS)
OF_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
OF_ONE: Final = ("items", "additionalProperties", "additionalItems")


def parts_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas of a schema, with their paths in it."""
    for key in OF_NAMES:
        if isinstance(schema.get(key), Mapping):
            yield from ((f"{key}/{name}", part) for name, part in schema[key].items())
    for key in (*OF_LISTS, "items"):
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{number}", part) for number, part in enumerate(schema[key]))
    for key in OF_ONE:
        if key in schema and not isinstance(schema[key], list):
            yield key, schema[key]


def places_of(schema: Any, keys: Collection[str], place: str = "#") -> Iterator[str]:
    """Yield the paths of keys in a schema and its parts."""
    if isinstance(schema, Mapping):
        yield from (f"{place}/{key}" for key in schema if key in keys)
        for at, part in parts_of(schema):
            yield from places_of(part, keys, f"{place}/{at}")


def patterns_in(schema: Any, place: str = "#") -> Iterator[tuple[str, str]]:
    """Yield the paths of all regular expressions in a schema, and the expressions."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("pattern"), str):
            yield f"{place}/pattern", schema["pattern"]
        for key in schema.get("patternProperties", {}):
            yield f"{place}/patternProperties/{key}", key
        for at, part in parts_of(schema):
            yield from patterns_in(part, f"{place}/{at}")
