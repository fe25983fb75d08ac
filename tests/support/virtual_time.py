"""An event loop in which waiting takes no time and time.monotonic() tells what would have passed.

Work takes no time there, waits take exactly as long as they say: what is measured is the loop's
logic, the same on every machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar
from unittest.mock import patch

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer whenever nothing is left to do."""

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
                raise RuntimeError("everything waits for something that nothing will bring about")
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Nothing in it may wait for threads or sockets."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
