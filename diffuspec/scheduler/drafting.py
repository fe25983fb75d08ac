"""Draft calls: starts those of a plan, and passes their drafts or failures to the requests.

A drafter that fails, is late or gives invalid answers costs speed, never a request. The same is
true of a bug here: it is logged, and costs a draft.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable

from diffuspec.algorithm.outcomes import outcome_of
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import (
    DiffuspecError,
    DrafterError,
    DrafterLostError,
    InvalidRequestError,
)
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, Verdict
from diffuspec.scheduler.calls import DraftCall
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import EarlyDraft
from diffuspec.scheduler.verifications import Verifications
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.spans import trace_drafts, trace_failure, trace_trial
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
        self.busy = BusyTime()  # time with a working drafter, excluding trials
        self._pool = pool
        self._target = target
        self._max_seconds = config.max_draft_seconds
        self._learner = learner
        self._verifications = verifications
        self._put = put
        self._tracer = tracer
        self._state_layers: dict[str, tuple[int, ...]] = {}  # layers whose states a drafter wants
        pool.on_change = lambda: put(self._place_again)

    # ---- the start of a step

    def seek(self, request: Request) -> None:
        """Find a draft for a request's next step: a pre-draft, or a drafter to call."""
        self._verifications.ready[request] = None
        request.progress.enter("drafting", "a draft")
        try:
            self._seek(request)
        except Exception:
            name = request.request_id
            logger.exception("a step of %s goes on without a draft", name, extra=request.about)
            self._skip(request, "drafter_error")

    def _seek(self, request: Request) -> None:
        pre_drafts, early = request.pre_drafts, request.early
        hit = None if pre_drafts is None else pre_drafts.hit
        if request.choice is not None and not hit and early is None:
            request.drafter = request.choice.choose()
        self._pool.place(request)
        if request.drafter in self._state_layers:
            request.feed.expect(self._state_layers[request.drafter])
        if hit and hit.draft is not None:
            self._take(request, hit.draft, hit.num_draft_tokens)
        elif early is not None and early.draft is not None:
            self._take_early(request)
        elif (hit or early) and (call := self._pool.call_for(request, hit)) is not None:
            length = hit.num_draft_tokens if hit else early.length if early is not None else 0
            call.awaited[request] = length
            request.progress.waits_for = "a draft on its way"
            del self._verifications.ready[request]
        else:
            request.early = None

    def resolve(self, request: Request, verdict: Verdict) -> None:
        """Before a verdict is committed, match it with the pre-drafts."""
        pre_drafts = request.pre_drafts
        if pre_drafts is None or pre_drafts.happened is not None:
            request.pre_drafts = None
            return
        try:
            pre_drafts.ranking.observe(request.step.draft, verdict)
            pre_drafts.happened = outcome_of(verdict)
        except Exception:
            logger.exception("a pre-draft of %s is lost", request.request_id, extra=request.about)
            request.pre_drafts = None

    # ---- a call

    def begin(self, call: DraftCall, num_running: int) -> None:
        """Call a drafter for the drafts of a call."""
        for request, length in call.lengths.items():
            steps = call.trial_steps.get(request, 0.0)
            if request in call.awaited:
                self._verifications.ready.pop(request, None)
                request.progress.waits_for = call.lane.name
                request.step.trial_steps = steps
            else:
                request.early = EarlyDraft(request.num_tokens, length)
            if steps:
                with self._learner.attempt("paying for a trial"):
                    self._learner.baseline.take_trial(request.drafter, num_running, steps)
        for job in call.jobs:
            job.pre_drafts.send(job.pre_draft)
        call.wanted_by = {*call.lengths, *[job.request for job in call.jobs]}
        self.start(call)

    def start(self, call: DraftCall) -> None:
        """Start a call, which may be the trial of a failed drafter."""
        now = time.monotonic()
        call.ends_at += now - call.started_at
        call.started_at = now
        call.verify_busy_seconds = self._verifications.busy.seconds(now)
        call.lane.call = call
        if call.trial is None:
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
        elif call.trial is not None:
            trace_trial(self._tracer, call.lane.name, call.started_at)
        else:
            trace_drafts(self._tracer, call.lane.name, result, call.started_at, len(call.jobs))
        return result

    def _on_end(self, call: DraftCall, task: asyncio.Task[list[Draft] | Exception]) -> None:
        if call.deadline is not None:
            call.deadline.cancel()
        call.ended_at = call.ended_at or time.monotonic()  # it was cancelled before it began
        if call.trial is None:
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
            if call.trial is not None:
                if result is not None:
                    lane.breaker.succeeded()
            elif result is None:
                call.lose_jobs()
            else:
                self._take_all(call, result)
        except Exception as error:
            self._on_failure(call, error)
        self._pool.forget_if_gone(lane)
        if call.trial is not None or lane.is_gone or isinstance(result, Exception):
            self._place_again()

    def _take_all(self, call: DraftCall, drafts: list[Draft]) -> None:
        lane = call.lane
        lane.breaker.succeeded()
        if call.jobs:
            lane.pre_draft_breaker.succeeded()
        beside = self._verifications.busy.seconds(call.ended_at) - call.verify_busy_seconds
        with self._learner.attempt("learning from a draft call"):
            self._learner.on_drafts(call, beside)
        for (request, length), draft in zip(call.lengths.items(), drafts, strict=False):
            request.is_first_draft = request not in lane.known
            lane.known.add(request)
            if draft.states_wanted is not None:  # the drafter is in another process
                self._state_layers[request.drafter] = draft.states_wanted.layers
            request.note_states(draft)
            if request.early is not None:
                request.early.draft = draft
            if request in call.awaited and request.early is not None:
                self._take_early(request)
            elif request in call.awaited:
                self._take(request, draft, length)
        for job, draft in zip(call.jobs, drafts[len(call.lengths) :], strict=True):
            # Once the prefix is committed, there may be a draft where a pre-draft was impossible.
            has_happened = job.arrive(draft) if draft.tree.num_nodes else job.lose()
            if has_happened and job.request in call.awaited:  # else its reader is awaited first
                if draft.tree.num_nodes:
                    self._take(job.request, draft, job.pre_draft.num_draft_tokens)
                else:
                    self.seek(job.request)

    def _take(self, request: Request, draft: Draft, length: int) -> None:
        if not draft.tree.num_nodes:
            self._skip(request, None)  # a drafter may have nothing to propose: not a fallback
        else:
            self._store(request, lambda: request.take_draft(draft, length, self._target))

    def _take_early(self, request: Request) -> None:
        self._store(request, lambda: request.take_early_draft(self._target))

    def _store(self, request: Request, take: Callable[[], None]) -> None:
        """Store a draft for the next step; seek another one if `take` leaves the step open."""
        try:
            take()
        except InvalidRequestError as error:
            message = "a draft for %s is dropped: %s"
            logger.warning(message, request.request_id, error, extra=request.about)
            self._skip(request, "invalid_draft")
            return
        if request.step.is_settled:
            request.step.drafting_seconds = time.monotonic() - request.step.started_at
            self._ready(request)
        else:
            self.seek(request)

    def _skip(self, request: Request, reason: str | None) -> None:
        request.early = None
        request.step.skip(reason)
        self._ready(request)

    def _ready(self, request: Request) -> None:
        request.step.ready_at = time.monotonic()
        request.progress.enter("verifying", "the verifier")
        self._verifications.ready[request] = None

    def _on_failure(self, call: DraftCall, error: Exception) -> None:
        """Let the requests of a failed call continue without drafts, and pause the drafter."""
        lane = call.lane
        if isinstance(error, DrafterLostError):
            for request in call.requests:
                request.on_draft_loss()
        if call.trial is not None:
            logger.warning("%s is not well yet: %s", lane.name, error)
            lane.breaker.failed(time.monotonic())
            return
        trace = None if isinstance(error, DiffuspecError) else error
        message = "%s failed; decoding goes on without its drafts: %s"
        logger.warning(message, lane.name, error, exc_info=trace)
        waiting, homed = [*call.awaited], lane.homed.intersection(self._verifications.ready)
        queued = [one for one in homed if not one.step.is_settled]
        call.lose_jobs()
        if call.jobs:
            lane.pre_draft_breaker.failed(time.monotonic())
        if call.lengths or waiting or queued:
            lane.breaker.failed(time.monotonic())
        for request in call.lengths:
            request.early = None
        for request in waiting:
            if not request.is_finished and not request.step.is_settled:
                self._skip(request, "drafter_error")

    def _place_again(self) -> None:
        self._pool.place_again(self._verifications.ready)

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
