"""Ranges of numbers as alternatives that llguidance enforces exactly.

Of a range of fractions whose bounds share their whole part, or whose outer bound has several
decimal places, llguidance 1.9.1 loses or adds texts: [0.05, 0.95] has no 0.9, (0, 0.5] has 0. Such
a range becomes the part between whole numbers, the part within the outermost unit, and the decimals
that are lost. These remain right where llguidance intersects them with others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from typing import Any, Final

from diffuspec.text.schemas.numbers import (
    LEAST_WHOLE,
    MAX_STEP,
    MOST,
    MOST_WHOLE,
    Number,
    exact,
    is_exact_whole,
    is_number,
    is_step,
    just_above,
    written,
)
from diffuspec.text.schemas.refusal import RefusedSchemaError

KEYS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_PRECISION: Final = Context(prec=1000)  # digits: floats have up to 309 and 324 around the point
_OPEN_TO: Final = Decimal(10**18 - 10**5)  # bounds of more digits need a second bound
_MAX_LISTED: Final = 16  # multiples that become constants
_TOO_FINE: Final = (
    "has more digits than can be enforced: use a number of up to 15 digits, or a text"
)


@dataclass(frozen=True, slots=True)
class Bound:
    """An end of a range; `key`: the schema's key that sets it, empty for the limit of numbers."""

    value: Decimal
    is_inclusive: bool
    key: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers between two bounds that are multiples of a step; None: no restriction."""

    low: Bound | None
    high: Bound | None
    step: Decimal | None
    is_whole: bool

    def __contains__(self, value: Decimal) -> bool:
        low, high = self.low, self.high
        is_above = low is None or low.value < value or (low.value == value and low.is_inclusive)
        is_below = high is None or value < high.value or (high.value == value and high.is_inclusive)
        return is_above and is_below and not (self.step and value % self.step)

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        if self.low.value == self.high.value:
            return not (self.low.is_inclusive and self.high.is_inclusive)
        return self.low.value > self.high.value


def alternatives(schema: Mapping[str, Any], place: str, *, is_whole: bool) -> list[dict[str, Any]]:
    """Return schemas that together allow the numbers of a schema, each with KEYS or const only.

    A bound that cannot be written becomes the nearest tighter one. Raises RefusedSchemaError.
    """
    with localcontext(_PRECISION):
        limits = _snapped(_within_reach(_read(schema, place, is_whole), place))
        if limits.is_empty:
            return []
        if (listed := _multiples(limits)) is not None:
            return [_single(number, limits, place) for number in listed]
        steps = [limits]
        if limits.step:
            steps = [replace(limits, step=step) for step in steps_of(limits.step)]
        if is_whole:
            return [_whole(stepped, place) for stepped in steps]
        parts = [_described(part, place) for stepped in steps for part in _split(stepped)]
        lost = sorted({value for value in _lost(limits) if value in limits})
        consts = [number for value in lost if (number := written(value)) is not None]
        return parts + [{"const": number} for number in consts]


def _read(schema: Mapping[str, Any], place: str, is_whole: bool) -> Range:
    lows: list[Bound] = []
    highs: list[Bound] = []
    for key in KEYS[:4]:
        value = schema.get(key)
        if value is None or value is False:
            continue
        base = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}.get(key, key)
        if value is True and base != key:  # as in draft 4
            value = schema.get(base)
            if value is None:
                continue
        if not (is_number(value) or value in (math.inf, -math.inf)):
            raise RefusedSchemaError(f"{place}/{key}", "must be a number")
        bound = Bound(exact(value), base == key, key)
        (lows if base == "minimum" else highs).append(bound)
    low = max(lows, key=lambda bound: (bound.value, not bound.is_inclusive), default=None)
    high = min(highs, key=lambda bound: (bound.value, bound.is_inclusive), default=None)
    return Range(low, high, _step(schema, place), is_whole)


def _step(schema: Mapping[str, Any], place: str) -> Decimal | None:
    value = schema.get("multipleOf")
    if value is None:
        return None
    if not is_number(value) or value <= 0:
        raise RefusedSchemaError(f"{place}/multipleOf", "must be a number above 0")
    if not all(map(is_step, steps_of(exact(value)))):
        raise RefusedSchemaError(
            f"{place}/multipleOf",
            f"is supported for 1 to {MAX_STEP}, or as many of a decimal place, such as 0.01; "
            "some decimals, such as 0.07, are not",
        )
    return exact(value)


def _within_reach(limits: Range, place: str) -> Range:
    """Return the part of a range that can be written, with both bounds if it needs both."""
    least = Decimal(LEAST_WHOLE) if limits.is_whole else -MOST
    most = Decimal(MOST_WHOLE) if limits.is_whole else MOST
    low, high = limits.low, limits.high
    for bound, is_beyond in (
        (low, low is not None and low.value > most),
        (high, high is not None and high.value < least),
    ):
        if bound is not None and is_beyond:
            raise RefusedSchemaError(f"{place}/{bound.key}", "leaves only numbers beyond +-2^63")
    if low is not None and low.value < least:
        low = Bound(least, True)
    if high is not None and high.value > most:
        high = Bound(most, True)
    if high is None and low is not None and low.value >= _OPEN_TO:
        high = Bound(most, True)
    if low is None and high is not None and high.value <= -_OPEN_TO:
        low = Bound(least, True)
    return replace(limits, low=low, high=high)


def _snapped(limits: Range) -> Range:
    """Return the range between the first and the last multiple of its step, if it has one.

    A bound at the limit of numbers remains, even if it is no multiple.
    """
    step = limits.step
    if limits.is_whole:
        step = _least_common(step, Decimal(1)) if step else Decimal(1)
    if not step:
        return limits
    low, high = limits.low, limits.high
    if low is not None and low.key:
        value = _up(low.value, step)
        value += step if value == low.value and not low.is_inclusive else 0
        low = Bound(value, True, low.key)
    if high is not None and high.key:
        value = -_up(-high.value, step)
        value -= step if value == high.value and not high.is_inclusive else 0
        high = Bound(value, True, high.key)
    return replace(limits, low=low, high=high)


def steps_of(step: Decimal) -> list[Decimal]:
    """Return a step and its multiples of fewer decimal places.

    Of the multiples of 0.25, llguidance takes 0.50 and 1, not 0.5.
    """
    places = range(1, -int(step.as_tuple().exponent))
    shorter = (_least_common(step, Decimal(1).scaleb(-number)) for number in places)
    return [step, *(other for other in shorter if other != step)]


def _up(value: Decimal, step: Decimal) -> Decimal:
    """Return the smallest multiple of a step that is not below a value."""
    return (value / step).to_integral_value(rounding="ROUND_CEILING") * step


def _least_common(one: Decimal, other: Decimal) -> Decimal:
    scale = Decimal(10) ** max(0, *(-int(each.as_tuple().exponent) for each in (one, other)))
    return Decimal(math.lcm(int(one * scale), int(other * scale))) / scale


def _multiples(limits: Range) -> list[Decimal] | None:
    """Return all numbers of a range with a step, or of one number; None if they are many."""
    low, high = limits.low, limits.high
    if low is None or high is None or not (low.key and high.key):
        return None
    if low.value == high.value:
        return [low.value]
    if not limits.step:
        return None
    step = _least_common(limits.step, Decimal(1)) if limits.is_whole else limits.step
    count = int((high.value - low.value) / step) + 1
    return [low.value + number * step for number in range(count)] if count <= _MAX_LISTED else None


def _whole(limits: Range, place: str) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for name, bound in (("minimum", limits.low), ("maximum", limits.high)):
        if bound is None:
            continue
        if not is_exact_whole(int(bound.value)):
            raise RefusedSchemaError(f"{place}/{bound.key}", _TOO_FINE)
        schema[name] = int(bound.value)
    return schema | _step_of(limits, place)


def _split(limits: Range) -> Iterator[Range]:
    """Yield parts of a range of numbers: between whole numbers, and within the outermost units."""
    low, high = limits.low, limits.high
    inner = limits
    if high is not None and high.value > 0 and high.value % 1:
        whole = Bound(high.value // 1, True)
        yield _within_unit(limits, whole, high)
        inner = replace(inner, high=whole)
    if low is not None and low.value < 0 and low.value % 1:
        mirrored = _mirrored(limits)
        assert mirrored.high is not None
        whole = Bound(mirrored.high.value // 1, True)
        yield _mirrored(_within_unit(mirrored, whole, mirrored.high))
        inner = replace(inner, low=Bound(-whole.value, True))
    if not inner.is_empty:
        yield inner


def _within_unit(limits: Range, whole: Bound, high: Bound) -> Range:
    """Return the part of a range from a whole number, exclusive, to its upper bound."""
    low = limits.low
    if low is None or low.value <= whole.value:
        low = Bound(just_above(whole.value), True)
    return replace(limits, low=low, high=high)


def _mirrored(limits: Range) -> Range:
    low, high = limits.low, limits.high
    return replace(
        limits,
        low=high and replace(high, value=-high.value),
        high=low and replace(low, value=-low.value),
    )


def _lost(limits: Range) -> Iterator[Decimal]:
    """Yield the decimals that llguidance may lose: bounds, and the outer ones cut short."""
    for bound, sign in ((limits.low, -1), (limits.high, 1)):
        if bound is None or not bound.value % 1:
            continue
        yield bound.value
        if sign * bound.value > 0:
            exponent = bound.value.normalize().as_tuple().exponent
            for places in range(1, -int(exponent)):
                yield bound.value.quantize(Decimal(1).scaleb(-places), rounding="ROUND_DOWN")


def _single(value: Decimal, limits: Range, place: str) -> dict[str, Any]:
    key = limits.low.key if limits.low and value == limits.low.value else "multipleOf"
    if limits.is_whole:
        bound = Bound(value, True, key)
        return _whole(replace(limits, low=bound, high=bound, step=None), place)
    return {"const": _kept(value, place, key)}


def _described(limits: Range, place: str) -> dict[str, Any]:
    low, high = limits.low, limits.high
    if low is not None and high is not None and low.value == high.value:
        return {"const": _kept(low.value, place, low.key)}
    schema: dict[str, Any] = {}
    for name, bound in (("inimum", low), ("aximum", high)):
        if bound is not None:
            key = f"m{name}" if bound.is_inclusive else f"exclusiveM{name}"
            schema[key] = _kept(bound.value, place, bound.key)
    return schema | _step_of(limits, place)


def _step_of(limits: Range, place: str) -> dict[str, Any]:
    if limits.step is None:
        return {}
    return {"multipleOf": _kept(limits.step, place, "multipleOf")}


def _kept(value: Decimal, place: str, key: str) -> Number:
    number = written(value)
    if number is None:
        raise RefusedSchemaError(f"{place}/{key}", _TOO_FINE)
    return number
