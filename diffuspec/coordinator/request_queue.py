"""RequestQueue: requests waiting for a stage."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

from diffuspec.coordinator.request import Request


class RequestQueue:
    """First in, first out. Several queues may share the event that they set."""

    def __init__(self, filled: asyncio.Event | None = None) -> None:
        self._requests: deque[Request] = deque()
        self._filled = filled or asyncio.Event()

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def put(self, request: Request) -> None:
        self._requests.append(request)
        self._filled.set()

    def remove(self, request: Request) -> None:
        """Take a request out, if it is here."""
        if request in self._requests:
            self._requests.remove(request)

    def take_now(self) -> list[Request]:
        """Return all of them, perhaps none."""
        taken = list(self._requests)
        self._requests.clear()
        return taken

    async def wait(self) -> None:
        """Wait until there is at least one."""
        while not self._requests:
            self._filled.clear()
            await self._filled.wait()

    async def grows(self, max_seconds: float) -> bool:
        """Wait up to max_seconds for one more; return whether it came."""
        self._filled.clear()
        try:
            async with asyncio.timeout(max_seconds):
                await self._filled.wait()
        except TimeoutError:
            return False
        return True
