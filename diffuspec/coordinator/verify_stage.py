"""The verify loop: verifies whatever is ready, in one batch.

Where much of a prefix is unread, the target reads it in pieces first, so that no step takes long. A
verifier that is gone for the moment holds its requests up: they are verified again after a pause,
with their prefixes read anew. One that fails ends the requests that it fails at alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.ticket import Inbox, Ticket
from diffuspec.coordinator.verify_calls import VerdictBatch, VerifyCalls
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.core.interfaces import Verifier
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)


class VerifyLoop:
    """Takes tickets that are ready and passes them on with a verdict."""

    def __init__(
        self,
        verifier: Verifier,
        config: CoordinatorConfig,
        costs: StepCosts,
        look_ahead: Callable[[Ticket, float], None],
        pass_on: Callable[[Ticket, Verdict | None, VerdictBatch], None],
        fail: Callable[[Collection[Ticket], Exception], None],
        draft_busy_seconds: Callable[[float], float] = lambda now: 0.0,
        tracer: Tracer | None = None,
    ) -> None:
        """look_ahead is told of each draft that is verified and when its verdict may come.

        pass_on is given no verdict for a ticket that was over before its prefix was read.
        draft_busy_seconds tells how long the drafter has been at work.
        """
        self._draft_busy_seconds = draft_busy_seconds
        self._calls = VerifyCalls(verifier, tracer)
        self._config = config
        self._costs = costs
        self._look_ahead = look_ahead
        self._pass_on = pass_on
        self._fail = fail
        self._inbox = Inbox()
        self._num_outages = 0

    def busy_seconds(self, now: float) -> float:
        """Return how long the verifier has been at work."""
        return self._calls.busy.seconds(now)

    def send(self, ticket: Ticket) -> None:
        """Verify a ticket's draft."""
        ticket.times.ready_at = time.monotonic()
        self._put(ticket)

    def drop(self, ticket: Ticket) -> None:
        """A ticket that is ready is over. One that is being verified comes out all the same."""
        self._inbox.remove(ticket)

    async def run(self) -> None:
        """Verify for ever; an error ends the requests it is about."""
        while True:
            tickets = await self._inbox.take()
            try:
                await self._verify(tickets)
            except Exception as error:
                self._fail(tickets, error)
            await asyncio.sleep(0)  # workers may not: whoever listens gets a turn after each step

    async def _verify(self, tickets: list[Ticket]) -> None:
        self._forget_what_was_lost(tickets)
        chunks = [t.sequence.next_chunk(self._config.prefill_chunk_tokens) for t in tickets]
        self._announce(tickets, chunks)
        requests = [
            chunk or ticket.sequence.verify_request()
            for chunk, ticket in zip(chunks, tickets, strict=True)
        ]
        drafting = self._draft_busy_seconds(time.monotonic())
        try:
            batch = await self._calls.ask(requests)
        except VerifierUnavailableError as error:
            await self._hold_up(tickets, error)
            return
        except Exception as error:
            await self._find_the_fault(tickets, error)
            return
        drafting = self._draft_busy_seconds(time.monotonic()) - drafting
        self._learn(tickets, batch, drafting)
        for ticket, chunk, verdict in zip(tickets, chunks, batch.verdicts, strict=True):
            ticket.stalled_since = None
            if chunk is None:
                self._pass_on(ticket, verdict, batch)
            elif ticket.is_over:
                self._pass_on(ticket, None, batch)
            else:
                ticket.sequence.chunk_done(chunk)
                ticket.times.reading_seconds += verdict.verify_seconds
                ticket.times.reading_transport_seconds += verdict.transport_seconds
                self._put(ticket)

    async def _find_the_fault(self, tickets: list[Ticket], error: Exception) -> None:
        """End what the verifier fails at, and nothing that was only in the same batch."""
        if len(tickets) == 1:
            self._fail(tickets, error)
            return
        half = len(tickets) // 2
        await self._verify(tickets[:half])
        await self._verify(tickets[half:])

    def _put(self, ticket: Ticket) -> None:
        ticket.stage = "ready"
        self._inbox.put(ticket)

    def _forget_what_was_lost(self, tickets: list[Ticket]) -> None:
        """After an outage the verifier may be another one, that has read nothing.

        Sent as a whole a long prefix could be late again and again.
        """
        for ticket in tickets:
            if ticket.num_outages < self._num_outages:
                ticket.num_outages, ticket.sequence.num_read = self._num_outages, 0

    def _announce(self, tickets: list[Ticket], chunks: list[VerifyRequest | None]) -> None:
        decoding = []
        for ticket, chunk in zip(tickets, chunks, strict=True):
            ticket.stage = "verifying"
            if chunk is None and ticket.sequence.num_outcomes != 0:
                decoding.append(ticket)
        if not decoding:
            return
        num_rows = sum(1 + ticket.sequence.draft.tree.num_nodes for ticket in tickets)
        ends_at = time.monotonic() + self._costs.verify.at(num_rows)
        for ticket in decoding:
            self._look_ahead(ticket, ends_at)

    def _learn(self, tickets: list[Ticket], batch: VerdictBatch, drafting_seconds: float) -> None:
        """Learn from decoding steps only: how much of a prompt was cached is not known here."""
        if all(ticket.sequence.num_unread == 1 for ticket in tickets):
            num_rows = sum(1 + ticket.sequence.draft.tree.num_nodes for ticket in tickets)
            num_tokens = sum(len(verdict.token_ids) for verdict in batch.verdicts)
            self._costs.observe_verify(
                num_rows, len(tickets), num_tokens, batch.seconds, drafting_seconds
            )

    async def _hold_up(self, tickets: list[Ticket], error: VerifierUnavailableError) -> None:
        """Let the tickets wait for the verifier to come back, but not for ever."""
        self._num_outages += 1
        now, limit = time.monotonic(), self._config.max_verifier_outage_seconds
        given_up = []
        for ticket in tickets:
            ticket.stalled_since = ticket.stalled_since or now
            if ticket.is_over or now - ticket.stalled_since >= limit:
                given_up.append(ticket)
            else:
                self._put(ticket)
        self._fail(given_up, error)
        pause = self._calls.pause_seconds
        logger.warning("the verifier is gone, asking again in %.2g s: %s", pause, error)
        await asyncio.sleep(pause)
