"""Releases: tells the workers to free what they hold for requests that have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Literal, Protocol

logger = logging.getLogger(__name__)


class Releasing(Protocol):
    """One or several workers that may hold something for a request."""

    async def release(self, request_id: str) -> None: ...


class Releases:
    """Releases requests at both roles, in background tasks. A failing worker delays nothing."""

    def __init__(self, verifier: Releasing, drafters: Releasing) -> None:
        self._verifier = verifier
        self._drafters = drafters
        self.tasks: set[asyncio.Task[None]] = set()
        self._sentinel: asyncio.Task[Literal[True]] | None = None

    def open(self) -> None:
        """Accept releases until `finish`, or until the event loop shuts down.

        A loop that shuts down cancels all its tasks, including the sentinel, and runs no new ones.
        """
        self._sentinel = asyncio.create_task(asyncio.Event().wait(), name="releases")

    def start(self, request_id: str, then: Callable[[], None]) -> None:
        """Release a request at the workers; call `then` once the verifier has released it.

        It does not wait for drafters, which may be busy with other drafts. Does nothing once the
        event loop has begun to shut down.
        """
        if self._sentinel is None or self._sentinel.done() or self._sentinel.cancelling():
            return
        self._begin(_release(self._drafters, request_id))
        self._begin(self._release_and(request_id, then))

    async def finish(self, max_seconds: float) -> None:
        """Wait up to `max_seconds` for the releases in progress; cancel the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_seconds):
                while self.tasks:
                    await asyncio.gather(*self.tasks)
                    # finished tasks are removed in a callback, which gather may not wait for
                    await asyncio.sleep(0)
        if self._sentinel is not None:
            self._sentinel.cancel()

    async def _release_and(self, request_id: str, then: Callable[[], None]) -> None:
        await _release(self._verifier, request_id)
        then()

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


async def _release(worker: Releasing, request_id: str) -> None:
    try:
        await worker.release(request_id)
    except Exception as error:
        logger.warning("a worker could not release request %s: %s", request_id, error)
