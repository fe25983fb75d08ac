"""A cache with one value per request, for the most recently used requests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerRequest(Generic[T]):
    """Creates a request's value on first use; drops the least recently used ones."""

    def __init__(self, make: Callable[[], T], max_requests: int) -> None:
        self._make = make
        self._max_requests = max_requests
        self._kept: OrderedDict[str, T] = OrderedDict()

    @property
    def request_ids(self) -> list[str]:
        """The requests that have a value, the most recently used last."""
        return list(self._kept)

    def of(self, request_id: str) -> T:
        """Return a request's value, created now if it has none."""
        if (kept := self._kept.get(request_id)) is None:
            kept = self._kept[request_id] = self._make()
        self._kept.move_to_end(request_id)
        if len(self._kept) > self._max_requests:
            self._kept.popitem(last=False)
        return kept

    def release(self, request_id: str) -> None:
        self._kept.pop(request_id, None)

    def clear(self) -> None:
        self._kept.clear()
