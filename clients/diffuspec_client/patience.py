"""Patience: how often a server is asked that does not answer in time."""

from __future__ import annotations

_GROWTH = 4.0  # factor from one pause to the next
_MAX_PAUSE = 50.0  # longest pause, in waits before it: waits then take 2 % of the time at most


class Patience:
    """Lets a server be until a pause is over, which is longer the more steps it has missed."""

    def __init__(self) -> None:
        self._pause = 1.0  # the next pause, as a multiple of the wait before it
        self._ends_at = 0.0

    def allows(self, now: float) -> bool:
        """Whether the server may be asked. Times are seconds of one clock."""
        return now >= self._ends_at

    def on_answer(self) -> None:
        """Note an answer that came in time."""
        self._pause = 1.0

    def on_silence(self, waited: float, now: float) -> None:
        """Note a step without an answer, and the seconds that it was waited for."""
        self._ends_at = now + self._pause * waited
        self._pause = min(_GROWTH * self._pause, _MAX_PAUSE)
