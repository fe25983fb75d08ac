"""Rewrites users' JSON Schemas so that llguidance can enforce them.

Unknown string formats are annotations, as JSON Schema defines. Unsupported keys are expressed by
other keys if possible; otherwise they are refused with their path, such as
#/properties/tags/uniqueItems.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from diffuspec.core.errors import InvalidRequestError
from diffuspec.text.schemas import ranges
from diffuspec.text.schemas.constants import constants_of, distinct, identity, usable_constant
from diffuspec.text.schemas.names import named_properties
from diffuspec.text.schemas.numbers import MAX_STEP, exact
from diffuspec.text.schemas.parts import OF_DEFINITIONS, OF_LISTS, parts_of
from diffuspec.text.schemas.possible import TYPES, Possibilities, listed_types
from diffuspec.text.schemas.references import Circles, pointer, target
from diffuspec.text.schemas.refusal import RefusedSchemaError
from diffuspec.text.schemas.shapes import check_shape, counts_of

_FORMATS: Final = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
_KEPT: Final = ("type", "required", "pattern", "x-guidance")
_SILENT: Final = ("type", "title", "description", "default", "examples", "$schema", "x-guidance")
_MANY: Final = 2**31
_MAX_UNIQUE: Final = 6  # most constants of unique items: they have 64 subsets
_MAX_PLACE: Final = 200  # characters of a path in an error
_PREFIX: Final = "#/$defs/"


def usable_schema(schema: Any, name: str = "json_schema") -> Any:
    """Return an equivalent schema with only keys that llguidance supports.

    name: name of the schema's owner, for errors. Raises InvalidRequestError.
    """
    if not isinstance(schema, Mapping):
        return schema
    try:
        return _Rewriter(schema).whole()
    except RefusedSchemaError as error:
        place = error.place[:_MAX_PLACE]
        raise InvalidRequestError(f"{name} cannot be used: {place} {error.problem}") from None


class _Rewriter:
    def __init__(self, whole: Mapping[str, Any]) -> None:
        self._whole = whole
        self._possibilities = Possibilities(whole)
        self._circles = Circles(whole)
        self._names: dict[str, str] = {}  # names under $defs, by place in the given schema
        self._referred: list[tuple[str, Any]] = []  # places of definitions, with their schemas
        self._steps: dict[Decimal, str] = {}  # a place of each distinct multipleOf

    def whole(self) -> Any:
        """Return the whole schema, with everything that references name under $defs."""
        root = self._rewritten(self._whole, "#")
        definitions: dict[str, Any] = {}
        for place, part in self._referred:  # rewriting a part may append others
            definitions[self._names[place]] = self._rewritten(part, place)
        for key in OF_DEFINITIONS:  # check definitions without a reference, too
            for name, part in self._whole.get(key, {}).items():
                if f"#/{key}/{name}" not in self._names:
                    self._rewritten(part, f"#/{key}/{name}")
        self._check_steps()
        if definitions and root is not False:
            root["$defs"] = {name: definitions.get(name, True) for name in self._names.values()}
        return _without_impossible(root, Possibilities(root))

    def _rewritten(self, schema: Any, place: str) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        check_shape(schema, place)
        given, schema = schema, named_properties(schema, self._whole, place)
        kept = {key: schema[key] for key in _KEPT if key in schema}
        usable: dict[str, Any] = {**kept, **counts_of(schema, place)}
        if schema.get("format") in _FORMATS:
            usable["format"] = schema["format"]
        self._rewrite_parts(schema, usable, place)
        self._refer(given, usable, place)
        self._list_constants(schema, usable, place)
        self._list_unique_items(schema, usable, place)
        self._exclude_alternatives(schema, usable, place)
        self._restrict_numbers(schema, usable, place)
        order = {key: number for number, key in enumerate(schema)}
        order.setdefault("anyOf", order.get("oneOf", len(order)))
        # llguidance writes an answer's properties in the order of the schema's keys.
        return dict(sorted(usable.items(), key=lambda item: order.get(item[0], len(order))))

    def _rewrite_parts(self, schema: Mapping[str, Any], usable: dict[str, Any], place: str) -> None:
        for key in ("properties", "patternProperties"):
            if key in schema:
                usable[key] = {
                    name: self._rewritten(part, f"{place}/{key}/{name}")
                    for name, part in schema[key].items()
                }
        for key in OF_LISTS:
            if key in schema:
                usable[key] = [
                    self._rewritten(part, f"{place}/{key}/{number}")
                    for number, part in enumerate(schema[key])
                ]
        if "additionalProperties" in schema:
            usable["additionalProperties"] = self._rewritten(
                schema["additionalProperties"], f"{place}/additionalProperties"
            )
        rest = "items"
        if isinstance(schema.get("items"), list):  # as in drafts before 2020-12
            rest = "additionalItems"
            usable["prefixItems"] = [
                self._rewritten(part, f"{place}/items/{number}")
                for number, part in enumerate(schema["items"])
            ]
        if rest in schema:
            usable["items"] = self._rewritten(schema[rest], f"{place}/{rest}")
        self._limit_properties(usable, place)

    def _limit_properties(self, usable: dict[str, Any], place: str) -> None:
        """Remove limits of the number of properties that are always met; refuse the others."""
        names, needed = usable.get("properties", {}).keys(), set(usable.get("required", ()))
        if usable.get("minProperties", 0) <= len(needed):
            usable.pop("minProperties", None)
        is_closed = usable.get("additionalProperties") is False
        is_closed = is_closed and "patternProperties" not in usable
        if is_closed and usable.get("maxProperties", _MANY) >= len(names | needed):
            usable.pop("maxProperties", None)
        if usable.get("minProperties", 0) > len(needed) + 1:
            raise RefusedSchemaError(
                f"{place}/minProperties",
                "must be at most one more than the names in required: an answer may repeat others",
            )
        for key in ("minProperties", "maxProperties"):
            if key in usable and not names <= needed:
                raise RefusedSchemaError(
                    f"{place}/{key}", "is supported only if all properties are required"
                )

    def _refer(self, schema: Mapping[str, Any], usable: dict[str, Any], place: str) -> None:
        if "$ref" not in schema:
            return
        at, part = pointer(schema["$ref"]), target(schema["$ref"], self._whole)
        if at is None or not isinstance(part, Mapping | bool):
            raise RefusedSchemaError(f"{place}/$ref", "refers to nothing within the schema")
        if self._circles.closes(schema):
            raise RefusedSchemaError(f"{place}/$ref", "refers to the schema that it is in")
        if at not in self._names:
            self._names[at] = f"r{len(self._names)}"
            self._referred.append((at, part))
        usable["$ref"] = _PREFIX + self._names[at]

    def _list_constants(
        self, schema: Mapping[str, Any], usable: dict[str, Any], place: str
    ) -> None:
        """Write constants, without those that `not` excludes."""
        excluded: set[Hashable] = set()
        if schema.get("not", False) is not False:
            listed = constants_of(self._target_of(schema["not"]))
            if listed is None or "enum" not in schema:
                raise RefusedSchemaError(
                    f"{place}/not", "is supported beside enum only, and of constants"
                )
            excluded = {*map(identity, listed)}
        if "enum" in schema:
            usable["enum"] = [
                usable_constant(value, f"{place}/enum/{number}")
                for number, value in enumerate(schema["enum"])
                if identity(value) not in excluded
            ]
        if "const" in schema:
            usable["const"] = usable_constant(schema["const"], f"{place}/const")

    def _list_unique_items(
        self, schema: Mapping[str, Any], usable: dict[str, Any], place: str
    ) -> None:
        """Express uniqueItems of a few constants as all subsets, in the constants' order.

        It is removed if it has no effect, and otherwise refused.
        """
        least, most = usable.get("minItems", 0), usable.get("maxItems", _MANY)
        if schema.get("uniqueItems", False) is not True or most <= 1:
            return
        constants = constants_of(self._target_of(schema.get("items")))
        is_plain = not {"anyOf", "prefixItems"} & usable.keys()
        if constants is None or len(constants) > _MAX_UNIQUE or not is_plain:
            raise RefusedSchemaError(
                f"{place}/uniqueItems", f"is supported for at most {_MAX_UNIQUE} constants only"
            )
        constants = [usable_constant(value, f"{place}/items/enum") for value in distinct(constants)]
        sizes = range(least, min(most, len(constants)) + 1)
        subsets = (subset for size in sizes for subset in itertools.combinations(constants, size))
        usable["anyOf"] = [*map(_list_of, subsets)]
        if schema.get("type") != "array":
            usable["anyOf"].append({"type": sorted(TYPES - {"array"})})
        for key in ("minItems", "maxItems"):
            usable.pop(key, None)

    def _exclude_alternatives(
        self, schema: Mapping[str, Any], usable: dict[str, Any], place: str
    ) -> None:
        """Express oneOf as anyOf, if its alternatives exclude each other."""
        if "oneOf" not in schema:
            return
        alternatives, possible = usable.pop("oneOf"), self._possibilities
        types = listed_types(schema)
        for one, other in itertools.combinations(schema["oneOf"], 2):
            if not possible.exclude_each_other(one, other, types):
                raise RefusedSchemaError(
                    f"{place}/oneOf",
                    "must have alternatives that plainly exclude each other; use anyOf",
                )
        _add_alternatives(usable, alternatives)

    def _restrict_numbers(
        self, schema: Mapping[str, Any], usable: dict[str, Any], place: str
    ) -> None:
        """Express the range of numbers as alternatives that are enforced exactly."""
        if not any(key in schema for key in ranges.KEYS):
            return
        named = schema.get("type", ["number", *sorted(TYPES - {"number"})])
        types = named if isinstance(named, list) else [named]
        kinds = [kind for kind in ("number", "integer") if kind in types]
        if not kinds:
            return
        numbers = ranges.alternatives(schema, place, is_whole="number" not in kinds)
        if schema.get("multipleOf") is not None:
            for step in ranges.steps_of(exact(schema["multipleOf"])):
                self._steps.setdefault(step, f"{place}/multipleOf")
        others = [kind for kind in types if kind not in kinds]
        if not others and len(numbers) == 1 and "const" not in usable:
            usable |= {"type": kinds[0], **numbers[0]}
            return
        alternatives = [{"type": kinds[0], **number} for number in numbers]
        _add_alternatives(usable, [*([{"type": others}] if others else []), *alternatives])

    def _check_steps(self) -> None:
        """Refuse several multipleOf if all of them together have too large a multiple."""
        steps = [*self._steps]
        if len(steps) < 2 or not _may_meet(self._whole):
            return
        places = max(0, *(-int(step.normalize().as_tuple().exponent) for step in steps))
        if math.lcm(*(int(step.scaleb(places)) for step in steps)) > MAX_STEP:
            raise RefusedSchemaError(
                [*self._steps.values()][-1],
                "cannot be combined with the schema's other multipleOf: their least common "
                f"multiple is above {MAX_STEP}",
            )

    def _target_of(self, schema: Any) -> Any:
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        return schema if reference is None else target(reference, self._whole)


def _add_alternatives(usable: dict[str, Any], alternatives: list[Any]) -> None:
    """Restrict a schema to alternatives, beside those that it has."""
    if "anyOf" in usable:
        usable["allOf"] = [*usable.get("allOf", ()), {"anyOf": alternatives}]
    else:
        usable["anyOf"] = alternatives


def _list_of(items: Sequence[Any]) -> dict[str, Any]:
    """Return the schema of the list with exactly these items."""
    listed = {"prefixItems": [{"const": item} for item in items]} if items else {}
    return {"type": "array", **listed, "minItems": len(items), "maxItems": len(items)}


def _may_meet(schema: Any) -> bool:
    """Return whether two parts of a schema may restrict the same value."""
    if not isinstance(schema, Mapping):
        return False
    joined = [key for key in ("allOf", "anyOf", "oneOf", "$ref") if key in schema]
    others = schema.keys() - {*joined, *OF_DEFINITIONS, *_SILENT}
    if len(schema.get("allOf", ())) > 1 or len(joined) > 1 or (joined and others):
        return True
    if "patternProperties" in schema and "properties" in schema:
        return True
    return any(_may_meet(part) for _, part in parts_of(schema))


def _without_impossible(schema: Any, possible: Possibilities) -> Any:
    """Return a schema in which parts that no value fits are replaced by false.

    llguidance refuses a whole schema for one such definition.
    """
    if not isinstance(schema, dict):
        return schema
    if not possible.types(schema):
        return False
    for key in ("properties", "patternProperties", "$defs"):
        for name, part in schema.get(key, {}).items():
            schema[key][name] = _without_impossible(part, possible)
    for key in OF_LISTS:
        if key in schema:
            schema[key] = [_without_impossible(part, possible) for part in schema[key]]
    for key in ("items", "additionalProperties"):
        if key in schema:
            schema[key] = _without_impossible(schema[key], possible)
    return schema
