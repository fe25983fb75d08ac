"""Numbers as llguidance reads them from a schema and writes them into a grammar.

It keeps every number as a 64-bit float. An integer type's bounds become 64-bit integers again; all
other numbers are written as the shortest decimal of the float, without an exponent.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final, TypeAlias

Number: TypeAlias = int | float

LEAST_WHOLE: Final = -(2**63) + 1024  # the smallest float above -2^63, of which llguidance dies
MOST_WHOLE: Final = 2**63 - 1  # 2^63 as a float, which becomes the largest 64-bit integer
MOST: Final = Decimal(9223372036854775000)  # the largest float below 2^63, as it is written
_LEAST_FRACTION: Final = Decimal("1e-22")  # smaller powers of ten are not read exactly
MAX_STEP: Final = (
    2048  # largest multipleOf, without its decimal point: the grammar has as many states
)
_POWERS: Final = 308  # largest power of ten by which llguidance scales decimals


def is_number(value: object) -> bool:
    """Return whether a value of JSON is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, int) or math.isfinite(value)


def exact(number: Number) -> Decimal:
    """Return a finite number, a float by its shortest decimal."""
    return Decimal(number if isinstance(number, int) else repr(number))


def is_exact_whole(number: int) -> bool:
    """Return whether a bound of integers is enforced as it is."""
    if number == MOST_WHOLE:
        return True
    return LEAST_WHOLE <= number < MOST_WHOLE and int(float(number)) == number


def written(value: Decimal) -> Number | None:
    """Return the number for a schema that makes llguidance write this one; None if there is none.

    Whole numbers become integers: those within +-2^53, and beyond these some within +-2^63.
    """
    if value == value.to_integral_value():
        is_kept = abs(value) <= MOST and exact(float(value)) == value
        return int(value) if is_kept else None
    number = float(value)
    if exact(number) != value or _is_tie(value, number):
        return None
    near = (number, math.nextafter(number, math.inf), math.nextafter(number, -math.inf))
    return next((neighbour for neighbour in near if _read(neighbour) == number), None)


def just_above(whole: Decimal) -> Decimal:
    """Return the smallest fraction above a whole number that can be written."""
    if not whole:
        return _LEAST_FRACTION
    number = float(whole)
    while True:
        number = math.nextafter(number, math.inf)
        if written(exact(number)) is not None:
            return exact(number)


def is_step(value: Decimal) -> bool:
    """Return whether a multipleOf is enforced as it is, and at a low cost."""
    number = float(value)
    if written(value) is None:
        return False
    digits = 0
    while number % 1:  # counts decimal places as llguidance does
        number, digits = number * 10, digits + 1
    return number <= MAX_STEP and Decimal(number).scaleb(-digits) == value


def _is_tie(value: Decimal, number: float) -> bool:
    """Return whether another decimal is as short and as near, so that llguidance may write that."""
    exponent = value.normalize().as_tuple().exponent
    assert isinstance(exponent, int)
    return 2 * abs(Decimal(number) - value) == Decimal(1).scaleb(exponent)


def _read(number: float) -> float:
    """Return the float that llguidance reads for a float in JSON, which may be a neighbour.

    It scales the digits by a power of ten in floats, which rounds twice.
    """
    sign, digits, exponent = exact(number).as_tuple()
    assert isinstance(exponent, int)
    value = float(int("".join(map(str, digits))))
    if exponent < -_POWERS:
        value, exponent = value / 1e308, exponent + _POWERS
    value = value * float(f"1e{exponent}") if exponent >= 0 else value / float(f"1e{-exponent}")
    return -value if sign else value
