"""Waiting requests, in the order in which they may start: API keys take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from diffuspec.core.turns import Turns
from diffuspec.scheduler.request import Request


class WaitingRequests:
    """A queue: resumed requests first, then one request of each key in turn.

    The requests of one key keep their order. Requests without a key count as those of one key.
    """

    def __init__(self) -> None:
        self._resumed: deque[Request] = deque()
        self._turns: Turns[Request] = Turns()  # clients: names of API keys

    def __len__(self) -> int:
        return len(self._resumed) + len(self._turns)

    def __iter__(self) -> Iterator[Request]:
        yield from self._resumed
        yield from self._turns

    def put(self, request: Request) -> None:
        """Add a request at the end of its key's requests, or of the resumed ones."""
        if request.is_resumed:
            self._resumed.append(request)
        else:
            self._turns.put(request.key_name, request)

    def take(self) -> Request:
        """Remove and return the next request. There must be one."""
        return self._resumed.popleft() if self._resumed else self._turns.take()

    def remove(self, request: Request) -> None:
        """Remove a request that does not wait any longer; it may have left already."""
        if request in self._resumed:
            self._resumed.remove(request)
        else:
            self._turns.remove(request.key_name, request)

    def has_share_left(self, key_name: str, num_places: int) -> bool:
        """Whether a key has fewer requests here than an equal share beside the other keys."""
        return self._turns.has_share_left(key_name, num_places)
