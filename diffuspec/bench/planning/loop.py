"""An event loop whose clock (and time.monotonic()) jumps to the next timer instead of waiting.

On that clock work takes no time and waits take exactly their length. So only the logic of the loop
is measured, and results are the same on every machine.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")


class _NoFiles(selectors.SelectSelector):
    """Files on which nothing ever happens."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Advances its clock to the next timer when no callback is ready."""

    def __init__(self, start: float = 1000.0) -> None:
        super().__init__(_NoFiles())
        self._now = start

    def time(self) -> float:
        return self._now

    def run_forever(self) -> None:
        with patch.object(time, "monotonic", self.time):
            super().run_forever()

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            self._now = max(self._now, self._next_timer().when())
        super()._run_once()  # type: ignore[misc]

    def _next_timer(self) -> asyncio.TimerHandle:
        """Return the first active timer; drop cancelled ones.

        asyncio would also drop them, but then wait for the next timer on the real clock.
        """
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1  # type: ignore[attr-defined]
        if not timers:
            raise RuntimeError("deadlock: no callback is ready and no timer is set")
        return timers[0]


def run_in_virtual_time(work: Coroutine[Any, Any, T], start: float = 1000.0) -> T:
    """Run a coroutine to its end. It must not wait for threads or sockets.

    start: initial time of the clock, in seconds.
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start)) as runner:
        return runner.run(work)
