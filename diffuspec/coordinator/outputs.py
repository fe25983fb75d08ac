"""Outputs: what a request has said and its reader has not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque

from diffuspec.core.errors import DiffuspecError
from diffuspec.core.types import RequestOutput


class Outputs:
    """First in, first out, for one reader. An error is the last."""

    def __init__(self) -> None:
        self._unread: deque[RequestOutput | DiffuspecError] = deque()
        self._arrival: asyncio.Future[None] | None = None  # that the reader waits for, or did

    @property
    def num_unread(self) -> int:
        return len(self._unread)

    def put(self, output: RequestOutput | DiffuspecError) -> None:
        self._unread.append(output)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self) -> RequestOutput | DiffuspecError:
        """Wait for the next one."""
        if not self._unread:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._unread.popleft()
