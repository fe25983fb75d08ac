"""The draft loop: drafts for whoever needs one, then ahead of the verdicts that are awaited.

A drafter that fails, is late or answers nonsense costs speed, never a request: its sequences go on
without drafts. After a pause it is asked for one draft beside them, and when it answers, all do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from diffuspec.breaker import Breaker
from diffuspec.config import CoordinatorConfig
from diffuspec.costs import StepCosts
from diffuspec.draft_calls import DraftBatch, DraftCalls
from diffuspec.errors import InvalidRequestError
from diffuspec.interfaces import Drafter, TargetInfo
from diffuspec.predrafts import DraftAhead, Foresight, Hypothesis, PreDrafts
from diffuspec.ticket import Inbox, Ticket
from diffuspec.trace import Tracer
from diffuspec.types import EMPTY_DRAFT, Draft, DraftRequest, Verdict

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Probe:
    """A draft that nobody waits for: a copy of what a request would have asked for."""

    ticket: Ticket
    request: DraftRequest


class DraftLoop:
    """Takes tickets and passes them on, drafted or not: every one, exactly once."""

    def __init__(
        self,
        drafter: Drafter | None,
        target: TargetInfo,
        config: CoordinatorConfig,
        costs: StepCosts,
        pass_on: Callable[[Ticket], None],
        fail: Callable[[Collection[Ticket], Exception], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._calls: DraftCalls | None = None
        if drafter is not None:
            self._calls = DraftCalls(drafter, config.max_draft_seconds, tracer)
        self._target = target
        self._max_unread = config.prefill_chunk_tokens
        self._costs = costs
        self._pass_on = pass_on
        self._fail = fail
        self._breaker = Breaker()
        self._ahead_breaker = Breaker()  # large batches may fail where small ones do not
        self._probe: _Probe | None = None  # the next one
        self._predrafts = PreDrafts(costs)
        self._is_wanted = asyncio.Event()  # a draft, or one ahead
        self._inbox = Inbox(self._is_wanted)

    def busy_seconds(self, now: float) -> float:
        """Return how long the drafter has been at work."""
        return self._calls.busy.seconds(now) if self._calls is not None else 0.0

    # ---- what goes in

    def send(self, ticket: Ticket, foresight: Foresight | None = None) -> None:
        """Get a draft for a ticket's next step, the one made ahead if there is.

        None while the target has a long prompt to read: neither waits for the other to read it.
        """
        if foresight is not None and foresight.draft is not None:
            self._take_ahead(ticket, foresight.draft)
        elif foresight is not None and foresight.is_awaited:
            ticket.stage = "drafting"
        elif (
            self._calls is None
            or ticket.sequence.num_unread > self._max_unread
            or ticket.sequence.plan_draft() == 0
        ):
            self._go_without([ticket], None)
        elif self._breaker.is_closed:
            ticket.stage = "needs_draft"
            self._inbox.put(ticket)
        else:
            if self._breaker.take_probe():
                self._probe = _Probe(ticket, ticket.sequence.draft_request())
                self._is_wanted.set()
            self._go_without([ticket], "drafter_unavailable")

    def look_ahead(self, ticket: Ticket, ends_at: float) -> None:
        """A ticket's draft goes to the verifier, which will have a verdict at about that time."""
        if self._predrafts.begin(ticket, ends_at):
            self._is_wanted.set()

    def look_back(self, ticket: Ticket, verdict: Verdict) -> Foresight | None:
        """The verdict has come and is not yet committed; None: it was not looked ahead to."""
        return self._predrafts.resolve(ticket, verdict)

    def resume(self) -> None:
        """The drafter was seen to work: it is asked again without waiting for a probe."""
        self._breaker.succeeded()
        self._ahead_breaker.succeeded()

    def drop(self, ticket: Ticket) -> None:
        """A ticket is over: no draft is wanted any more."""
        self._inbox.remove(ticket)
        self._predrafts.forget(ticket)
        if self._calls is not None:
            self._calls.abandon(ticket)

    # ---- the loop

    async def run(self, lane: int) -> None:
        """Draft for ever. Lanes, numbered from 1, draft side by side."""
        while True:
            if self._probe is not None:
                probe, self._probe = self._probe, None
                await self._ask_again(probe, lane)
            tickets = self._inbox.take_now()
            ahead = self._take_ahead_of(tickets)
            if not tickets and not ahead:
                self._is_wanted.clear()
                await self._is_wanted.wait()
                continue
            try:
                await self._draft(tickets, ahead, lane)
            except Exception as error:
                self._fail([*tickets, *self._lose(ahead)], error)
            await asyncio.sleep(0)  # workers may not: whoever listens gets a turn after each step

    def _take_ahead_of(self, urgent: list[Ticket]) -> list[Hypothesis]:
        """Return what to draft ahead of verdicts, beside the drafts that are waited for."""
        if not self._breaker.is_closed:
            return []
        if not self._ahead_breaker.is_closed and not self._ahead_breaker.take_probe():
            return []
        try:
            ahead = self._predrafts.take(urgent, time.monotonic())
        except Exception:
            logger.exception("nothing is drafted ahead for a while")
            self._ahead_breaker.failed()
            return []
        if not ahead:
            self._ahead_breaker.give_up_probe()
        return ahead

    async def _draft(self, tickets: list[Ticket], ahead: list[Hypothesis], lane: int) -> None:
        """Draft for all of these in one batch; without a draft they go on all the same."""
        assert self._calls is not None
        for ticket in tickets:
            ticket.stage = "drafting"
        requests = [ticket.sequence.draft_request() for ticket in tickets]
        requests += [hypothesis.request for hypothesis in ahead]
        listening = [*tickets, *(hypothesis.foresight.ticket for hypothesis in ahead)]
        try:
            batch = await self._calls.ask(requests, listening, len(ahead), lane)
        except Exception as error:
            self._failed(tickets, ahead, error)
            return
        if batch is None:
            self._ahead_breaker.give_up_probe()
            self._lose(ahead)
            return
        self._breaker.succeeded()
        if ahead:
            self._ahead_breaker.succeeded()
        self._learn(tickets, ahead, batch)
        self._hand_out(tickets, ahead, batch)

    async def _ask_again(self, probe: _Probe, lane: int) -> None:
        """Find out whether the drafter is well again; the draft is thrown away."""
        assert self._calls is not None
        try:
            is_well = await self._calls.probe(probe.request, probe.ticket, lane)
        except Exception as error:
            logger.warning("the drafter is not well yet: %s", error)
            self._breaker.failed()
            return
        if is_well:
            self._breaker.succeeded()
        else:
            self._breaker.give_up_probe()

    def _failed(self, tickets: list[Ticket], ahead: list[Hypothesis], error: Exception) -> None:
        """Nobody waits for a drafter that failed, or asks it for a while."""
        logger.warning("drafting failed, decoding goes on without drafts: %s", error)
        if ahead:
            self._ahead_breaker.failed()
        if tickets:
            self._breaker.failed()
        self._go_without([*tickets, *self._lose(ahead)], "drafter_error")
        if not self._breaker.is_closed:
            self._go_without(self._inbox.take_now(), "drafter_unavailable")

    def _learn(self, tickets: list[Ticket], ahead: list[Hypothesis], batch: DraftBatch) -> None:
        """Learn from decoding steps only: a request's first drafts read its prompt."""
        if not all(ticket.was_drafted for ticket in tickets):
            return
        num_positions = sum(ticket.sequence.num_draft_tokens for ticket in tickets)
        if ahead:
            num_positions += sum(hypothesis.num_draft_tokens for hypothesis in ahead)
            self._costs.observe_draft_ahead(num_positions, batch.seconds)
        else:
            self._costs.observe_draft(num_positions, len(tickets), batch.seconds)

    def _hand_out(self, tickets: list[Ticket], ahead: list[Hypothesis], batch: DraftBatch) -> None:
        for ticket, draft in zip(tickets, batch.drafts[: len(tickets)], strict=True):
            if not ticket.is_over:
                self._take(ticket, draft, batch)
        for hypothesis, draft in zip(ahead, batch.drafts[len(tickets) :], strict=True):
            made = DraftAhead(draft, hypothesis.num_draft_tokens)
            ticket = hypothesis.foresight.ticket
            if self._predrafts.arrive(hypothesis, made) and not ticket.is_over:
                self._take_ahead(ticket, made)

    def _lose(self, ahead: Iterable[Hypothesis]) -> list[Ticket]:
        """These drafts ahead will not come; return the tickets that wait for one of them."""
        return [h.foresight.ticket for h in ahead if self._predrafts.lose(h)]

    # ---- what goes out

    def _take(self, ticket: Ticket, draft: Draft, batch: DraftBatch) -> None:
        ticket.times.drafting_seconds = batch.seconds
        if not draft.tree.num_nodes:
            self._go_without([ticket], "empty_draft")
            return
        try:
            ticket.sequence.take_draft(draft, self._target)
        except InvalidRequestError as error:
            self._drop_draft(ticket, error)
            return
        self._drafted(ticket)

    def _take_ahead(self, ticket: Ticket, made: DraftAhead) -> None:
        try:
            ticket.sequence.take_draft_ahead(made.draft, made.num_draft_tokens, self._target)
        except InvalidRequestError as error:
            self._drop_draft(ticket, error)
            return
        ticket.times.drafting_seconds = time.monotonic() - ticket.times.started_at
        self._drafted(ticket)

    def _drafted(self, ticket: Ticket) -> None:
        sequence, times = ticket.sequence, ticket.times
        sequence.fallback = None
        if sequence.num_outcomes != 0 and ticket.was_drafted:
            waited = time.monotonic() - times.started_at
            self._costs.observe_wait(sequence.num_draft_tokens, waited)
        ticket.was_drafted = True
        self._pass_on(ticket)

    def _drop_draft(self, ticket: Ticket, error: InvalidRequestError) -> None:
        logger.warning("a draft for %s is dropped: %s", ticket.sequence.request_id, error)
        self._go_without([ticket], "invalid_draft")

    def _go_without(self, tickets: Iterable[Ticket], reason: str | None) -> None:
        for ticket in tickets:
            if not ticket.is_over:
                ticket.sequence.draft, ticket.sequence.num_draft_tokens = EMPTY_DRAFT, 0
                ticket.sequence.fallback = reason
                self._pass_on(ticket)
