"""References within a JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from diffuspec.text.schemas.parts import parts_of

_MAX_REFERENCES: Final = 8  # length of a chain of references
_ROOT: Final = "#"
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf")


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


class Circles:
    """The references of one whole schema that lead back to themselves for the same value.

    Such a reference does not restrict the value. Reads each schema once.
    """

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._path: list[Mapping[str, Any]] = []
        self._is_open: dict[int, bool] = {}  # keys: id() of schemas; whether it is on the path
        self._closing: set[int] = set()

    def closes(self, schema: Mapping[str, Any]) -> bool:
        """Return whether a schema's reference closes a circle."""
        self._follow(schema)
        return id(schema) in self._closing

    def _follow(self, schema: Any) -> None:
        if not isinstance(schema, Mapping):
            return
        if (is_open := self._is_open.get(id(schema))) is not None:
            if is_open:
                latest = next(part for part in reversed(self._path) if "$ref" in part)
                self._closing.add(id(latest))
            return
        self._is_open[id(schema)] = True
        self._path.append(schema)
        for at, part in parts_of(schema):
            if at.startswith(_IN_PLACE):
                self._follow(part)
        if "$ref" in schema:
            self._follow(target(schema["$ref"], self._whole))
        self._path.pop()
        self._is_open[id(schema)] = False


def circle_in(whole: Any) -> str | None:
    """Return the place of a reference to a schema that contains it, one beside other keys first."""
    circles = [
        (len(schema) == 1, place)
        for place, schema in _references(whole, _ROOT)
        if _contains(target(schema["$ref"], whole), schema, whole)
    ]
    return min(circles, key=lambda circle: circle[0])[1] if circles else None


def _references(schema: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield f"{place}/$ref", schema
        for at, part in parts_of(schema):
            yield from _references(part, f"{place}/{at}")


def _contains(schema: Any, part: Any, whole: Any) -> bool:
    """Return whether a part is in a schema, or in what it refers to."""
    seen: set[int] = set()
    waiting = [schema]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        if schema is part:
            return True
        seen.add(id(schema))
        waiting += (inner for _, inner in parts_of(schema))
        waiting.append(target(schema["$ref"], whole) if "$ref" in schema else None)
    return False


def _anchored(name: str, schema: Any) -> Any:
    """Return the part of a schema with a certain $anchor."""
    if not isinstance(schema, Mapping):
        return None
    if schema.get("$anchor") == name:
        return schema
    parts = (_anchored(name, part) for _, part in parts_of(schema))
    return next((part for part in parts if part is not None), None)
