"""The draft loop: drafts for whoever needs one, then ahead of the verdicts that are awaited.

Every drafter has a lane of its own, and waits for no other. One that fails, is late or answers
nonsense costs speed, never a request: its sequences go on without drafts, or with another's. After
a pause it is asked for one draft beside them, and when it answers, it drafts again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.draft_calls import DraftBatch, DraftCalls
from diffuspec.coordinator.drafter_pool import DrafterPool, Member
from diffuspec.coordinator.pre_drafts import DraftAhead, Foresight, Hypothesis, PreDrafts
from diffuspec.coordinator.ticket import Ticket
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import EMPTY_DRAFT, Draft, Verdict
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)


class DraftLoop:
    """Takes tickets and passes them on, drafted or not: every one, exactly once."""

    def __init__(
        self,
        drafters: DrafterPool | None,
        target: TargetInfo,
        config: CoordinatorConfig,
        costs: StepCosts,
        pass_on: Callable[[Ticket], None],
        fail: Callable[[Collection[Ticket], Exception], None],
        tracer: Tracer | None = None,
    ) -> None:
        """None for drafters: nobody expects a draft."""
        self._is_plain = drafters is None
        self._pool = drafters or DrafterPool()
        self._calls = DraftCalls(config.max_draft_seconds, tracer)
        self._target = target
        self._max_unread = config.prefill_chunk_tokens
        self._costs = costs
        self._pass_on = pass_on
        self._fail = fail
        self._predrafts = PreDrafts(costs)

    def busy_seconds(self, now: float) -> float:
        """Return how long drafters have been at work."""
        return self._calls.busy.seconds(now)

    def open(self, start: Callable[[Callable[[], Awaitable[None]]], None]) -> None:
        """Have a lane started for every drafter, those that come later too."""
        self._pool.attend(lambda member: start(functools.partial(self._run, member)))

    def close(self) -> None:
        """Start none any more."""
        self._pool.attend(lambda member: None)

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
            self._is_plain
            or ticket.sequence.num_unread > self._max_unread
            or ticket.sequence.plan_draft() == 0
        ):
            self._go_without([ticket], None)
        else:
            self._place(ticket)

    def look_ahead(self, ticket: Ticket, ends_at: float) -> None:
        """A ticket's draft goes to the verifier, which will have a verdict at about that time."""
        home = self._pool.home(ticket)
        if self._predrafts.begin(ticket, ends_at) and home is not None:
            home.is_wanted.set()

    def look_back(self, ticket: Ticket, verdict: Verdict) -> Foresight | None:
        """The verdict has come and is not yet committed; None: it was not looked ahead to."""
        return self._predrafts.resolve(ticket, verdict)

    def drop(self, ticket: Ticket) -> None:
        """A ticket is over: no draft is wanted any more."""
        home = self._pool.home(ticket)
        if home is not None:
            home.inbox.remove(ticket)
        self._predrafts.forget(ticket)
        self._calls.abandon(ticket)

    # ---- the loop

    async def _run(self, member: Member) -> None:
        """Draft with one drafter until it leaves."""
        while not member.is_gone:
            await self._probe(member)
            tickets = member.inbox.take_now()
            ahead = self._take_ahead_of(member, tickets)
            if not tickets and not ahead:
                member.is_wanted.clear()
                await member.is_wanted.wait()
                continue
            try:
                await self._draft(member, tickets, ahead)
            except Exception as error:
                self._fail([*tickets, *self._lose(ahead)], error)
            await asyncio.sleep(0)  # workers may not: whoever listens gets a turn after each step
        self._move(member)

    def _take_ahead_of(self, member: Member, urgent: list[Ticket]) -> list[Hypothesis]:
        """Return what to draft ahead of verdicts, beside the drafts that are waited for."""
        breaker = member.ahead_breaker
        if not member.breaker.is_closed or not (breaker.is_closed or breaker.take_probe()):
            return []
        try:
            ahead = self._predrafts.take(
                urgent, time.monotonic(), lambda ticket: self._pool.home(ticket) is member
            )
        except Exception:
            logger.exception("nothing is drafted ahead for a while")
            breaker.failed()
            return []
        if not ahead:
            breaker.give_up_probe()
        return ahead

    async def _draft(self, member: Member, tickets: list[Ticket], ahead: list[Hypothesis]) -> None:
        """Draft for all of these in one batch; without a draft they go on all the same."""
        for ticket in tickets:
            ticket.stage = "drafting"
        requests = [ticket.sequence.draft_request() for ticket in tickets]
        requests += [hypothesis.request for hypothesis in ahead]
        listening = [*tickets, *(hypothesis.foresight.ticket for hypothesis in ahead)]
        member.drafting = tickets
        try:
            batch = await self._calls.ask(member, requests, listening, len(ahead))
        except Exception as error:
            self._failed(member, tickets, ahead, error)
            return
        finally:
            member.drafting = []
            member.ahead_breaker.give_up_probe()
        if batch is None:
            self._lose(ahead)
            return
        member.breaker.succeeded()
        if ahead:
            member.ahead_breaker.succeeded()
        self._learn(tickets, ahead, batch)
        self._hand_out(tickets, ahead, batch)

    async def _probe(self, member: Member) -> None:
        """Find out whether a drafter is well again; the draft is thrown away."""
        probe, member.probe = member.probe, None
        if probe is None:
            return
        try:
            if await self._calls.probe(member, probe):
                member.breaker.succeeded()
        except Exception as error:
            logger.warning("%s is not well yet: %s", member.name, error)
            member.breaker.failed()
        finally:
            member.breaker.give_up_probe()

    def _failed(
        self, member: Member, tickets: list[Ticket], ahead: list[Hypothesis], error: Exception
    ) -> None:
        """Nobody waits for a drafter that failed, or asks it for a while."""
        logger.warning("%s failed, decoding goes on without its drafts: %s", member.name, error)
        waiting = [*tickets, *self._lose(ahead)]
        if ahead:
            member.ahead_breaker.failed()
        if waiting or any(member.inbox):
            member.breaker.failed()
        self._go_without(waiting, "drafter_error")
        if not member.breaker.is_closed:
            self._move(member)

    def _move(self, member: Member) -> None:
        """What waits for a drafter waits for another, or goes on without."""
        for ticket in member.inbox.take_now():
            self._place(ticket)

    def _place(self, ticket: Ticket) -> None:
        member = self._pool.place(ticket)
        if member is None:
            self._pool.probe(ticket)
            self._go_without([ticket], "drafter_unavailable")
        else:
            ticket.stage = "needs_draft"
            member.inbox.put(ticket)

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
        self._pool.probe(ticket)
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
