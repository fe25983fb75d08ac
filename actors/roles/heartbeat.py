"""A heartbeat: whether an event loop runs its tasks."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Self

_MAX_INTERVAL_SECONDS = 0.5


class Heartbeat:
    """Beats in the event loop in which its context is open. Any thread may read it.

    max_silence_seconds: longest time for which one callback may block the loop.
    """

    def __init__(self, max_silence_seconds: float) -> None:
        self._max_silence_seconds = max_silence_seconds
        self._last = -math.inf
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._last = time.monotonic()
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._last = -math.inf
        if self._beating is not None:
            self._beating.cancel()

    @property
    def is_alive(self) -> bool:
        """Whether the loop has run within max_silence_seconds; False outside the context."""
        return time.monotonic() - self._last <= self._max_silence_seconds

    async def _beat(self) -> None:
        interval = min(_MAX_INTERVAL_SECONDS, self._max_silence_seconds / 4)
        while True:
            await asyncio.sleep(interval)
            self._last = time.monotonic()
