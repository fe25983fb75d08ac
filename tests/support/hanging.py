"""An event loop that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

HANG_SECONDS = 0.6


async def answer_while_hanging(ask: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
    """Do nothing else in this event loop for HANG_SECONDS; return what is answered at their end."""
    found = []

    def watch() -> None:
        time.sleep(HANG_SECONDS)
        found.append(asyncio.run(ask()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    watcher.join()
    await asyncio.sleep(HANG_SECONDS / 2)
    return found[0]
