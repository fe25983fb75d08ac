"""NextPrompt: whether a client whose answer has just ended is about to send its next prompt."""

from __future__ import annotations

import time

_MAX_SECONDS = 0.005  # from the end of an answer until its client has asked again


class NextPrompt:
    """Expects a prompt for a moment after each answer, if one came in time the last time.

    Clients with many prompts send the next one as soon as they have an answer; people do not.
    """

    def __init__(self) -> None:
        self._expected_until: float | None = None  # by time.monotonic(); None: none is expected
        self._late_at = 0.0  # later, if a call has kept the event loop
        self._came_in_time = False

    @property
    def is_due(self) -> bool:
        until = self._expected_until
        return self._came_in_time and until is not None and time.monotonic() < until

    def note_end(self) -> None:
        """Note that an answer has ended."""
        now = time.monotonic()
        if self._expected_until is not None and now >= self._late_at:
            self._came_in_time = False
        self._expected_until = self._late_at = now + _MAX_SECONDS

    def note_call(self, began_at: float) -> None:
        """Note the end of a call that may have kept the event loop.

        A prompt that is seen right after it may have come long before.
        """
        if self._expected_until is not None and began_at < self._expected_until:
            self._late_at = time.monotonic() + _MAX_SECONDS

    def note_prompt(self) -> None:
        """Note that a prompt has come."""
        if self._expected_until is not None:
            self._came_in_time = time.monotonic() < self._late_at
        self._expected_until = None
