"""A few places, which clients take by turns."""

from __future__ import annotations

import asyncio

from diffuspec.core.errors import OverloadedError, ShuttingDownError
from diffuspec.core.turns import Turns


class Places:
    """Places for a number of tasks at a time; a bounded number waits. Belongs to one event loop."""

    def __init__(self, number: int, max_waiting: int, name: str) -> None:
        """`max_waiting`: beyond it, only clients with less than an equal share may wait.

        name: what waits, for errors, such as "prompts wait to be tokenised".
        """
        self._num_free = number
        self._max_waiting = max_waiting
        self._name = name
        self._waiting: Turns[asyncio.Future[None]] = Turns()

    async def take(self, client: str) -> None:
        """Wait for a place, which belongs to the caller until `free`. Raises OverloadedError."""
        if self._num_free:
            self._num_free -= 1
            return
        is_full = len(self._waiting) >= self._max_waiting
        if is_full and not self._waiting.has_share_left(client, self._max_waiting):
            raise OverloadedError(f"{len(self._waiting)} {self._name}")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.put(client, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(client, turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.free()  # it had been given a place
            raise

    def free(self) -> None:
        """Give a place back, or to the next client."""
        while self._waiting:
            turn = self._waiting.take()
            if not turn.done():  # its task was cancelled in this turn of the loop
                turn.set_result(None)
                return
        self._num_free += 1

    def refuse_waiting(self) -> None:
        """End all waiting with ShuttingDownError."""
        while self._waiting:
            turn = self._waiting.take()
            if not turn.done():
                turn.set_exception(ShuttingDownError("the service is shutting down"))
