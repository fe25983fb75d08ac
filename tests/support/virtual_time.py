"""An event loop whose clock, time.monotonic() too, jumps to the next timer instead of waiting.

By that clock, work takes no time and waits take exactly their length, so that tests measure the
logic of the loop and find the same on every machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Advances its clock to the next timer when no callback is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1000.0

    def time(self) -> float:
        return self._now

    def run_forever(self) -> None:
        with patch.object(time, "monotonic", self.time):
            super().run_forever()

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            if not self._scheduled:  # type: ignore[attr-defined]
                raise RuntimeError("deadlock: no callback is ready and no timer is set")
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Nothing in it may wait for threads or sockets."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
