"""A circuit breaker: what fails is left alone for a while, longer each time."""

from __future__ import annotations

import time

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0


class Breaker:
    """Keeps a failing drafter from being asked at every step."""

    def __init__(self) -> None:
        self._pause_seconds = 0.0
        self._open_until = 0.0

    @property
    def is_open(self) -> bool:
        return time.monotonic() < self._open_until

    def succeeded(self) -> None:
        self._pause_seconds = 0.0

    def failed(self) -> None:
        doubled = max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS)
        self._pause_seconds = min(doubled, _MAX_PAUSE_SECONDS)
        self._open_until = time.monotonic() + self._pause_seconds
