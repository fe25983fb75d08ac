"""The calls that idle drafters could make: for requests that wait, and for possible outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from diffuspec.core.types import MAX_PRE_DRAFTS
from diffuspec.scheduler.readiness import Readiness
from diffuspec.speculation.lengths import Ahead, Load, num_ahead, rate_of, size
from diffuspec.speculation.values import (
    DrafterView,
    DraftPlan,
    DraftTicket,
    PossibleOutcome,
    RequestView,
    Snapshot,
)


@dataclass(slots=True)
class Drafts:
    """The calls that idle drafters could make, and the requests that go without drafts."""

    calls: list[DraftPlan]
    open: list[RequestView]  # in the calls; they could also be verified without drafts
    plain: list[RequestView]
    reasons: dict[str, str]  # why the plain ones are not drafted for
    rate: float  # tokens per second

    @property
    def must_begin(self) -> bool:
        """Whether a client chose a draft, or one explores: no plan may leave the calls out."""
        explores = [ticket.is_exploration for call in self.calls for ticket in call.tickets]
        return any(explores) or any([request.fixed_length is not None for request in self.open])


def size_drafts(s: Snapshot, ready: Readiness, requests: Iterable[RequestView]) -> Drafts:
    """Size the drafts of requests that may draft.

    Requests with draft lengths of their own are in neither list while they wait for their drafter.
    """
    by_name: dict[str, list[RequestView]] = {}
    for request in requests:
        by_name.setdefault(request.drafter, []).append(request)
    drafts, rates = Drafts([], [], [], {}, s.rate), []
    tickets: dict[int, list[DraftTicket]] = {}
    reading = Counter[int]()  # prompt tokens to read in each drafter's call
    for name, members in by_name.items():
        load = _load(s, ready, name, members)
        sized, rate = _sized(s, members, load, drafts.reasons)
        rates.append(rate)
        for request in members:
            ticket, drafter = sized.get(request.request_id), ready.homes[request.request_id]
            unread = _num_unread(drafter, request)
            fits = drafter.is_idle and _may_read(s, name, reading[drafter.number], unread)
            if ticket is not None and fits:
                reading[drafter.number] += unread
                drafts.open.append(request)
                tickets.setdefault(drafter.number, []).append(ticket)
            elif ticket is None or request.fixed_length is None:
                drafts.plain.append(request)
                drafts.reasons.setdefault(request.request_id, "its drafter is busy")
    drafts.rate = max(rates, default=s.rate)
    drafters = {drafter.number: drafter for drafter in s.drafters}
    drafts.calls = [
        draft_plan(s, drafters[number], some, reading[number]) for number, some in tickets.items()
    ]
    return drafts


def _sized(
    s: Snapshot, requests: Sequence[RequestView], load: Load, reasons: dict[str, str]
) -> tuple[dict[str, DraftTicket], float]:
    """Return the drafts to make for requests, and the tokens per second with them."""
    given = {
        request.request_id: min(request.fixed_length, request.room)
        for request in requests
        if request.fixed_length is not None
    }
    tickets = {name: DraftTicket(name, length) for name, length in given.items()}
    rate = rate_of(given, requests, load)
    if free := [request for request in requests if request.fixed_length is None]:
        sized = size(free, load, s.guard)
        rate = max(rate, sized.rate)
        for request_id, length in sized.lengths.items():
            explores = request_id == sized.explored
            tickets[request_id] = DraftTicket(request_id, length, is_exploration=explores)
        missing = {request.request_id for request in free} - sized.lengths.keys()
        reasons.update(dict.fromkeys(missing, sized.reason))
    return tickets, rate


def _load(s: Snapshot, ready: Readiness, name: str, requests: Sequence[RequestView]) -> Load:
    mine = [drafter for drafter in s.drafters if drafter.name == name and drafter.is_available]
    running = max(ready.num_running, len(requests))
    unread = {
        request.request_id: _num_unread(ready.homes[request.request_id], request)
        for request in requests
    }
    drafting = running if len(s.costs.drafters) == 1 else len(requests)
    return Load(s.costs, name, running, drafting, max(len(mine), 1), unread)


def _num_unread(drafter: DrafterView, request: RequestView) -> int:
    """Number of prompt tokens that a drafter has to read for a request."""
    return 0 if drafter.number in request.held_by else request.num_tokens


def _may_read(s: Snapshot, name: str, num_others: int, num_unread: int) -> bool:
    """Return whether a call that reads `num_others` other tokens may read these, too."""
    if not (num_others and num_unread):
        return True
    costs, limits = s.costs.drafters[name], s.limits
    if not costs.is_known:
        return num_others + num_unread <= limits.max_prefill_tokens
    return costs.reading_seconds(num_others + num_unread) <= limits.max_reading_seconds


def draft_plan(
    s: Snapshot, drafter: DrafterView, tickets: Sequence[DraftTicket], num_unread: int
) -> DraftPlan:
    """Return a call that begins now, with its expected seconds."""
    costs = s.costs.drafters[drafter.name]
    positions = sum([ticket.length for ticket in tickets])
    seconds = costs.seconds(positions, len(tickets), num_unread)
    rest = (s.verification_ends_at or s.now) - s.now
    seconds, _ = costs.interference.ends(seconds, max(rest, 0.0))
    return DraftPlan(drafter.number, tickets, seconds, num_unread)


# ---- pre-drafts

# chance of an outcome, its request, the length of a draft, the outcome
_Candidate: TypeAlias = tuple[float, RequestView, int, PossibleOutcome]


def with_pre_drafts(
    s: Snapshot, ready: Readiness, begun: Sequence[DraftPlan], seconds_left: float
) -> list[DraftPlan]:
    """Add drafts for the likeliest outcomes of a verification that ends in `seconds_left`."""
    calls = {call.drafter: call for call in begun}
    for drafter in s.drafters:
        if drafter.is_idle and drafter.is_available and drafter.may_pre_draft:
            call = calls.get(drafter.number, DraftPlan(drafter.number, (), 0.0, 0))
            if ahead := _pre_drafts(s, ready, drafter, call, seconds_left):
                tickets = [*call.tickets, *ahead]
                calls[drafter.number] = draft_plan(s, drafter, tickets, call.num_unread)
    return [*calls.values()]


def _pre_drafts(
    s: Snapshot, ready: Readiness, drafter: DrafterView, call: DraftPlan, seconds_left: float
) -> list[DraftTicket]:
    """Return the pre-drafts of one drafter that pay, and those that clients chose."""
    given: list[_Candidate] = []
    priced: list[_Candidate] = []
    mine = [
        request for request in s.requests if request.home == drafter.number and request.outcomes
    ]
    for request in mine:
        if request.is_priced and _stops_drafting(s, ready, request):
            continue
        length = request.fixed_length or (request.ticket.length if request.ticket else 0)
        (priced if request.is_priced else given).extend(
            [(possible.probability, request, length, possible) for possible in request.outcomes]
        )
    priced = sorted(priced, key=itemgetter(0), reverse=True)[:MAX_PRE_DRAFTS]
    outcomes = [Ahead(chance, min(length, possible.room)) for chance, _, length, possible in priced]
    awaited = [ticket.length for ticket in call.tickets]
    costs = s.costs.drafters[drafter.name]
    number = num_ahead(outcomes, seconds_left, costs, awaited, len(mine))
    return [
        DraftTicket(request.request_id, min(length, possible.room), possible.outcome)
        for _, request, length, possible in [*given, *priced[:number]][:MAX_PRE_DRAFTS]
    ]


def _stops_drafting(s: Snapshot, ready: Readiness, request: RequestView) -> bool:
    """Return whether a request is not expected to draft after this step."""
    if request.fixed_length is not None:
        return False
    explored = request.ticket is not None and request.ticket.is_exploration
    return explored or s.guard.wants_plain(max(ready.num_running, 1))
