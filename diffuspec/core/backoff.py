"""Backoff: pauses between attempts, each twice as long as the one before, up to a limit."""

from __future__ import annotations

import math


class Backoff:
    """Counts consecutive failures, and determines the pause after the latest."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self.num_failures = 0  # failures since the last success

    @property
    def pause_seconds(self) -> float:
        """0 without a failure; then first_seconds, doubled with each further failure."""
        if not self.num_failures:
            return 0.0
        doublings = min(self.num_failures - 1, 64)
        return min(self._first_seconds * 2.0**doublings, self._max_seconds)

    def failed(self) -> float:
        """Count a failure; return the seconds to pause before the next attempt."""
        self.num_failures += 1
        return self.pause_seconds

    def succeeded(self) -> None:
        """Reset to the first pause."""
        self.num_failures = 0


class Breaker:
    """A circuit breaker: keeps a failing drafter from being called at every step.

    While it is closed, every request may use the drafter. While it is open, none may; after a pause
    one attempt is made, and a success closes it again. `now` is of the caller's clock.
    """

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._backoff = Backoff(first_seconds, max_seconds)
        self._open_until = -math.inf

    @property
    def is_closed(self) -> bool:
        return not self._backoff.num_failures

    def may_retry(self, now: float) -> bool:
        """Return whether an attempt may be made; it must end in succeeded, failed or a cancel."""
        return not self.is_closed and now >= self._open_until

    def succeeded(self) -> None:
        self._backoff.succeeded()

    def failed(self, now: float) -> None:
        self._open_until = now + self._backoff.failed()
