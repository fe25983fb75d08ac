"""Patience: how often to send steps to a server that does not answer in time."""

from __future__ import annotations

_GROWTH = 4.0  # factor from one pause to the next
# longest pause, as a multiple of the wait before it: waits then take at most 2 % of the time
_MAX_PAUSE = 50.0


class Patience:
    """Skips steps for a server that does not answer, the longer the more it has missed."""

    def __init__(self) -> None:
        self._pause = 1.0  # length of the next pause, as a multiple of the wait before it
        self._ends_at = 0.0

    def allows(self, now: float) -> bool:
        """Return whether a step may be sent to the server. Times are seconds of one clock."""
        return now >= self._ends_at

    def on_answer(self) -> None:
        """Record an answer that came in time."""
        self._pause = 1.0

    def on_silence(self, waited: float, now: float) -> None:
        """Record a step without an answer, and the seconds spent waiting for one."""
        self._ends_at = now + self._pause * waited
        self._pause = min(_GROWTH * self._pause, _MAX_PAUSE)
