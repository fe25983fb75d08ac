"""Queues in which clients take turns, so that a client with many items delays the others little."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue: one item of each client in turn. The items of one client keep their order."""

    def __init__(self) -> None:
        # The client with the next turn first; no queue is empty.
        self._by_client: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def __iter__(self) -> Iterator[T]:
        for items in self._by_client.values():
            yield from items

    def put(self, client: str, item: T) -> None:
        """Add an item behind the other items of its client."""
        self._by_client.setdefault(client, deque()).append(item)

    def take(self) -> T:
        """Remove and return the next item. There must be one."""
        return self._take_of(next(iter(self._by_client)))

    def take_if(self, is_allowed: Callable[[str], bool]) -> tuple[str, T] | None:
        """Remove the next item of an allowed client; return it after the client, or None.

        Other clients keep their turns.
        """
        client = next(filter(is_allowed, self._by_client), None)
        return None if client is None else (client, self._take_of(client))

    def _take_of(self, client: str) -> T:
        items = self._by_client[client]
        item = items.popleft()
        self._by_client.move_to_end(client)
        if not items:
            del self._by_client[client]
        return item

    def remove(self, client: str, item: T) -> None:
        """Remove an item that does not wait any longer; it may have left already."""
        if item in (items := self._by_client.get(client, deque())):
            items.remove(item)
            if not items:
                del self._by_client[client]

    def has_share_left(self, client: str, num_places: int) -> bool:
        """Whether a client has fewer items here than an equal share beside the other clients."""
        num_clients = len(self._by_client.keys() | {client})
        num_items = len(self._by_client.get(client, ()))
        return num_clients > 1 and num_items < num_places // num_clients
