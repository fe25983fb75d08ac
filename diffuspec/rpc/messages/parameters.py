"""Declared parameters as messages, and back.

A message holds a parameter in the field of the same name. A choice is an enum whose values end in
the words; UNSPECIFIED is 0. If a word is allowed instead of a number, a oneof holds the number (in
NAME or fixed_NAME) or a bool whose name begins with the word. Unset fields get the default; so does
0 in a field that cannot distinguish 0 from unset.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.parameter import Parameter, declared

P = TypeVar("P", bound=Any)  # a dataclass that declares parameters
M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class _Slot:
    """How a message stores a parameter."""

    name: str  # name of the parameter
    field: str  # the field of its value
    flags: Mapping[str, str]  # by word: the bool field that represents it instead of a number
    numbers: Mapping[str, int]  # by word of a choice: the enum's number
    is_nested: bool = False  # values are messages of token ids
    section: type | None = None  # class of a parameter that is itself a message


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a message stores all parameters of a class."""

    slots: tuple[_Slot, ...]
    # The parameter of each field, and the words that values of the field represent, if any.
    fields: Mapping[str, tuple[str, Mapping[object, str] | None]]
    sections: Mapping[str, type[Any]]  # by name: classes of parameters that are messages


def parameters_to_proto(params: object, kind: type[M]) -> M:
    """Return a message of a kind with every parameter set. Raises InvalidRequestError."""
    given: dict[str, Any] = {}
    for slot in _layout(type(params), kind).slots:
        value = getattr(params, slot.name)
        if slot.section is not None:
            part: Any = kind.DESCRIPTOR.fields_by_name[slot.field].message_type
            given[slot.field] = value and parameters_to_proto(value, GetMessageClass(part))
        elif slot.numbers:
            given[slot.field] = slot.numbers[value]
        elif slot.flags and value in slot.flags:
            given[slot.flags[value]] = True
        elif slot.is_nested:
            given[slot.field] = [{"token_ids": token_ids} for token_ids in value]
        else:
            given[slot.field] = value
    try:
        return kind(**given)
    except (ValueError, UnicodeError) as error:
        raise InvalidRequestError(f"parameters cannot be sent: {error}") from error


def parameters_from_proto(message: Message, defaults: P) -> P:
    """Return the defaults, overridden by what a message sets. Raises InvalidRequestError."""
    return replace(defaults, **_given(type(defaults), message))


def _given(cls: type, message: Message) -> dict[str, Any]:
    """Return the parameters that a message sets, by name."""
    given: dict[str, Any] = {}
    layout = _layout(cls, type(message))
    for field, value in message.ListFields():
        name, words = layout.fields[field.name]
        if (section := layout.sections.get(name)) is not None:
            given[name] = section(**_given(section, value))
        elif words is None:
            given[name] = _plain(value)
        elif value in words:
            given[name] = words[value]
        elif field.enum_type is not None:
            right = ", ".join(words.values())
            raise InvalidRequestError(f"{name} must be one of {right}, got {value}")
    return given


def _plain(value: Any) -> Any:
    """Return a field's value as one of Python's own types."""
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    return tuple([one if isinstance(one, int | str) else tuple(one.token_ids) for one in value])


def enum_numbers(enum: EnumDescriptor) -> dict[str, int]:
    """Return the number of each word of an enum, without UNSPECIFIED."""
    prefix = enum.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {one.name.removeprefix(prefix).lower(): one.number for one in enum.values if one.number}


def _make_layout(cls: type, kind: Any) -> _Layout:
    slots = tuple(_find_slot(parameter, kind.DESCRIPTOR) for parameter in declared(cls))
    fields: dict[str, tuple[str, Mapping[object, str] | None]] = {}
    for slot in slots:
        words: dict[object, str] = {number: word for word, number in slot.numbers.items()}
        fields[slot.field] = slot.name, words or None
        fields |= {flag: (slot.name, {True: word}) for word, flag in slot.flags.items()}
    sections = {slot.name: slot.section for slot in slots if slot.section is not None}
    return _Layout(slots, fields, sections)


_layout: Callable[[type, type], _Layout] = functools.cache(_make_layout)


def _find_slot(parameter: Parameter, message: Descriptor) -> _Slot:
    fields = message.fields_by_name
    field = fields.get(parameter.name) or fields[f"fixed_{parameter.name}"]
    if field.enum_type is not None:
        return _Slot(parameter.name, field.name, {}, enum_numbers(field.enum_type))
    flags = {word: _flag(word, field) for word in parameter.words}
    section = parameter.kind if is_dataclass(parameter.kind) else None
    return _Slot(parameter.name, field.name, flags, {}, parameter.is_nested, section)


def _flag(word: str, number: FieldDescriptor) -> str:
    """Return the name of the bool that stands for a word in place of a number."""
    assert number.containing_oneof is not None, f"{number.full_name} is not in a oneof"
    members = [field.name for field in number.containing_oneof.fields if field is not number]
    return next(name for name in members if name.startswith(f"{word}_"))
