"""Backoff: pauses between attempts, each twice as long as the one before, up to a limit."""

from __future__ import annotations


class Backoff:
    """Counts failures in a row, and tells how long to pause after the latest of them."""

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self.num_failures = 0  # since the last success

    @property
    def pause_seconds(self) -> float:
        """0 without a failure; then first_seconds, doubled for each further failure."""
        if not self.num_failures:
            return 0.0
        doublings = min(self.num_failures - 1, 64)
        return min(self._first_seconds * 2.0**doublings, self._max_seconds)

    def failed(self) -> float:
        """Count a failure; return the seconds to pause before the next attempt."""
        self.num_failures += 1
        return self.pause_seconds

    def succeeded(self) -> None:
        """Start again from the first pause."""
        self.num_failures = 0
