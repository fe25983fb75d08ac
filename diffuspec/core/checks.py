"""Checks a parameter's value according to its declaration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from numbers import Integral, Real
from typing import Any, NoReturn, TypeAlias

from annotated_types import Len

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import Parameter, declared, spell

_MAX_DIGITS = 10  # most digits of a token id

Check: TypeAlias = Callable[[Any], Any]  # takes a value; returns it as one of Python's own types


def check_fields(params: object) -> None:
    """Check and normalise, in place, the fields of a frozen dataclass that declares parameters.

    numpy numbers become Python numbers, lists become tuples. Raises InvalidRequestError.
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
    if parameter.is_mapping:
        check = _mapping_check(parameter)
    elif parameter.is_nested:
        check = _sequences_check(parameter)
    elif parameter.num_items is not None:
        check = _strings_check(parameter) if parameter.kind is str else _integers_check(parameter)
    elif parameter.kind is bool:
        check = _boolean_check(parameter)
    elif parameter.kind is str:
        check = _choice_check(parameter) if parameter.words else _string_check(parameter)
    elif is_dataclass(parameter.kind):
        check = _section_check(parameter)
    else:
        check = _number_check(parameter)
    return _or_none(check) if parameter.is_optional else check


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _boolean_check(parameter: Parameter) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, bool):
            _refuse(parameter.name, value, "true or false")
        return value

    return check


def _choice_check(parameter: Parameter) -> Check:
    name, words = parameter.name, parameter.words

    def check(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            _refuse(name, value, f"one of {', '.join(words)}")
        return value

    return check


def _string_check(parameter: Parameter) -> Check:
    name = parameter.name

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            _refuse(name, value, "a string")
        _check_text(parameter, value)
        return value

    return check


def _section_check(parameter: Parameter) -> Check:
    """Accept an instance of the class, or a mapping to its fields."""
    name, kind = parameter.name, parameter.kind
    known = ", ".join(one.name for one in declared(kind))

    def check(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            _refuse(name, value, f"a {kind.__name__} or a mapping")
        try:
            return kind(**value)
        except TypeError as error:  # an unknown field
            raise InvalidRequestError(f"{name} must have fields of {known} only") from error

    return check


def _number_check(parameter: Parameter) -> Check:
    """Accept numbers. Neither 1.0 nor True is an integer; an integer stays one."""
    name, words, kind = parameter.name, parameter.words, parameter.kind
    abstract: type = Integral if kind is int else Real
    or_word = "".join(f", or {word!r}" for word in words)
    if parameter.num_items is not None:
        right_kind = "integers" if kind is int else "numbers"
    else:
        right_kind = ("an integer" if kind is int else "a number") + or_word
    right_range = spell(parameter.bounds) + or_word
    bounds: Any = parameter.bounds
    lowest = bounds.gt if bounds.gt is not None else bounds.ge
    lowest = -float("inf") if lowest is None else lowest
    highest = float("inf") if bounds.le is None else bounds.le
    excluded = bounds.gt  # None: the lower bound itself is valid

    def check(value: Any) -> Any:
        if type(value) is not kind:
            if isinstance(value, str) and value in words:
                return value
            if not isinstance(value, abstract) or isinstance(value, bool):
                _refuse(name, value, right_kind)
            value = value if isinstance(value, int) else kind(value)
        if not lowest <= value <= highest or value == excluded:
            raise InvalidRequestError(f"{name} must be {right_range}, got {value!r:.80}")
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


def _sequences_check(parameter: Parameter) -> Check:
    """Accept a list of sequences; each is a list of integers."""
    name, length, check_number = parameter.name, parameter.length, _number_check(parameter)

    def check(value: Any) -> tuple[tuple[int, ...], ...]:
        if not isinstance(value, list | tuple):
            _refuse(name, value, "a list of lists of integers")
        _check_count(parameter, len(value), "lists")
        for one in value:
            if not isinstance(one, list | tuple):
                _refuse(name, one, "a list of lists of integers")
            if not length.min_length <= len(one) <= (length.max_length or len(one)):
                raise InvalidRequestError(
                    f"{name} must be lists of {length.min_length} to {length.max_length} "
                    f"integers, got a list of {len(one)}"
                )
        return tuple([tuple([check_number(number) for number in one]) for one in value])

    return check


def _mapping_check(parameter: Parameter) -> Check:
    """Accept a mapping. Keys are token ids: integers or, as in JSON, decimal digits."""
    name, check_number = parameter.name, _number_check(parameter)

    def check(value: Any) -> dict[int, Any]:
        if not isinstance(value, Mapping):
            _refuse(name, value, "a mapping from token ids to numbers")
        _check_count(parameter, len(value), "entries")
        checked = {_token_id(name, key): check_number(one) for key, one in value.items()}
        if len(checked) < len(value):
            _refuse(name, value, "a mapping with each token id once")
        return checked

    return check


def _token_id(name: str, key: object) -> int:
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS:
        return int(key)
    if not isinstance(key, Integral) or isinstance(key, bool) or key < 0:
        raise InvalidRequestError(f"{name} must have token ids as its keys, got {key!r:.80}")
    return int(key)


def _strings_check(parameter: Parameter) -> Check:
    """Accept strings. A single string becomes a list of one, not of its letters."""
    name = parameter.name

    def check(value: Any) -> tuple[str, ...]:
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
            _refuse(name, value, "a string or a list of strings")
        _check_count(parameter, len(texts), "strings")
        for text in texts:
            _check_text(parameter, text)
        return tuple(texts)

    return check


def _check_text(parameter: Parameter, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        raise InvalidRequestError(f"{parameter.name} must be valid Unicode") from None
    length = parameter.length
    if not length.min_length <= len(text) <= (length.max_length or len(text)):
        kind = "a string" if parameter.num_items is None else "strings"
        raise InvalidRequestError(
            f"{parameter.name} must be {kind} of {length.min_length} to {length.max_length} "
            f"characters, got a string of {len(text)} characters"
        )


def _check_count(parameter: Parameter, count: int, unit: str) -> None:
    bounds = parameter.num_items or Len()
    least, most = bounds.min_length, bounds.max_length
    if least <= count and (most is None or count <= most):
        return
    right = f"{least} to {most}" if least else f"at most {most}"
    raise InvalidRequestError(f"{parameter.name} must have {right} {unit}, got {count}")


def _refuse(name: str, value: object, expected: str) -> NoReturn:
    raise InvalidRequestError(f"{name} must be {expected}, got {value!r:.80}")
