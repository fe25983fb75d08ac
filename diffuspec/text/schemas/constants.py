"""The constants of JSON Schemas: which of them are equal, and which can be written."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Final

from diffuspec.text.schemas.numbers import LEAST_WHOLE, MOST_WHOLE, exact, is_number, written
from diffuspec.text.schemas.refusal import RefusedSchemaError

_WHOLE: Final = (
    "is an integer that cannot be written: use one within +-9007199254740992 (2^53), one beyond "
    "that is a 64-bit float within +-2^63, or a text"
)
_FRACTION: Final = "has more digits than can be written: use a number of up to 15 digits, or a text"


def identity(value: Any) -> Hashable:
    """Return a key that equal values of JSON share: 1 and 1.0 are equal, 0 and false are not."""
    if isinstance(value, list):
        return (list, tuple(map(identity, value)))
    if isinstance(value, Mapping):
        return (dict, frozenset((key, identity(part)) for key, part in value.items()))
    return (isinstance(value, bool), value)


def distinct(values: Iterable[Any]) -> list[Any]:
    """Return values without those that equal an earlier one."""
    kept: dict[Hashable, Any] = {}
    for value in values:
        kept.setdefault(identity(value), value)
    return [*kept.values()]


def constants_of(schema: Any) -> list[Any] | None:
    """Return the only values of a schema, if it lists them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("enum"), list):
        return distinct(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def usable_constant(value: Any, place: str) -> Any:
    """Return a constant with numbers as llguidance reads them. Raises RefusedSchemaError."""
    if isinstance(value, Mapping):
        return {key: usable_constant(one, f"{place}/{key}") for key, one in value.items()}
    if isinstance(value, list):
        return [usable_constant(one, f"{place}/{number}") for number, one in enumerate(value)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not is_number(value):
        raise RefusedSchemaError(place, "must be finite")
    if value == int(value):
        whole = int(value)
        if LEAST_WHOLE <= whole < MOST_WHOLE and int(float(whole)) == whole:
            return whole
        raise RefusedSchemaError(place, _WHOLE)
    number = written(exact(value))
    if number is None:
        raise RefusedSchemaError(place, _FRACTION)
    return number
