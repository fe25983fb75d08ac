"""Faults: the errors of several checks, raised together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from diffuspec.core.errors import ConfigError, DiffuspecError

T = TypeVar("T")


class Faults:
    """Collects the errors of checks, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self._errors: dict[str, DiffuspecError] = {}  # keys: messages

    def check(self, key: str, check: Callable[[], T]) -> T | None:
        """Return the result of a check; if it fails, note the error with `key` before it."""
        try:
            return check()
        except DiffuspecError as error:
            text = str(error)
            message = text if not key or text.startswith(key) else f"{key}: {text}"
            self._errors.setdefault(message, type(error)(message))
        return None

    def raise_all(self) -> None:
        """Raise the noted error if there is one, or a ConfigError that joins several."""
        errors = [*self._errors.values()]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ConfigError("; ".join(map(str, errors)))
