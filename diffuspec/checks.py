"""Checks of single values that users give. What is wrong raises InvalidRequestError with the value.

Numbers of numpy are taken too, and come back as Python's: they go on into JSON and onto the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import NoReturn, TypeAlias

from diffuspec.errors import InvalidRequestError

Check: TypeAlias = Callable[[str, object], object]  # name and value: the value, made plain


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise unless a condition on a value holds."""
    if not condition:
        raise InvalidRequestError(f"{name} must be {expected}, got {value}")


def few(name: str, values: tuple[object, ...], limit: int, kind: str) -> None:
    require(len(values) <= limit, name, f"{len(values)} {kind}", f"{limit} at most")


def integer(name: str, value: object, expected: str = "an integer") -> int:
    """Return a whole number; neither 1.0 nor True is one."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        _refuse(name, value, expected)
    return int(value)


def optional_integer(name: str, value: object) -> int | None:
    return None if value is None else integer(name, value)


def number(name: str, value: object, expected: str = "a number") -> float:
    """Return a number as it is, or as a float."""
    if not isinstance(value, Real) or isinstance(value, bool):
        _refuse(name, value, expected)
    return value if isinstance(value, int) else float(value)


def boolean(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        _refuse(name, value, "True or False")
    return value


def strings(name: str, value: object) -> tuple[str, ...]:
    """Return several strings; one alone is one of them, not its letters."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        _refuse(name, value, "a string or several")
    return tuple(value)


def integers(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        _refuse(name, value, "a list of integers")
    return tuple([integer(name, one) for one in value])


def one_of(name: str, value: object, names: tuple[str, ...]) -> None:
    """Raise unless a value is one of these names."""
    if value not in names:
        _refuse(name, value, f"one of {', '.join(names)}")


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    raise InvalidRequestError(f"{name} must be {expected}, got {value!r:.80}")
