"""Outputs: a queue of a request's outputs that its reader has not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque

from diffuspec.core.errors import DiffuspecError
from diffuspec.core.types import RequestOutput


class Outputs:
    """First in, first out, for a single reader. An error comes last."""

    def __init__(self) -> None:
        self._unread: deque[RequestOutput | DiffuspecError] = deque()
        self._arrival: asyncio.Future[None] | None = None  # done once the reader may continue

    @property
    def num_unread(self) -> int:
        return len(self._unread)

    def put(self, output: RequestOutput | DiffuspecError) -> None:
        self._unread.append(output)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self) -> RequestOutput | DiffuspecError:
        """Wait for the next output or error."""
        if not self._unread:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        return self._unread.popleft()
