"""The declaration of a request's parameters.

    temperature: Annotated[float, Interval(ge=0, le=10)] = declare(0.0, "0 decodes greedily.")

The annotation says which values are valid: int, float or bool; a range of numbers (Interval); a
Literal of words, alone or as an alternative to a number; None; a tuple of strings, of integers or
of tuples of integers, and its length (Len); a mapping from token ids to numbers; a class that
declares parameters itself. `checks` checks values against it, the command line and the messages
read it through `declared`, and pydantic reads it directly in configurations that contain the class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Interval, Len

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parameter:
    """The declaration of one field."""

    name: str
    kind: type  # int, float, bool, str or a class that declares more; for a list, of each item
    default: Any
    help: str
    option: str | None  # name on the command line, without dashes; None: it has no option
    words: tuple[str, ...] = ()  # words allowed besides numbers, or all choices of a str
    bounds: Interval = Interval()  # bounds of each number
    length: Len = Len()  # length of a string, or of each string or sequence in a list
    num_items: Len | None = None  # length of a list or a mapping; None: a single value
    is_nested: bool = False  # a list of sequences
    is_mapping: bool = False  # keys are token ids
    is_optional: bool = False  # None is also valid


def declare(default: Any, help: str, *, option: str | None = "") -> Any:
    """Return the dataclass field of a parameter.

    help: complete sentences for users. option: the name on the command line, if it differs from the
    field's; None: no option. The default of a mapping is empty.
    """
    metadata = {"description": help, "option": option}
    if isinstance(default, dict):
        return field(default_factory=dict, hash=False, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared(cls: Any) -> tuple[Parameter, ...]:
    """Return the parameters of a class, in the order of its fields."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for one in fields(cls):
        text, option = one.metadata["description"], one.metadata["option"]
        option = one.name.replace("_", "-") if option == "" else option
        default = {} if one.default is MISSING else one.default
        known = {"name": one.name, "default": default, "help": text, "option": option}
        found.append(_read(hints[one.name], **known))
    return tuple(found)


def _read(annotation: Any, **found: Any) -> Parameter:
    """Return the parameter that an annotation describes, refining `found`."""
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
            is_nested = item.num_items is not None
            found |= {"kind": item.kind, "bounds": item.bounds, "is_nested": is_nested}
            found["length"] = item.num_items if is_nested else item.length
            found["num_items"] = _first(Len, extras) or Len()
        elif get_origin(bare) is Mapping:
            item = _read(get_args(bare)[1], **found)
            found |= {"kind": item.kind, "bounds": item.bounds, "is_mapping": True}
            found["num_items"] = _first(Len, extras) or Len()
        else:
            found["kind"] = bare
            found["bounds"] = _first(Interval, extras) or Interval()
            found["length"] = _first(Len, extras) or Len()
    return Parameter(**found)


def _first(kind: type[T], extras: Sequence[object]) -> T | None:
    return next((extra for extra in extras if isinstance(extra, kind)), None)


def spell(bounds: Interval) -> str:
    """Return a range in words; "" if it is unbounded."""
    above, least, most = bounds.gt, bounds.ge, bounds.le
    if least is not None:
        return f"from {least} to {most}" if most is not None else f"{least} or more"
    return f"above {above} and at most {most}" if above is not None else ""
