"""The coordinator: draft, verify, commit, adapt, for many requests at once.

Two loops work on one set of sequences. The draft loop takes every sequence that needs a draft and
drafts for all of them in one batch; the verify loop takes every sequence that is ready and verifies
them in one batch. While some are drafted, others are verified; with overlap, what a verification
may end in is drafted for meanwhile. The roles are known by their interfaces alone: this code is the
same in one process and on a cluster. Nothing that a worker does ends a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from dataclasses import replace

from diffuspec.control.draft_length import Economics, make_draft_length
from diffuspec.coordinator.admission import Admission
from diffuspec.coordinator.draft_stage import DraftLoop
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.coordinator.pre_drafts import Foresight
from diffuspec.coordinator.releases import Releases
from diffuspec.coordinator.sequence import Sequence, check_request
from diffuspec.coordinator.step import StepEnd
from diffuspec.coordinator.ticket import StepTimes, Ticket
from diffuspec.coordinator.verify_calls import VerdictBatch
from diffuspec.coordinator.verify_stage import VerifyLoop
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import DiffuspecError, RequestCancelledError, VerifierError
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput, StepStats, TokenIds, Verdict
from diffuspec.telemetry.metrics import Metrics
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.detokenizer import Detokenizer

logger = logging.getLogger(__name__)

_GRACE_SECONDS = 1.0  # for workers to let go of what they hold at shutdown


class Coordinator:
    """Owns the sequences. Lives in one event loop; use it as an async context manager."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | DrafterPool | None,
        config: CoordinatorConfig,
        draft_length: DraftLengthConfig,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """A tracer is written to; it stays its maker's to close."""
        self.metrics = metrics or Metrics()
        self._verifier = verifier
        self._config = config
        self._draft_length = draft_length
        self._tracer = tracer
        self._economics = economics = Economics(draft_length.max_draft_tokens)
        self._admission = Admission(config.max_waiting, self.metrics)
        drafters = None if drafter is None else DrafterPool.of(drafter)
        self._releases = Releases(verifier, drafters)
        self._verify_loop = VerifyLoop(
            verifier,
            config,
            economics.costs,
            self._look_ahead,
            self._go_on,
            self._fail,
            self._draft_busy_seconds,
            tracer,
        )
        self._draft_loop = DraftLoop(
            drafters,
            verifier.info,
            config,
            economics.costs,
            self._verify_loop.send,
            self._fail,
            tracer,
        )
        self._request_numbers = itertools.count(1)
        self._loops: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Coordinator:
        self._releases.open()
        self._start(self._verify_loop.run)
        self._draft_loop.open(self._start)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._draft_loop.close()
        loops, self._loops = self._loops, set()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        self._end(self._admission, RequestCancelledError("the coordinator was shut down"))
        for ticket in self._admission:
            self._retire(ticket)
        await self._releases.finish(_GRACE_SECONDS)

    async def drain(self, max_seconds: float) -> bool:
        """Refuse new requests, and let those that came before finish for so long at most.

        Returns whether all did; the others end with RequestCancelledError. The coordinator takes
        nothing any more: leave its context.
        """
        is_done = await self._admission.drain(max_seconds)
        message = f"shut down before the request had finished, {max_seconds:g} s after the notice"
        late = [ticket for ticket in self._admission if not ticket.is_over]
        self._end(late, RequestCancelledError(message))
        for ticket in late:
            self._leave_loops(ticket)
        return is_done

    async def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        text: Detokenizer | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[RequestOutput]:
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
            for ticket in self._admission
            if not ticket.is_over and ticket.request_id == request_id
        ]
        for ticket in chosen:
            self._abandon(ticket)
            ticket.increments.put_nowait(RequestCancelledError(f"{request_id!r} was cancelled"))
        return len(chosen)

    # ---- the beginning of a request

    def _submit(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        text: Detokenizer | None,
        request_id: str | None,
    ) -> Ticket:
        if not self._loops:
            raise RequestCancelledError("the coordinator is not running")
        try:
            check_request(prompt_token_ids, sampling, speculation, self._verifier.info)
            self._admission.check_load(self._verifier.info.max_sequences)
        except DiffuspecError as error:
            self.metrics.observe_refusal(error)
            raise
        if not self._config.overlap:
            speculation = replace(speculation, num_outcomes=0)
        sequence = Sequence(
            request_id=f"{request_id or 'request'}-{next(self._request_numbers)}",
            prompt_token_ids=prompt_token_ids,
            sampling=sampling,
            speculation=speculation,
            draft_length=make_draft_length(speculation, self._draft_length, self._economics),
            eos_token_ids=self._verifier.info.eos_token_ids,
            text=text,
        )
        ticket = Ticket(sequence, time.monotonic(), request_id)
        self._admission.submit(ticket)
        self._admit()
        return ticket

    def _admit(self) -> None:
        while admitted := self._admission.admit(self._verifier.info.max_sequences):
            for ticket in admitted:
                try:
                    self._begin_step(ticket, time.monotonic())
                except Exception as error:
                    self._fail([ticket], error)

    # ---- its steps

    def _begin_step(self, ticket: Ticket, now: float, foresight: Foresight | None = None) -> None:
        ticket.times = StepTimes(
            started_at=now,
            verify_busy_seconds=self._verify_loop.busy_seconds(now),
            draft_busy_seconds=self._draft_loop.busy_seconds(now),
        )
        self._draft_loop.send(ticket, foresight)

    def _look_ahead(self, ticket: Ticket, ends_at: float) -> None:
        self._draft_loop.look_ahead(ticket, ends_at)

    def _draft_busy_seconds(self, now: float) -> float:
        return self._draft_loop.busy_seconds(now) if self._config.overlap else 0.0

    def _go_on(self, ticket: Ticket, verdict: Verdict | None, batch: VerdictBatch) -> None:
        """A ticket comes from the verifier."""
        if ticket.is_over or verdict is None:
            self._retire(ticket)  # nobody listens since a moment ago
        else:
            self._finish_step(ticket, verdict, batch)

    def _finish_step(self, ticket: Ticket, verdict: Verdict, batch: VerdictBatch) -> None:
        """Commit a verdict, tell what came of it, and begin the next step."""
        sequence, now = ticket.sequence, time.monotonic()
        foresight = self._draft_loop.look_back(ticket, verdict)
        sequence.adapt(verdict)
        token_ids, pieces = sequence.commit(verdict)
        busy = self._verify_loop.busy_seconds(now), self._draft_loop.busy_seconds(now)
        end = StepEnd(ticket, verdict, batch, foresight, len(token_ids), now, *busy)
        step = end.stats()
        increment = RequestOutput(
            token_ids=token_ids,
            num_accepted_tokens=step.num_accepted_tokens,
            pieces=pieces,
            text="".join(pieces),
            logprobs=verdict.logprobs and verdict.logprobs[: len(token_ids)],
            finish_reason=sequence.finish_reason,
            step=step,
        )
        ticket.increments.put_nowait(increment)
        self._observe(ticket, step, batch, now)
        if self._tracer is not None:
            end.trace(self._tracer, step)
        if sequence.is_finished:
            self._finish(ticket, now)
        else:
            self._begin_step(ticket, now, foresight)

    def _observe(self, ticket: Ticket, step: StepStats, batch: VerdictBatch, now: float) -> None:
        self.metrics.observe_step(step)
        if ticket.sequence.num_output_tokens == step.num_committed_tokens:
            self.metrics.observe_first_token(now - ticket.submitted_at)
        else:
            overhead = step.step_seconds - ticket.times.drafting_seconds - batch.seconds
            self._economics.costs.observe_overhead(max(overhead, 0.0))

    # ---- its end

    def _finish(self, ticket: Ticket, now: float) -> None:
        reason, seconds = ticket.sequence.finish_reason, now - ticket.submitted_at
        assert reason is not None
        ticket.close(reason)
        self.metrics.observe_finish(reason, ticket.sequence.num_prompt_tokens, seconds)
        self._retire(ticket)

    def _abandon(self, ticket: Ticket) -> None:
        """Nobody listens any more: gone at once, or as soon as it comes from the verifier."""
        if ticket.is_over:
            return
        ticket.close("cancelled")
        self.metrics.observe_cancel()
        self._leave_loops(ticket)

    def _leave_loops(self, ticket: Ticket) -> None:
        """A ticket that is over goes at once, or as soon as it comes from the verifier."""
        if ticket.stage != "verifying":
            self._retire(ticket)

    def _fail(self, tickets: Collection[Ticket], error: Exception) -> None:
        """What a loop was working on goes wrong: these end, unless they are over already."""
        if not isinstance(error, DiffuspecError):
            logger.exception("decoding failed", exc_info=error)
            error = VerifierError(f"decoding failed: {error}")
        self._end(tickets, error)
        for ticket in tickets:
            self._retire(ticket)

    def _start(self, run: Callable[[], Awaitable[None]]) -> None:
        loop = asyncio.create_task(self._keep_running(run))
        self._loops.add(loop)
        loop.add_done_callback(self._loops.discard)

    async def _keep_running(self, run: Callable[[], Awaitable[None]]) -> None:
        """A loop breaks off by a bug in how requests end: all are told, and none waits for ever."""
        while True:
            try:
                await run()
                return
            except Exception as error:
                logger.critical("a loop of the coordinator broke off", exc_info=error)
                tickets = list(self._admission)
                self._end(tickets, VerifierError(f"decoding broke off: {error}"))
                for ticket in tickets:
                    with contextlib.suppress(Exception):  # the bug may be there
                        self._leave_loops(ticket)
            await asyncio.sleep(0)

    def _end(self, tickets: Iterable[Ticket], error: DiffuspecError) -> None:
        for ticket in tickets:
            if not ticket.is_over:
                ticket.close(type(error).__name__)
                self.metrics.observe_failure(error)
                ticket.increments.put_nowait(error)

    def _retire(self, ticket: Ticket) -> None:
        """Take a ticket out of the loops, free what the workers hold for it, let others in."""
        if ticket.stage == "waiting":
            self._admission.leave(ticket)
            return
        self._draft_loop.drop(ticket)
        self._verify_loop.drop(ticket)
        self._releases.start(ticket.sequence.request_id, lambda: self._free_slot(ticket))

    def _free_slot(self, ticket: Ticket) -> None:
        self._admission.leave(ticket)
        if self._loops:
            self._admit()
