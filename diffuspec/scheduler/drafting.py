"""Draft calls: starts those of a plan, and passes their drafts or failures to the requests.

A drafter that fails, is late or gives invalid answers costs speed, never a request. The same is
true of a bug here: it is logged, and costs a draft.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping

from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import (
    DiffuspecError,
    DrafterError,
    DrafterLostError,
    InvalidRequestError,
)
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, Verdict
from diffuspec.scheduler.calls import DraftCall, DraftJob
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.verifications import Verifications
from diffuspec.speculation.outcomes import outcome_of
from diffuspec.speculation.values import DraftPlan, DraftTicket
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.spans import trace_check, trace_drafts, trace_failure
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)


class Drafting:
    """The drafts of a coordinator. Requests become ready when they have a draft or go without."""

    def __init__(
        self,
        pool: DrafterPool,
        target: TargetInfo,
        config: CoordinatorConfig,
        learner: Learner,
        verifications: Verifications,
        put: Callable[[Callable[[], None]], None],
        tracer: Tracer | None,
    ) -> None:
        """`put`: adds events to the loop's queue."""
        self.busy = BusyTime()  # time with a working drafter, excluding health checks
        self._pool = pool
        self._target = target
        self._max_seconds = config.max_draft_seconds
        self._learner = learner
        self._verifications = verifications
        self._put = put
        self._tracer = tracer
        self._state_layers: dict[str, tuple[int, ...]] = {}  # layers whose states a drafter wants
        pool.on_change = lambda: put(lambda: None)  # the loop looks at the drafters again

    # ---- the start of a step

    def seek(self, request: Request) -> None:
        """Use the pre-draft for a request's next step, if there is one; else it may be drafted."""
        request.state = "ready"
        request.progress.enter("drafting", "a draft")
        if request.drafter in self._state_layers:
            request.feed.expect(self._state_layers[request.drafter])
        hit = None if request.pre_drafts is None else request.pre_drafts.hit
        if hit is None:
            return
        try:
            if hit.draft is not None:
                self._take(request, hit.draft, hit.ticket)
            elif (call := self._pool.call_for(hit)) is not None:
                call.awaited.add(request)
                request.progress.waits_for = "a draft on its way"
                request.state = "drafting"
        except Exception:
            name = request.request_id
            logger.exception("a step of %s goes on without a draft", name, extra=request.about)
            self._skip(request, "drafter_error")

    def resolve(self, request: Request, verdict: Verdict) -> None:
        """Before a verdict is committed, match it with the pre-drafts."""
        pre_drafts = request.pre_drafts
        if pre_drafts is None or pre_drafts.happened is not None:
            request.pre_drafts = None
        else:
            pre_drafts.happened = outcome_of(verdict)

    # ---- a call

    def begin(self, plan: DraftPlan, requests: Mapping[str, Request], num_running: int) -> None:
        """Call a drafter for the drafts of a plan."""
        lane = next(lane for lane in self._pool.lanes if lane.number == plan.drafter)
        jobs = [self._job(ticket, requests[ticket.request_id]) for ticket in plan.tickets]
        call = DraftCall(lane, jobs, num_unread=plan.num_unread)
        for job in jobs:
            call.wanted_by.add(job.request)
            if job.pre_draft is None:
                call.awaited.add(job.request)
                job.request.state = "drafting"
                job.request.progress.waits_for = lane.name
            if job.ticket.is_exploration:
                with self._learner.attempt("exploring"):
                    self._learner.explore(job.request.drafter, num_running)
        self._start(call, plan.seconds)

    def _job(self, ticket: DraftTicket, request: Request) -> DraftJob:
        ahead = request.pre_drafts
        if ticket.outcome is None or ahead is None:
            return DraftJob(request, ticket)
        return DraftJob(request, ticket, ahead, ahead.send(ticket))

    def check(self, number: int, request: Request) -> None:
        """Test a drafter that has failed, with a copy of a request's draft request."""
        lane = next(lane for lane in self._pool.lanes if lane.number == number)
        ticket = DraftTicket(request.request_id, max(request.step.num_draft_tokens, 1))
        call = DraftCall(lane, [DraftJob(request, ticket)], wanted_by={request}, is_check=True)
        self._start(call, 0.0)

    def _start(self, call: DraftCall, seconds: float) -> None:
        now = time.monotonic()
        call.started_at, call.ends_at = now, now + seconds
        call.verify_busy_seconds = self._verifications.busy.seconds(now)
        call.lane.call = call
        call.lane.held_request_ids.update([job.request.request_id for job in call.jobs])
        if not call.is_check:
            self.busy.begin(now)
            self._learner.busy[call.lane.chosen_by].begin(now)
        loop = asyncio.get_running_loop()
        call.task = loop.create_task(self._answer(call))
        call.deadline = loop.call_later(self._max_seconds, call.end)
        call.task.add_done_callback(functools.partial(self._on_end, call))

    async def _answer(self, call: DraftCall) -> list[Draft] | Exception:
        """Return the drafts, or the reason for their absence."""
        result = await call.answer()
        if isinstance(result, Exception):
            trace_failure(self._tracer, call.lane.name, call.started_at)
        elif call.is_check:
            trace_check(self._tracer, call.lane.name, call.started_at)
        else:
            trace_drafts(self._tracer, call.lane.name, result, call.started_at, call.num_ahead)
        return result

    def _on_end(self, call: DraftCall, task: asyncio.Task[list[Draft] | Exception]) -> None:
        if call.deadline is not None:
            call.deadline.cancel()
        call.ended_at = call.ended_at or time.monotonic()  # it was cancelled before it began
        if not call.is_check:
            self.busy.end(call.ended_at)
            self._learner.busy[call.lane.chosen_by].end(call.ended_at)
        result: list[Draft] | Exception | None = None  # no request wants the drafts any more
        if not task.cancelled():
            result = task.result()
        elif call.wanted_by:
            trace_failure(self._tracer, call.lane.name, call.started_at)
            result = DrafterError(f"no draft within {self._max_seconds} seconds")
        self._put(functools.partial(self._on_drafts, call, result))

    # ---- the end of a call

    def _on_drafts(self, call: DraftCall, result: list[Draft] | Exception | None) -> None:
        lane = call.lane
        if lane.call is not call:
            return  # the pool has another coordinator, or the loop has failed since
        lane.call = None
        try:
            if isinstance(result, Exception):
                raise result
            if result is not None:
                lane.breaker.succeeded()
                if not call.is_check:
                    self._take_all(call, result)
            else:
                for job in call.jobs:
                    job.lose()
        except Exception as error:
            self._on_failure(call, error)
        self._pool.forget_if_gone(lane)

    def _take_all(self, call: DraftCall, drafts: list[Draft]) -> None:
        if call.num_ahead:
            call.lane.pre_draft_breaker.succeeded()
        beside = self._verifications.busy.seconds(call.ended_at) - call.verify_busy_seconds
        with self._learner.attempt("learning from a draft call"):
            self._learner.on_drafts(call, beside, sum([draft.num_refreshed for draft in drafts]))
        for job, draft in zip(call.jobs, drafts, strict=True):
            request, is_wanted = job.request, job.request in call.awaited
            if job.pre_draft is None:
                if draft.states_wanted is not None:  # the drafter is in another process
                    self._state_layers[request.drafter] = draft.states_wanted.layers
                request.note_states(draft)
                if is_wanted:
                    self._take(request, draft, job.ticket)
            elif draft.tree.num_nodes:
                job.pre_draft.draft = draft
                ahead = job.pre_drafts
                if is_wanted and ahead is not None and ahead.hit is job.pre_draft:
                    self._take(request, draft, job.ticket)
            # Once the prefix is committed, there may be a draft where a pre-draft was impossible.
            elif job.lose() and is_wanted:
                self.seek(request)

    def _take(self, request: Request, draft: Draft, ticket: DraftTicket) -> None:
        """Settle the next step with a draft."""
        if not draft.tree.num_nodes:
            self._skip(request, None)  # a drafter may have nothing to propose: not a fallback
            return
        try:
            request.take_draft(draft, ticket, self._target)
        except InvalidRequestError as error:
            message = "a draft for %s is dropped: %s"
            logger.warning(message, request.request_id, error, extra=request.about)
            self._skip(request, "invalid_draft")
            return
        request.step.drafting_seconds = time.monotonic() - request.step.started_at
        self._ready(request)

    def _skip(self, request: Request, reason: str | None) -> None:
        request.step.skip(reason)
        self._ready(request)

    def _ready(self, request: Request) -> None:
        request.state, request.step.ready_at = "ready", time.monotonic()
        request.progress.enter("verifying", "the verifier")

    def _on_failure(self, call: DraftCall, error: Exception) -> None:
        """Let the requests of a failed call continue without drafts, and pause the drafter."""
        lane = call.lane
        if isinstance(error, DrafterLostError):
            for request in {job.request for job in call.jobs}:
                request.on_draft_loss()
        if call.is_check:
            logger.warning("%s is not well yet: %s", lane.name, error)
            lane.breaker.failed(time.monotonic())
            return
        trace = None if isinstance(error, DiffuspecError) else error
        message = "%s failed; decoding goes on without its drafts: %s"
        logger.warning(message, lane.name, error, exc_info=trace)
        if call.num_ahead:
            lane.pre_draft_breaker.failed(time.monotonic())
        is_late = call.ended_at - call.started_at >= self._max_seconds  # it may hang
        if call.awaited or call.num_ahead < len(call.jobs) or is_late:
            lane.breaker.failed(time.monotonic())
        for job in call.jobs:
            job.lose()
        for request in call.awaited:
            if not request.is_finished and not request.step.is_settled:
                self._skip(request, "drafter_error")

    # ---- shutdown

    def clear(self) -> None:
        """Forget the calls that have ended, after a failure of the loop."""
        for lane in list(self._pool.lanes):
            if lane.call is not None and lane.call.ended_at:
                lane.call = None
            self._pool.forget_if_gone(lane)

    def drop(self, request: Request) -> None:
        """Stop drafting for a request that has ended."""
        request.pre_drafts = None
        self._pool.drop(request)

    async def stop(self) -> None:
        """Cancel all calls. Another coordinator may use the pool afterwards."""
        calls = [lane.call for lane in self._pool.lanes if lane.call is not None]
        tasks = [call.task for call in calls if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pool.reset()
