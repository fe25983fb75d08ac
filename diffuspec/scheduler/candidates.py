"""Candidate plans while the verifier is idle, and the scores by which one of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.values import DraftPlan, RequestView, Score, Snapshot


class Batch(NamedTuple):
    """Requests that are verified together."""

    num_rows: float = 0.0
    num_requests: float = 0
    num_prompts: float = 0  # requests whose first token is awaited
    tokens: float = 0.0  # expected committed tokens

    def plus(self, *others: Batch) -> Batch:
        return Batch(*map(sum, zip(self, *others, strict=True)))


def batch_of(
    requests: Iterable[RequestView], max_read: Mapping[str, int], *, with_drafts: bool = True
) -> Batch:
    """Return the reading and the expected tokens of a verification of these requests.

    max_read: tokens to read of long prompts.
    """
    batches = []
    for request in requests:
        if request.is_long:
            number = max_read.get(request.request_id, request.num_unread)
            batches.append(Batch(number, 1, 1, int(number == request.num_unread)))
        else:
            reach = request.reach if with_drafts else ()
            batches.append(Batch(1 + len(reach), 1, 0, 1 + sum(reach)))
    return Batch().plus(*batches)


def batch_after(requests: Mapping[str, RequestView], call: DraftPlan) -> Batch:
    """Return the verification of the requests of a draft call, once it has ended."""
    tickets = [ticket for ticket in call.tickets if ticket.is_awaited]
    return Batch().plus(*[_after(requests[ticket.request_id], ticket.length) for ticket in tickets])


def coming(s: Snapshot) -> tuple[Batch, float]:
    """Return the requests whose drafts are being made, and the seconds until all are ready.

    A call that has taken twice as long as expected may hang, and is not waited for.
    """
    batch, left = Batch(), 0.0
    requests = {request.request_id: request for request in s.requests}
    for call in [drafter.call for drafter in s.drafters]:
        if call is not None and call.awaited and not call.is_overdue(s.now):
            awaited = [ticket for ticket in call.awaited if ticket.request_id in requests]
            batches = [_after(requests[ticket.request_id], ticket.length) for ticket in awaited]
            batch = batch.plus(*batches)
            left = max(left, abs(call.ends_at - s.now))  # a late call takes as long again
    return batch, left


def _after(request: RequestView, length: int) -> Batch:
    """Return the verification of a request once it has a draft of this length."""
    accepted, nodes = request.prospects.verified_at(length)
    return Batch(1 + nodes, 1, 0, 1 + accepted)


class Scorer:
    """Predicts the result of a candidate: see Score."""

    def __init__(self, s: Snapshot, rate: float) -> None:
        """`rate`: price of a second in tokens."""
        self._costs, self._rate = s.costs, rate
        self._first_token_price = s.limits.first_token_price
        # of the drafter that slows the verifier down the most
        each = [costs.interference for costs in s.costs.drafters.values()]
        assumed = Interference.assumed(0.0)
        self._interference = max(each, key=lambda interference: interference.value, default=assumed)

    def score(self, name: str, first: Batch, drafting_seconds: float, then: Batch) -> Score:
        """Score a plan that verifies `first` now, beside drafts that are verified with `then`."""
        costs, number = self._costs, first.num_requests
        seconds = costs.verify_seconds(first.num_rows, number) if number else 0.0
        first_ends, drafts_end = self._interference.ends(seconds, drafting_seconds)
        tokens, ends_at = first.tokens + then.tokens, max(first_ends, drafts_end)
        if then.num_requests:
            gain, last = self._last(number, then)
            tokens, ends_at = tokens + gain, ends_at + last
        delay = first.num_prompts * first_ends + then.num_prompts * ends_at
        price = ends_at + self._first_token_price * delay
        return Score(name, tokens, ends_at, delay, tokens - self._rate * price)

    def _last(self, number: float, then: Batch) -> tuple[float, float]:
        """Return the gain and the seconds of the second verification.

        The `number` requests that were verified first may go on with the others, without drafts.
        """
        alone = self._costs.verify_seconds(then.num_rows, then.num_requests)
        rows, requests = then.num_rows + number, then.num_requests + number
        joint = self._costs.verify_seconds(rows, requests)
        return (number, joint) if number > self._rate * (joint - alone) else (0.0, alone)
