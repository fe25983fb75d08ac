"""Releases: the workers are told to forget requests that have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Literal

from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.core.interfaces import Verifier

logger = logging.getLogger(__name__)


class Releases:
    """Tells both roles, beside everything else. A worker that fails at it holds nobody up."""

    def __init__(self, verifier: Verifier, drafters: DrafterPool | None) -> None:
        self._verifier = verifier
        self._drafters = drafters
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Task[Literal[True]] | None = None

    def open(self) -> None:
        """From now on requests can be let go of, until `finish` or the event loop's end."""
        self._idle = asyncio.create_task(asyncio.Event().wait(), name="releases")

    def start(self, request_id: str, then: Callable[[], None]) -> None:
        """Let go of a request; `then` is called once the verifier has.

        A drafter is not waited for: it may be busy with a draft for others. An event loop that
        ends takes no more tasks, and cancels all that it has, the idle one too: nothing happens.
        """
        if self._idle is None or self._idle.done() or self._idle.cancelling():
            return
        if self._drafters is not None:
            self._begin(_release(self._drafters, request_id))
        self._begin(self._release_and(request_id, then))

    async def finish(self, max_seconds: float) -> None:
        """Wait for what is under way, for so long at most; the rest is cancelled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_seconds):
                while self._tasks:
                    await asyncio.gather(*self._tasks)
        if self._idle is not None:
            self._idle.cancel()

    async def _release_and(self, request_id: str, then: Callable[[], None]) -> None:
        await _release(self._verifier, request_id)
        then()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _release(worker: DrafterPool | Verifier, request_id: str) -> None:
    try:
        await worker.release(request_id)
    except Exception as error:
        logger.warning("what a worker holds for %s could not be released: %s", request_id, error)
