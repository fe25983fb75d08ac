"""How one parameter of a request is declared, and the check that follows from its declaration.

    temperature: Annotated[float, Interval(ge=0, le=10)] = declare(0.0, "0 decodes greedily.")

The annotation says which values are right: int, float or bool; a range of numbers (Interval); a
Literal of words, alone or in place of a number; None; a tuple of strings or integers and its
length (Len). The command line and the messages read the same declaration through `declared`, and
pydantic reads it by itself where a configuration holds the class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Interval, Len

from diffuspec.core.errors import InvalidRequestError

T = TypeVar("T")
Check: TypeAlias = Callable[[Any], Any]  # value in, the same as one of Python's own types out


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a class declares of one of its fields."""

    name: str
    kind: type  # int, float, bool or str; of each item, if it is a list
    default: Any
    help: str
    option: str | None  # name on the command line, without dashes; None: it has no option
    words: tuple[str, ...] = ()  # taken beside numbers, or all choices of a str
    bounds: Interval = Interval()  # of a number, or of each in a list
    length: Len = Len()  # of each string in a list
    num_items: Len | None = None  # None: a single value, no list
    is_optional: bool = False  # None is a value too


def declare(default: Any, help: str, *, option: str | None = "") -> Any:
    """Return the dataclass field of a parameter.

    help: whole sentences for users. option: the name on the command line, if not the field's own;
    None: it has no option of its own.
    """
    return field(default=default, metadata={"description": help, "option": option})


def declared(cls: Any) -> tuple[Parameter, ...]:
    """Return what a class declares, in the order of its fields."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for one in fields(cls):
        text, option = one.metadata["description"], one.metadata["option"]
        option = one.name.replace("_", "-") if option == "" else option
        known = {"name": one.name, "default": one.default, "help": text, "option": option}
        found.append(_read(hints[one.name], **known))
    return tuple(found)


def _read(annotation: Any, **found: Any) -> Parameter:
    """Return the parameter that an annotation describes, and what was found of it before."""
    is_union = get_origin(annotation) in (Union, UnionType)
    for part in get_args(annotation) if is_union else (annotation,):
        bare, *extras = get_args(part) if get_origin(part) is Annotated else (part,)
        if bare is NoneType:
            found["is_optional"] = True
        elif get_origin(bare) is Literal:
            found["words"] = get_args(bare)
            found.setdefault("kind", str)
        elif get_origin(bare) is tuple:
            item = _read(get_args(bare)[0], **found)
            found |= {"kind": item.kind, "bounds": item.bounds, "length": item.length}
            found["num_items"] = _first(Len, extras) or Len()
        else:
            found["kind"] = bare
            found["bounds"] = _first(Interval, extras) or Interval()
            found["length"] = _first(Len, extras) or Len()
    return Parameter(**found)


def _first(kind: type[T], extras: Sequence[object]) -> T | None:
    return next((extra for extra in extras if isinstance(extra, kind)), None)


def spell(bounds: Interval) -> str:
    """Return a range in words, "" if there is none."""
    above, least, most = bounds.gt, bounds.ge, bounds.le
    if least is not None:
        return f"from {least} to {most}" if most is not None else f"{least} or more"
    return f"above {above} and at most {most}" if above is not None else ""


def check_fields(params: object) -> None:
    """Check each field of a frozen dataclass that declares parameters, in place.

    Numbers of numpy become Python's, lists become tuples. Raises InvalidRequestError.
    """
    for name, check in _checks(type(params)):
        value = getattr(params, name)
        plain = check(value)
        if plain is not value:
            object.__setattr__(params, name, plain)


def _make_checks(cls: type) -> tuple[tuple[str, Check], ...]:
    return tuple((parameter.name, _make_check(parameter)) for parameter in declared(cls))


_checks: Callable[[type], tuple[tuple[str, Check], ...]] = functools.cache(_make_checks)


def _make_check(parameter: Parameter) -> Check:
    if parameter.num_items is not None:
        check = _strings_check(parameter) if parameter.kind is str else _integers_check(parameter)
    elif parameter.kind is bool:
        check = _boolean_check(parameter)
    elif parameter.kind is str:
        check = _choice_check(parameter)
    else:
        check = _number_check(parameter)
    return _or_none(check) if parameter.is_optional else check


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _boolean_check(parameter: Parameter) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, bool):
            _refuse(parameter.name, value, "True or False")
        return value

    return check


def _choice_check(parameter: Parameter) -> Check:
    name, words = parameter.name, parameter.words

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            _refuse(name, value, f"one of {', '.join(words)}")
        return value

    return check


def _number_check(parameter: Parameter) -> Check:
    """Neither 1.0 nor True is an integer; an integer is a number and stays one."""
    name, words, kind = parameter.name, parameter.words, parameter.kind
    abstract: type = Integral if kind is int else Real
    or_word = "".join(f", or {word!r}" for word in words)
    right_kind = ("an integer" if kind is int else "a number") + or_word
    right_range = spell(parameter.bounds) + or_word
    bounds: Any = parameter.bounds
    lowest = bounds.gt if bounds.gt is not None else bounds.ge
    lowest = -float("inf") if lowest is None else lowest
    highest = float("inf") if bounds.le is None else bounds.le
    excluded = bounds.gt  # None: the lowest is right too

    def check(value: Any) -> Any:
        if type(value) is not kind:
            if isinstance(value, str) and value in words:
                return value
            if not isinstance(value, abstract) or isinstance(value, bool):
                _refuse(name, value, right_kind)
            value = value if isinstance(value, int) else kind(value)
        if not lowest <= value <= highest or value == excluded:
            raise InvalidRequestError(f"{name} must be {right_range}, got {value}")
        return value

    return check


def _integers_check(parameter: Parameter) -> Check:
    name, check_number = parameter.name, _number_check(parameter)

    def check(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            _refuse(name, value, "a list of integers")
        _check_count(parameter, len(value), "integers")
        return tuple([check_number(one) for one in value])

    return check


def _strings_check(parameter: Parameter) -> Check:
    """One string alone is a list of one, not its letters."""
    name, length = parameter.name, parameter.length

    def check(value: Any) -> tuple[str, ...]:
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
            _refuse(name, value, "a string or several")
        _check_count(parameter, len(texts), "strings")
        for text in texts:
            if not length.min_length <= len(text) <= (length.max_length or len(text)):
                raise InvalidRequestError(
                    f"{name} must be strings of {length.min_length} to {length.max_length} "
                    f"characters, got a string of {len(text)} characters"
                )
        return tuple(texts)

    return check


def _check_count(parameter: Parameter, count: int, unit: str) -> None:
    most = parameter.num_items.max_length if parameter.num_items is not None else None
    if most is not None and count > most:
        raise InvalidRequestError(f"{parameter.name} must have at most {most} {unit}, got {count}")


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    raise InvalidRequestError(f"{name} must be {expected}, got {value!r:.80}")
