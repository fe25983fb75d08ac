"""A bounded number of places for tasks; waiting clients take turns."""

from __future__ import annotations

import asyncio
from collections import Counter

from diffuspec.core.errors import OverloadedError, ShuttingDownError
from diffuspec.core.turns import Turns


class Places:
    """Lets `number` tasks run at a time and a bounded number wait. Belongs to one event loop."""

    def __init__(
        self, number: int, max_waiting: int, name: str, max_each: int | None = None
    ) -> None:
        """`max_waiting`: beyond it, only clients with less than an equal share may wait.

        name: end of the error when too many wait, such as "prompts wait to be tokenised", after
        their number. max_each: maximum number of places of one client; None: all places.
        """
        self._num_free = number
        self._max_waiting = max_waiting
        self._name = name
        self._max_each = number if max_each is None else max_each
        self._taken: Counter[str] = Counter()
        self._waiting: Turns[asyncio.Future[None]] = Turns()

    async def take(self, client: str) -> None:
        """Wait for a place, which belongs to the caller until `free`. Raises OverloadedError."""
        if self._num_free and self._may_take(client):
            self._give(client)
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
                self.free(client)  # it had been given a place
            raise

    def free(self, client: str) -> None:
        """Give back a place of a client; waiting clients that may have it get it."""
        self._num_free += 1
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]
        while self._num_free and (waiting := self._waiting.take_if(self._may_take)) is not None:
            next_client, turn = waiting
            if not turn.done():  # else its task was cancelled in this turn of the loop
                self._give(next_client)
                turn.set_result(None)

    def refuse_waiting(self) -> None:
        """End all waiting with ShuttingDownError."""
        while self._waiting:
            turn = self._waiting.take()
            if not turn.done():
                turn.set_exception(ShuttingDownError("the service is shutting down"))

    def _may_take(self, client: str) -> bool:
        return self._taken[client] < self._max_each

    def _give(self, client: str) -> None:
        self._num_free -= 1
        self._taken[client] += 1
