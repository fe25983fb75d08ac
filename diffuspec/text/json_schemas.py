"""Rewrites users' JSON Schemas so that llguidance can enforce them.

Unknown string formats are annotations, as JSON Schema defines. Unsupported keys are expressed by
other keys if possible; otherwise they are refused with their path, such as
#/properties/tags/uniqueItems.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from diffuspec.core.errors import InvalidRequestError

_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_TYPES: Final = ("string", "number", "integer", "boolean", "null", "array", "object")
_OF_DEFINITIONS: Final = ("$defs", "definitions")
_OF_NAMES: Final = ("properties", "patternProperties", *_OF_DEFINITIONS)
_OF_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_OF_ONE: Final = ("items", "additionalProperties", "additionalItems")
_SHAPES: Final[tuple[tuple[str, type, str], ...]] = (
    *((key, dict, "an object") for key in _OF_NAMES),
    *((key, list, "a list") for key in (*_OF_LISTS, "enum", "required")),
    *((key, str, "a text") for key in ("format", "pattern")),
)
_REFUSED: Final = (
    *("if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired"),
    *("dependentSchemas", "dependencies", "unevaluatedItems", "$dynamicRef", "$recursiveRef"),
)
_APPLICATORS: Final = ("allOf", "anyOf", "oneOf", "$ref", "not", "if")
_MANY: Final = 2**31
_MAX_UNIQUE: Final = 6  # most constants of unique items: they have 64 subsets
_MAX_PLACE: Final = 200  # characters of a path in an error
_MAX_REFERENCES: Final = 8  # length of a chain of references


def usable_schema(schema: Any, name: str = "json_schema") -> Any:
    """Return an equivalent schema with only keys that llguidance supports.

    name: name of the schema's owner, for errors. Raises InvalidRequestError.
    """
    return _Rewriter(schema, name).rewritten(schema, "#")


def patterns_in(schema: Any, place: str = "#") -> Iterator[tuple[str, str]]:
    """Yield the paths of all regular expressions in a schema, and the expressions."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("pattern"), str):
            yield f"{place}/pattern", schema["pattern"]
        for key in schema.get("patternProperties", {}):
            yield f"{place}/patternProperties/{key}", key
        for at, part in _parts_of(schema):
            yield from patterns_in(part, f"{place}/{at}")


def referred(schema: Any, whole: Any) -> Any:
    """Return the schema at the end of a chain of references within a whole; None if it breaks."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if reference is None:
            return schema
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        schema = whole
        for key in reference[1:].split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list) and key.isdecimal() and int(key) < len(schema):
                schema = schema[int(key)]
            else:
                schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema


def _parts_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the direct subschemas of a schema, with their paths in it."""
    for key in _OF_NAMES:
        if isinstance(schema.get(key), Mapping):
            yield from ((f"{key}/{name}", part) for name, part in schema[key].items())
    for key in (*_OF_LISTS, "items"):
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{number}", part) for number, part in enumerate(schema[key]))
    for key in _OF_ONE:
        if key in schema and not isinstance(schema[key], list):
            yield key, schema[key]


