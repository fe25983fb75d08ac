"""Faults: the errors of several checks, raised together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from diffuspec.core.errors import ConfigError, DiffuspecError

T = TypeVar("T")


class Faults:
    """Collects what is wrong, so that a user learns all of it at once."""

    def __init__(self) -> None:
        self._errors: dict[str, DiffuspecError] = {}  # by message

    def check(self, key: str, check: Callable[[], T]) -> T | None:
        """Return the result of a check; on an error note it, under a key that it may lack."""
        try:
            return check()
        except DiffuspecError as error:
            text = str(error)
            message = text if not key or text.startswith(key) else f"{key}: {text}"
            self._errors.setdefault(message, type(error)(message))
        return None

    def raise_all(self) -> None:
        """Raise what was noted: the error of a single check, or a ConfigError with all."""
        errors = [*self._errors.values()]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ConfigError("; ".join(map(str, errors)))
