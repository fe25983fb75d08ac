"""The pulse: whether the scheduler's loop takes its events.

The event loop may be alive while the scheduler's loop is not: a call in it that does not return, or
a task that has ended. So a timer puts an event into the loop's own queue. Long verifications,
outages and slow readers do not stop the loop from taking events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_INTERVAL_SECONDS = 1.0
MAX_SILENCE_SECONDS = 10.0


class Pulse:
    """Puts an event into a queue every second, and notices when none is taken for long."""

    def __init__(self, put: Callable[[Callable[[], None]], None]) -> None:
        self._put = put
        self._put_at: float | None = None  # time.monotonic() of the event in the queue; None: taken
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_beating(self) -> bool:
        """Whether the latest event was taken, or has waited for MAX_SILENCE_SECONDS at most."""
        put_at = self._put_at  # once: other threads ask, too
        return put_at is None or time.monotonic() - put_at <= MAX_SILENCE_SECONDS

    def start(self) -> None:
        """Begin in the running event loop."""
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self._beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._put_at = None

    def _beat(self) -> None:
        if self._put_at is None:
            self._put_at = time.monotonic()
            self._put(self._take)
        self.start()

    def _take(self) -> None:
        self._put_at = None
