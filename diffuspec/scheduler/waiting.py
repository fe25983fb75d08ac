"""Waiting requests, in the order in which they may start: API keys take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

from diffuspec.scheduler.request import Request


class WaitingRequests:
    """A queue: resumed requests first, then one request of each key in turn.

    The requests of one key keep their order. Requests without a key count as those of one key.
    """

    def __init__(self) -> None:
        self._resumed: deque[Request] = deque()
        # By name of the key, the key with the next turn first; no queue is empty.
        self._by_key: OrderedDict[str, deque[Request]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._resumed) + sum(map(len, self._by_key.values()))

    def __iter__(self) -> Iterator[Request]:
        yield from self._resumed
        for requests in self._by_key.values():
            yield from requests

    def put(self, request: Request) -> None:
        """Add a request at the end of its key's requests, or of the resumed ones."""
        if request.is_resumed:
            self._resumed.append(request)
        else:
            self._by_key.setdefault(request.key_name, deque()).append(request)

    def take(self) -> Request:
        """Remove and return the next request. There must be one."""
        if self._resumed:
            return self._resumed.popleft()
        name, requests = next(iter(self._by_key.items()))
        request = requests.popleft()
        self._by_key.move_to_end(name)
        if not requests:
            del self._by_key[name]
        return request

    def remove(self, request: Request) -> None:
        """Remove a request that does not wait any longer; it may have left already."""
        if request in self._resumed:
            self._resumed.remove(request)
        elif request in (requests := self._by_key.get(request.key_name, deque())):
            requests.remove(request)
            if not requests:
                del self._by_key[request.key_name]

    def has_share_left(self, key_name: str, num_places: int) -> bool:
        """Whether a key has fewer requests here than an equal share beside the other keys."""
        num_keys = len(self._by_key.keys() | {key_name})
        num_waiting = len(self._by_key.get(key_name, ()))
        return num_keys > 1 and num_waiting < num_places // num_keys