class _Rewriter:
    def __init__(self, whole: Any, name: str) -> None:
        self._whole = whole
        self._name = name

    def rewritten(self, schema: Any, place: str) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        self._check(schema, place)
        found = {**schema}
        if found.get("format") not in _FORMATS:
            found.pop("format", None)
        self._allow_items(found, place)
        self._leave_out_constants(found, place)
        self._name_properties(found, place)
        for key in _OF_NAMES:
            if isinstance(found.get(key), Mapping):
                found[key] = {
                    name: self.rewritten(part, f"{place}/{key}/{name}")
                    for name, part in found[key].items()
                }
        for key in (*_OF_LISTS, "items"):
            if isinstance(found.get(key), list):
                found[key] = [
                    self.rewritten(part, f"{place}/{key}/{number}")
                    for number, part in enumerate(found[key])
                ]
        for key in _OF_ONE:
            if isinstance(found.get(key), Mapping):
                found[key] = self.rewritten(found[key], f"{place}/{key}")
        return found

    def _check(self, schema: Mapping[str, Any], place: str) -> None:
        for key in _REFUSED:
            if key in schema:
                self._refuse(f"{place}/{key}", "is not supported")
        for key, kind, right in _SHAPES:
            if key in schema and not isinstance(schema[key], kind):
                self._refuse(f"{place}/{key}", f"must be {right}")
        if not all(isinstance(one, str) for one in schema.get("required", ())):
            self._refuse(f"{place}/required", "must be a list of names")
        for at, part in _parts_of(schema):
            is_definition = at.startswith(_OF_DEFINITIONS)  # a definition may group others
            if not (isinstance(part, Mapping | bool) or is_definition):
                self._refuse(f"{place}/{at}", "must be an object, true or false")
        types = schema.get("type", ())
        for one in types if isinstance(types, list) else [types] if types else []:
            if one not in _TYPES:
                self._refuse(f"{place}/type", f"must be {', '.join(_TYPES)}, or a list of them")
        reference = schema.get("$ref")
        if reference is not None and not isinstance(referred(schema, self._whole), Mapping | bool):
            self._refuse(f"{place}/$ref", "refers to nothing within the schema")

    def _allow_items(self, schema: dict[str, Any], place: str) -> None:
        """Express uniqueItems of a few constants as all subsets, in the constants' order.

        It is removed if it has no effect, and otherwise refused.
        """
        demands = schema.pop("uniqueItems", False) is True
        most = schema.get("maxItems", _MANY)
        if not demands or (isinstance(most, int) and most <= 1):
            return
        constants, least = (
            _constants_of(referred(schema.get("items"), self._whole)),
            schema.get("minItems"),
        )
        is_plain = not {"anyOf", "prefixItems"} & schema.keys() and isinstance(most, int)
        if constants is None or len(constants) > _MAX_UNIQUE or not is_plain:
            self._refuse(
                f"{place}/uniqueItems", f"is supported for at most {_MAX_UNIQUE} constants only"
            )
        sizes = range(least if isinstance(least, int) else 0, min(most, len(constants)) + 1)
        subsets = (one for size in sizes for one in itertools.combinations(constants, size))
        schema["anyOf"] = [_list_of(one) for one in subsets]
        for key in ("items", "minItems", "maxItems"):
            schema.pop(key, None)

    def _leave_out_constants(self, schema: dict[str, Any], place: str) -> None:
        """Express `not` of constants as the remaining values, if these are known."""
        if "not" not in schema:
            return
        excluded = schema.pop("not")
        constants = _constants_of(referred(excluded, self._whole))
        if excluded is False:
            return
        if constants is None or not isinstance(schema.get("enum"), list):
            self._refuse(f"{place}/not", "is supported beside enum only, and of constants")
        schema["enum"] = [one for one in schema["enum"] if one not in constants]

    def _name_properties(self, schema: dict[str, Any], place: str) -> None:
        """Express propertyNames, unevaluatedProperties by properties and additionalProperties."""
        if "unevaluatedProperties" in schema:
            if any(key in schema for key in _APPLICATORS):
                self._refuse(f"{place}/unevaluatedProperties", "is not supported beside others")
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
        if "propertyNames" not in schema:
            return
        names = referred(schema.pop("propertyNames"), self._whole)
        if isinstance(names, Mapping):
            self._check(names, f"{place}/propertyNames")
        others = schema.get("additionalProperties", True)
        known = schema.get("properties", {})
        constants = _constants_of(names)
        if names is True or names in ({}, {"type": "string"}):
            return
        if constants is not None and all(isinstance(one, str) for one in constants):
            schema["properties"] = {one: known.get(one, others) for one in constants}
            schema["additionalProperties"] = False
        elif _has_only_pattern(names) and not known:
            schema["patternProperties"] = {names["pattern"]: others}
            schema["additionalProperties"] = False
        else:
            self._refuse(f"{place}/propertyNames", "is supported with enum, const or pattern only")

    def _refuse(self, place: str, problem: str) -> NoReturn:
        raise InvalidRequestError(f"{self._name} cannot be used: {place[:_MAX_PLACE]} {problem}")


def _list_of(items: Sequence[Any]) -> dict[str, Any]:
    """Return the schema of one list."""
    listed = {"prefixItems": [{"const": item} for item in items]} if items else {}
    return {"type": "array", **listed, "minItems": len(items), "maxItems": len(items)}


def _has_only_pattern(schema: Any) -> bool:
    return isinstance(schema, Mapping) and {"pattern"} <= schema.keys() <= {"pattern", "type"}


def _constants_of(schema: Any) -> list[Any] | None:
    """Return the only values of a schema, if it lists them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("enum"), list):
        return [*schema["enum"]]
    return [schema["const"]] if "const" in schema else None
