"""Whose turn it is: what is compared goes first in turns, so that no place is anybody's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def rotated(compared: Iterable[T], number: int) -> list[T]:
    """Return the order of round `number`: the next one goes first in every round."""
    order = list(compared)
    first = number % len(order)
    return order[first:] + order[:first]
