"""LoopRunner: runs loops as tasks, and restarts a loop that a bug has ended."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias

logger = logging.getLogger(__name__)

Loop: TypeAlias = Callable[[], Awaitable[None]]


class LoopRunner:
    """The loops of a coordinator. A loop that returns is not run again."""

    def __init__(self, on_error: Callable[[Loop, Exception], None]) -> None:
        """`on_error` is called with a loop that has failed, before it runs again."""
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_running(self) -> bool:
        return bool(self._tasks)

    def start(self, loop: Loop) -> None:
        # In a context of its own: the caller's may belong to one request.
        task = asyncio.create_task(self._keep_running(loop), context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Cancel all loops, and wait until they have ended."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, loop: Loop) -> None:
        while True:
            try:
                await loop()
                return
            except Exception as error:
                logger.critical("a loop of the coordinator broke off", exc_info=error)
                self._on_error(loop, error)
            await asyncio.sleep(0)
