"""Which requests have pages of the target's cache for their next step, and who gives some up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diffuspec.core.pages import PAGE_SIZE, num_pages_of
from diffuspec.speculation.values import RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class Room:
    """The result of sharing pages among requests."""

    waiting: frozenset[str] = frozenset()  # without pages for their next step
    max_nodes: Mapping[str, int] = field(default_factory=dict)  # limits of shorter drafts
    preempted: Sequence[str] = ()  # must be released at the verifier before the next verification

    def limited(self, request: RequestView) -> RequestView:
        """Return a request with room only for drafts that have pages."""
        most = self.max_nodes.get(request.request_id)
        return request if most is None else request._replace(room=min(request.room, most))


def share_pages(s: Snapshot, alone: str | None = None) -> Room:
    """Share the pages among the requests, the oldest first; suspects that may not run come last.

    Drafts give way before requests do: if not every request that has pages can go on with the
    widest tree, they get shorter drafts or none. If not all can go on even so, the youngest are
    preempted, those that wait for their readers before others. A request without pages starts once
    there are enough for its whole prefix and the widest trees of all. `alone`: a suspect that runs
    alone.
    """
    if s.num_free_pages == math.inf or s.num_free_pages >= _num_missing(s):
        return Room()
    may_not_run = [
        request.is_suspect if alone is None else request.request_id != alone
        for request in s.requests
    ]
    order = sorted(range(len(s.requests)), key=may_not_run.__getitem__)
    return _Sharing(s, [s.requests[index] for index in order]).room()


def _num_missing(s: Snapshot) -> int:
    """Return the pages that all requests lack for next steps with the widest trees."""
    return sum([_widest(s, request) - request.num_pages for request in s.requests])


def _widest(s: Snapshot, request: RequestView) -> int:
    """Return the pages of a request's next step with the widest tree."""
    return _padded(s, request.num_tokens + request.max_nodes)


def _padded(s: Snapshot, num_rows: int) -> int:
    multiple = s.limits.row_multiple
    return num_pages_of(-(-num_rows // multiple) * multiple)


class _Sharing:
    """The work of `share_pages`. requests: in the order in which they are served."""

    def __init__(self, s: Snapshot, requests: Sequence[RequestView]) -> None:
        self._s, self._requests = s, requests
        self._num_free = s.num_free_pages
        # pages of those that may be preempted, with their places in the order; the last goes first
        holders = [(place, request) for place, request in enumerate(requests) if request.num_pages]
        self._num_started = holders[-1][0] + 1 if holders else 0
        self._victims = [(place, holder.request_id, holder.num_pages) for place, holder in holders]
        self._victims += [(len(requests), name, number) for name, number in s.paused.items()]
        self._preempted: list[str] = []
        self._fitting: list[RequestView] = []

    def room(self) -> Room:
        for place, request in enumerate(self._requests[: self._num_started]):
            is_preempted = request.request_id in self._preempted
            if not is_preempted and self._claim(place, request, request.num_tokens):
                self._fitting.append(request)
        max_nodes = self._share_rest()
        for place, request in enumerate(self._requests[self._num_started :], self._num_started):
            if not self._claim(place, request, request.num_tokens + request.max_nodes):
                break
            self._fitting.append(request)
        if not self._fitting:  # what is known of the pages is out of date: the verifier knows
            self._fitting.append(self._requests[0])
        fitting = {request.request_id for request in self._fitting}
        waiting = {request.request_id for request in self._requests} - fitting
        return Room(frozenset(waiting), max_nodes, self._preempted)

    def _claim(self, place: int, request: RequestView, num_rows: int) -> bool:
        """Give a request the pages that it lacks, if need be those of later ones."""
        missing = _padded(self._s, num_rows) - request.num_pages
        if missing > self._num_free:
            later = sum([number for other, _, number in self._victims if other > place])
            if missing > self._num_free + later:
                return False
        while missing > self._num_free:
            _, name, number = self._victims.pop()
            self._preempted.append(name)
            self._num_free += number
        self._num_free -= missing
        return True

    def _share_rest(self) -> dict[str, int]:
        """Share pages that are left among drafts; return the sizes of trees that get too few."""
        max_nodes = {}
        for request in self._fitting:
            has = _padded(self._s, request.num_tokens)
            extra = min(_widest(self._s, request) - has, self._num_free)
            self._num_free -= extra
            rows = int(has + extra) * PAGE_SIZE
            rows -= rows % self._s.limits.row_multiple
            if rows - request.num_tokens < request.max_nodes:
                max_nodes[request.request_id] = rows - request.num_tokens
        return max_nodes
