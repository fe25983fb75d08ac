"""A circuit breaker: what fails is left alone for a while, longer each time, and then probed."""

from __future__ import annotations

import time

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0


class Breaker:
    """Keeps a failing worker from being asked at every step.

    closed: all may ask. open: nobody, until the pause is over. Then one asks, the probe, and
    everybody else goes on without until that has succeeded.
    """

    def __init__(self) -> None:
        self._pause_seconds = 0.0
        self._open_until = 0.0
        self._is_probed = False

    @property
    def is_closed(self) -> bool:
        return self._pause_seconds == 0

    def take_probe(self) -> bool:
        """Return whether the caller is the one to ask; it must say how it went, or give it up."""
        if self.is_closed or self._is_probed or time.monotonic() < self._open_until:
            return False
        self._is_probed = True
        return True

    def give_up_probe(self) -> None:
        """The one that was to ask will not: another may."""
        self._is_probed = False

    def succeeded(self) -> None:
        self._pause_seconds = 0.0
        self._is_probed = False

    def failed(self) -> None:
        doubled = max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS)
        self._pause_seconds = min(doubled, _MAX_PAUSE_SECONDS)
        self._open_until = time.monotonic() + self._pause_seconds
        self._is_probed = False
