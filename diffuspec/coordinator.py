"""The loop: draft, verify, commit, adapt, for many requests at once.

Two loops work on one set of sequences. The draft loop takes every sequence that needs a draft and
drafts for all of them in one batch; the verify loop takes every sequence that is ready and verifies
them in one batch. While some are drafted, others are verified. The roles are known by their
interfaces alone: this code is the same in one process and on a cluster.

A drafter that fails, is late or answers nonsense costs speed, never a request: its sequences go on
without drafts, and it is asked again after a pause. A verifier that fails ends the requests it was
working on. Nothing that a worker does ends a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence as Batch

import numpy as np

from diffuspec.breaker import Breaker
from diffuspec.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.draft_length import Economics, make_draft_length
from diffuspec.draft_tree import depths
from diffuspec.errors import (
    DiffuspecError,
    DrafterError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    VerifierError,
)
from diffuspec.interfaces import Drafter, Verifier
from diffuspec.metrics import Metrics
from diffuspec.sequence import Increment, Sequence, check_request
from diffuspec.text import TextStream
from diffuspec.ticket import Inbox, Ticket
from diffuspec.types import (
    EMPTY_DRAFT,
    Draft,
    DraftRequest,
    SamplingParams,
    SpeculationParams,
    StepStats,
    TokenIds,
    Verdict,
)

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 1.0  # for workers to let go of what they hold at shutdown


class Coordinator:
    """Owns the sequences. Lives in one event loop; use it as an async context manager."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | None,
        config: CoordinatorConfig,
        draft_length: DraftLengthConfig,
        metrics: Metrics | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._verifier = verifier
        self._drafter = drafter
        self._config = config
        self._draft_length = draft_length
        self._economics = Economics(draft_length.max_draft_tokens)
        self._breaker = Breaker()
        self._waiting: deque[Ticket] = deque()
        self._running: set[Ticket] = set()
        self._needs_draft = Inbox()
        self._ready = Inbox()
        self._request_numbers = itertools.count(1)
        self._loops: list[asyncio.Task[None]] = []
        self._releases: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Coordinator:
        self._loops = [
            asyncio.create_task(self._work_on(self._needs_draft, self._draft), name="draft loop"),
            asyncio.create_task(self._work_on(self._ready, self._verify), name="verify loop"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        loops, self._loops = self._loops, []
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        tickets = [*self._waiting, *self._running]
        self._waiting.clear()
        self._end(tickets, RequestCancelledError("the coordinator was shut down"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_SECONDS):
                await self._retire(tickets)
                await asyncio.gather(*self._releases)

    async def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        text: TextStream | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[Increment]:
        """Yield one increment per step until the request is finished.

        Closing the iterator cancels the request and frees its slot within one step. Raises
        InvalidRequestError or OverloadedError before any work, VerifierError when it cannot go on.
        """
        ticket = self._submit(prompt_token_ids, sampling, speculation, text, request_id)
        try:
            while True:
                item = await ticket.increments.get()
                if isinstance(item, DiffuspecError):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            self._abandon(ticket)

    def cancel(self, request_id: str) -> int:
        """End all requests that were submitted under an id; return how many there were.

        Their streams raise RequestCancelledError.
        """
        chosen = [
            ticket
            for ticket in (*self._waiting, *self._running)
            if not ticket.is_over and ticket.sequence.request_id.rpartition("-")[0] == request_id
        ]
        for ticket in chosen:
            self._abandon(ticket)
            ticket.increments.put_nowait(RequestCancelledError(f"{request_id!r} was cancelled"))
        return len(chosen)

    # ---- the two loops

    async def _work_on(self, inbox: Inbox, work: Callable[[list[Ticket]], Awaitable[None]]) -> None:
        """Work on all that comes in, for ever; an error ends the requests it is about."""
        while True:
            tickets = await inbox.take()
            try:
                await work(tickets)
            except Exception as error:
                await self._fail(tickets, error)
            await asyncio.sleep(0)  # workers may not: whoever listens gets a turn after each step

    async def _draft(self, tickets: list[Ticket]) -> None:
        """Draft for all of these in one batch; without a draft they are ready all the same."""
        tickets = await self._drop_over(tickets)
        if not tickets:
            return
        started = time.monotonic()
        requests = [ticket.sequence.draft_request() for ticket in tickets]
        try:
            drafts = await self._ask_drafter(requests)
        except Exception as error:
            logger.warning("drafting failed, decoding goes on without drafts: %s", error)
            self._breaker.failed()
            for ticket in tickets:
                self._skip_draft(ticket, "drafter_error")
            return
        self._breaker.succeeded()
        seconds = time.monotonic() - started
        self._learn_drafting(tickets, seconds)
        for ticket, draft in zip(tickets, drafts, strict=True):
            ticket.drafting_seconds = seconds
            self._take_draft(ticket, draft)

    async def _ask_drafter(self, requests: list[DraftRequest]) -> list[Draft]:
        """Raises whatever a drafter does, and DrafterError when it is late or miscounts."""
        assert self._drafter is not None
        limit = self._config.max_draft_seconds
        try:
            async with asyncio.timeout(limit):
                drafts = await self._drafter.draft(requests)
        except TimeoutError as error:
            raise DrafterError(f"no draft within {limit} seconds") from error
        if len(drafts) != len(requests):
            raise DrafterError(f"{len(drafts)} drafts for {len(requests)} requests")
        return drafts

    def _take_draft(self, ticket: Ticket, draft: Draft) -> None:
        try:
            ticket.sequence.take_draft(draft, self._verifier.info)
        except InvalidRequestError as error:
            logger.warning("a draft for %s is dropped: %s", ticket.sequence.request_id, error)
            self._skip_draft(ticket, "invalid_draft")
        else:
            self._ready.put(ticket)

    async def _verify(self, tickets: list[Ticket]) -> None:
        """Verify all of these in one batch, commit what comes out, and send them on."""
        tickets = await self._drop_over(tickets)
        if not tickets:
            return
        started = time.monotonic()
        chunks = [t.sequence.next_chunk(self._config.prefill_chunk_tokens) for t in tickets]
        requests = [
            chunk or ticket.sequence.verify_request()
            for chunk, ticket in zip(chunks, tickets, strict=True)
        ]
        verdicts = await self._verifier.verify(requests)
        if len(verdicts) != len(requests):
            raise VerifierError(f"{len(verdicts)} verdicts for {len(requests)} requests")
        seconds = time.monotonic() - started
        self._learn_verifying(tickets, verdicts, seconds)
        for ticket, chunk, verdict in zip(tickets, chunks, verdicts, strict=True):
            if ticket.is_over:
                continue  # nobody listens since a moment ago
            if chunk is not None:
                self._send_on(ticket)
            else:
                self._finish_step(ticket, verdict, seconds)
        await self._retire([ticket for ticket in tickets if ticket.is_over])

    def _finish_step(self, ticket: Ticket, verdict: Verdict, verifying_seconds: float) -> None:
        sequence, now = ticket.sequence, time.monotonic()
        is_first = sequence.num_output_tokens == 0
        sequence.adapt(verdict)
        token_ids, pieces = sequence.commit(verdict)
        step = _step_stats(ticket, verdict, len(token_ids), now)
        increment = Increment(
            token_ids=token_ids,
            num_accepted_tokens=step.num_accepted_tokens,
            pieces=pieces,
            text="".join(pieces),
            logprobs=verdict.logprobs and verdict.logprobs[: len(token_ids)],
            finish_reason=sequence.finish_reason,
            step=step,
        )
        ticket.increments.put_nowait(increment)
        self.metrics.observe_step(step)
        if is_first:
            self.metrics.observe_first_token(now - ticket.submitted_at)
        else:
            overhead = step.step_seconds - ticket.drafting_seconds - verifying_seconds
            self._economics.costs.observe_overhead(max(overhead, 0.0))
        ticket.step_started_at = now
        if sequence.finish_reason is None:
            self._send_on(ticket)
        else:
            ticket.is_over = True
            lasted = now - ticket.submitted_at
            self.metrics.observe_finish(sequence.finish_reason, sequence.num_prompt_tokens, lasted)

    def _send_on(self, ticket: Ticket) -> None:
        """Decide where a sequence goes next: to the drafter, or straight to the verifier."""
        sequence = ticket.sequence
        if sequence.has_chunks_left(self._config.prefill_chunk_tokens):
            self._ready.put(ticket)
        elif self._drafter is None or sequence.plan_draft() == 0:
            self._skip_draft(ticket, None)
        elif self._breaker.is_open:
            self._skip_draft(ticket, "drafter_unavailable")
        else:
            sequence.fallback = None
            self._needs_draft.put(ticket)

    def _skip_draft(self, ticket: Ticket, reason: str | None) -> None:
        sequence = ticket.sequence
        sequence.draft, sequence.num_draft_tokens = EMPTY_DRAFT, 0
        sequence.fallback = reason
        ticket.drafting_seconds = 0.0
        self._ready.put(ticket)

    def _learn_drafting(self, tickets: Batch[Ticket], seconds: float) -> None:
        """Learn from decoding steps only: a request's first draft reads its whole prompt."""
        if all(ticket.sequence.num_output_tokens for ticket in tickets):
            num_positions = sum(ticket.sequence.num_draft_tokens for ticket in tickets)
            self._economics.costs.observe_draft(num_positions, len(tickets), seconds)

    def _learn_verifying(
        self, tickets: Batch[Ticket], verdicts: Batch[Verdict], seconds: float
    ) -> None:
        """Learn from decoding steps only: how many prompt rows were cached is not known here."""
        if all(ticket.sequence.num_output_tokens for ticket in tickets):
            num_rows = sum(1 + ticket.sequence.draft.tree.num_nodes for ticket in tickets)
            num_tokens = sum(len(verdict.token_ids) for verdict in verdicts)
            costs = self._economics.costs
            costs.observe_verify(num_rows, len(tickets), num_tokens, seconds)

    # ---- the life of a request

    def _submit(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        text: TextStream | None,
        request_id: str | None,
    ) -> Ticket:
        check_request(prompt_token_ids, sampling, speculation, self._verifier.info)
        self._check_load()
        sequence = Sequence(
            request_id=f"{request_id or 'request'}-{next(self._request_numbers)}",
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            speculation=speculation,
            draft_length=make_draft_length(speculation, self._draft_length, self._economics),
            eos_token_ids=self._verifier.info.eos_token_ids,
            text=text,
        )
        ticket = Ticket(sequence, time.monotonic())
        self._waiting.append(ticket)
        self._admit()
        return ticket

    def _check_load(self) -> None:
        if not self._loops:
            raise RequestCancelledError("the coordinator is not running")
        num_decoding = sum(not ticket.is_over for ticket in self._running)
        num_free = max(self._verifier.info.max_sequences - num_decoding, 0)
        if len(self._waiting) >= self._config.max_waiting + num_free:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting; try again later")

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._verifier.info.max_sequences:
            ticket = self._waiting.popleft()
            self._running.add(ticket)
            ticket.step_started_at = time.monotonic()
            self.metrics.observe_admission(ticket.step_started_at - ticket.submitted_at)
            self._send_on(ticket)
        self.metrics.waiting.set(len(self._waiting))
        self.metrics.running.set(len(self._running))

    def _abandon(self, ticket: Ticket) -> None:
        """Nobody listens any more: out of the queue, or dropped where a loop meets it next."""
        if ticket.is_over:
            return
        ticket.is_over = True
        self.metrics.observe_cancel()
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            self.metrics.waiting.set(len(self._waiting))

    async def _drop_over(self, tickets: list[Ticket]) -> list[Ticket]:
        await self._retire([ticket for ticket in tickets if ticket.is_over])
        return [ticket for ticket in tickets if not ticket.is_over]

    async def _fail(self, tickets: list[Ticket], error: Exception) -> None:
        if not isinstance(error, DiffuspecError):
            logger.exception("decoding failed", exc_info=error)
            error = VerifierError(f"decoding failed: {error}")
        self._end(tickets, error)
        await self._retire(tickets)

    def _end(self, tickets: list[Ticket], error: DiffuspecError) -> None:
        for ticket in tickets:
            if not ticket.is_over:
                ticket.is_over = True
                ticket.increments.put_nowait(error)

    async def _retire(self, tickets: list[Ticket]) -> None:
        """Free what the workers hold for these and let others in."""
        for ticket in tickets:
            request_id = ticket.sequence.request_id
            if self._drafter is not None:
                # Not awaited: it may have to wait for a draft that is being made for others.
                release = asyncio.create_task(_release(self._drafter, request_id))
                self._releases.add(release)
                release.add_done_callback(self._releases.discard)
            await _release(self._verifier, request_id)
            self._running.discard(ticket)
        if tickets:
            self._admit()


async def _release(worker: Drafter | Verifier, request_id: str) -> None:
    try:
        await worker.release(request_id)
    except Exception as error:
        logger.warning("what a worker holds for %s could not be released: %s", request_id, error)


def _step_stats(
    ticket: Ticket, verdict: Verdict, num_committed_tokens: int, now: float
) -> StepStats:
    sequence, draft = ticket.sequence, ticket.sequence.draft
    return StepStats(
        num_draft_tokens=sequence.num_draft_tokens,
        num_tree_nodes=draft.tree.num_nodes,
        num_accepted_tokens=min(verdict.num_accepted_tokens, num_committed_tokens),
        num_committed_tokens=num_committed_tokens,
        tree_depth=int(np.max(depths(draft.tree), initial=0)),
        draft_seconds=draft.draft_seconds,
        search_seconds=draft.search_seconds,
        verify_seconds=verdict.verify_seconds,
        step_seconds=now - ticket.step_started_at,
        fallback=sequence.fallback,
    )
