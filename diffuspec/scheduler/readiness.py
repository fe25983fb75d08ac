"""Which requests may be in calls now, and which drafter drafts for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffuspec.scheduler.room import Room, share_pages
from diffuspec.speculation.values import DrafterView, RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class Readiness:
    """The requests that may be in calls now."""

    requests: Sequence[RequestView]  # in no call on which their step depends, the oldest first
    alone: str | None  # a suspect that runs alone
    num_running: int  # decoding requests, those in calls included
    homes: Mapping[str, DrafterView]  # the drafters of requests that have one
    placed: Mapping[str, int]  # requests that change to another drafter
    room: Room


def readiness_of(s: Snapshot) -> Readiness:
    """Choose the requests, and place those that have no drafter with one."""
    requests, alone, room = choose_ready(s)
    drafters = {drafter.number: drafter for drafter in s.drafters}
    placed = _placed(s, requests)
    homes = {
        request.request_id: request.home for request in s.requests if request.home is not None
    } | placed
    known = {request_id: drafters[number] for request_id, number in homes.items()}
    return Readiness(requests, alone, num_running_of(s, requests), known, placed, room)


def num_running_of(s: Snapshot, chosen: Iterable[RequestView]) -> int:
    """Number of decoding requests that are in calls, or chosen to be."""
    busy = [request for request in s.requests if request.state != "ready"]
    return sum([not request.is_long for request in [*busy, *chosen]])


def choose_ready(s: Snapshot) -> tuple[list[RequestView], str | None, Room]:
    """Return the ready requests that may be in calls now, and a suspect that runs alone."""
    ready, alone = _without_suspects(s)
    room = share_pages(s, alone)
    fitting = [room.limited(request) for request in ready if request.request_id not in room.waiting]
    return fitting, alone, room


def _without_suspects(s: Snapshot) -> tuple[list[RequestView], str | None]:
    """Return the ready requests that may run beside others, or a suspect that runs alone.

    A request at which workers were lost repeatedly waits until no other request can go on. Then the
    first of them runs alone until it ends, or waits for its reader; the next one follows.
    """
    ready = [request for request in s.requests if request.state == "ready"]
    suspects = [request for request in s.requests if request.is_suspect]
    if not suspects:
        return ready, None
    if any([request.request_id == s.alone for request in suspects]):
        return [request for request in ready if request.request_id == s.alone], s.alone
    are_others = len(suspects) < len(s.requests)
    are_busy = len(ready) < len(s.requests) or bool(s.isolated)
    if are_others or are_busy:
        return [request for request in ready if not request.is_suspect], None
    return [suspects[0]], suspects[0].request_id


def _placed(s: Snapshot, ready: Iterable[RequestView]) -> dict[str, int]:
    """Return a drafter for each request that has none: one that holds its prefix, or the idlest."""
    homeless = [request for request in ready if request.home is None and request.may_draft]
    if not homeless:
        return {}
    numbers = Counter([request.home for request in s.requests if request.home is not None])
    placed = {}
    for request in homeless:
        fit = [
            drafter
            for drafter in s.drafters
            if drafter.name == request.drafter and drafter.is_available
        ]
        if fit:
            best = min(fit, key=lambda drafter: _burden(drafter, request, numbers[drafter.number]))
            placed[request.request_id] = best.number
            numbers[best.number] += 1
    return placed


def _burden(drafter: DrafterView, request: RequestView, num_placed: int) -> tuple[bool, int, int]:
    return drafter.number not in request.held_by, num_placed, drafter.num_held
