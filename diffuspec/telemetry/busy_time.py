"""BusyTime: how long calls have been in flight."""

from __future__ import annotations


class BusyTime:
    """Total seconds with a call in flight; overlapping calls count once."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._num_calls = 0
        self._since = 0.0

    def begin(self, now: float) -> None:
        if not self._num_calls:
            self._since = now
        self._num_calls += 1

    def end(self, now: float) -> None:
        self._num_calls -= 1
        if not self._num_calls:
            self._seconds += now - self._since

    def seconds(self, now: float) -> float:
        """Return the total seconds with a call in flight, up to `now`."""
        return self._seconds + (now - self._since if self._num_calls else 0.0)
