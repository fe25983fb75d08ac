"""Which requests may be in calls now, and which drafter drafts for each of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffuspec.speculation.values import DrafterView, RequestView, Snapshot


@dataclass(frozen=True, slots=True)
class Readiness:
    """The requests that may be in calls now."""

    requests: Sequence[RequestView]  # in no call on which their step depends, the oldest first
    alone: str | None  # a suspect that runs alone
    num_running: int  # decoding requests, those in calls included
    homes: Mapping[str, DrafterView]  # the drafters of requests that have one
    placed: Mapping[str, int]  # requests that change to another drafter


def readiness_of(s: Snapshot) -> Readiness:
    """Choose the requests, and place those that have no drafter with one."""
    requests, alone = choose_ready(s)
    drafters = {one.number: one for one in s.drafters}
    placed = _placed(s, requests)
    homes = {one.request_id: one.home for one in s.requests if one.home is not None} | placed
    known = {request_id: drafters[number] for request_id, number in homes.items()}
    return Readiness(requests, alone, num_running_of(s, requests), known, placed)


def num_running_of(s: Snapshot, chosen: Iterable[RequestView]) -> int:
    """Number of decoding requests that are in calls, or chosen to be."""
    busy = [one for one in s.requests if one.state != "ready"]
    return sum([not one.is_long for one in [*busy, *chosen]])


def choose_ready(s: Snapshot) -> tuple[list[RequestView], str | None]:
    """Return the ready requests that may be in calls now, and a suspect that runs alone.

    A request at which workers were lost repeatedly waits until no other request can go on. Then the
    first of them runs alone until it ends, or waits for its reader; the next one follows.
    """
    ready = [one for one in s.requests if one.state == "ready"]
    suspects = [one for one in s.requests if one.is_suspect]
    if not suspects:
        return ready, None
    if any([one.request_id == s.alone for one in suspects]):
        return [one for one in ready if one.request_id == s.alone], s.alone
    are_others = len(suspects) < len(s.requests)
    are_busy = len(ready) < len(s.requests) or bool(s.isolated)
    if are_others or are_busy:
        return [one for one in ready if not one.is_suspect], None
    return [suspects[0]], suspects[0].request_id


def _placed(s: Snapshot, ready: Iterable[RequestView]) -> dict[str, int]:
    """Return a drafter for each request that has none: one that holds its prefix, or the idlest."""
    homeless = [one for one in ready if one.home is None and one.may_draft]
    if not homeless:
        return {}
    numbers = Counter([one.home for one in s.requests if one.home is not None])
    placed = {}
    for request in homeless:
        fit = [one for one in s.drafters if one.name == request.drafter and one.is_available]
        if fit:
            best = min(fit, key=lambda one: _burden(one, request, numbers[one.number]))
            placed[request.request_id] = best.number
            numbers[best.number] += 1
    return placed


def _burden(drafter: DrafterView, request: RequestView, num_placed: int) -> tuple[bool, int, int]:
    return drafter.number not in request.held_by, num_placed, drafter.num_held
