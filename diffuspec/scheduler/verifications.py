"""Verifications: starts that of a plan, and passes its verdicts or failure to the requests.

While the verifier is unavailable its requests are held, and verified again after a pause, with
their prefixes read again. A request that makes the verifier fail ends without affecting others.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from diffuspec.core.backoff import Backoff
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import (
    DiffuspecError,
    FatalRequestError,
    VerifierError,
    VerifierLostError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import Verifier
from diffuspec.core.types import EMPTY_DRAFT, Verdict, VerifyRequest
from diffuspec.scheduler.calls import VerifyCall
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.pages import Pages
from diffuspec.scheduler.request import Request
from diffuspec.speculation.values import Plan
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.spans import trace_failure, trace_verdicts
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)

FinishStep: TypeAlias = Callable[[Request, Verdict | Exception, VerifyCall], None]

_FIRST_PAUSE_SECONDS = 0.05  # pause after a lost connection
_MAX_PAUSE_SECONDS = 1.0


class Verifications:
    """The verifications of a coordinator, one at a time."""

    def __init__(
        self,
        verifier: Verifier,
        config: CoordinatorConfig,
        pool: DrafterPool,
        learner: Learner,
        finish_step: FinishStep,
        put: Callable[[Callable[[], None]], None],
        on_lost_cache: Callable[[], None],
        tracer: Tracer | None,
    ) -> None:
        """`finish_step` gets each verdict, or the error that ends a request; `put` adds events.

        on_lost_cache: called when the verifier may be replaced by one with an empty cache.
        """
        self.busy = BusyTime()
        self.pages = Pages(verifier)
        self.in_flight: VerifyCall | None = None
        self.latest: Sequence[Request] = ()  # the requests of the latest call
        self.retry_at = 0.0  # time at which an unavailable verifier is called again
        # groups in each of which one request made the verifier fail
        self.isolated: deque[Sequence[Request]] = deque()
        self._verifier = verifier
        self._config = config
        self._pool = pool
        self._learner = learner
        self._finish_step = finish_step
        self._put = put
        self._on_lost_cache = on_lost_cache
        self._tracer = tracer
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._task: asyncio.Task[None] | None = None

    def begin(self, requests: Sequence[Request], plan: Plan) -> None:
        """Verify the requests of a plan."""
        if self.isolated and [request.request_id for request in self.isolated[0]] == plan.verify:
            self.isolated.popleft()
        if self.retry_at:  # the first call after an outage
            self.retry_at = 0.0
            self._learner.pause()
        for request in requests:
            self._settle(request, plan)
        call = self._call(requests, plan)
        call.started_at = call.ends_at = now = time.monotonic()
        with self._learner.attempt("predicting a verification"):
            rows = call.num_rows + sum(plan.max_read.values())
            seconds = self._learner.costs.verify_seconds(rows, len(requests))
            call.ends_at = now + self._pool.slow_down(now, seconds, self._learner.costs)
        call.draft_busy_seconds = self._learner.busy_seconds(now)
        for request in requests:
            request.state, request.is_in_verifier = "verifying", True
        self.in_flight, self.latest = call, requests
        self.pages.begin_verification()
        self.busy.begin(now)
        self._task = asyncio.get_running_loop().create_task(self._verify(call))

    def _call(self, requests: Sequence[Request], plan: Plan) -> VerifyCall:
        most, max_nodes = self._config.prefill_chunk_tokens, self._verifier.info.max_tree_nodes
        asked = []
        for request in requests:
            limit = plan.max_read.get(request.request_id, most)
            scored = request.prefill.next_scored(max_nodes, limit)
            asked.append(scored or request.verify_request(limit))
        rows = sum([1 + request.step.draft.tree.num_nodes for request in requests])
        num_decoding = sum([not request.prefill.is_long for request in requests])
        return VerifyCall(requests, asked, rows, num_decoding, plan.num_running, plan.preempted)

    async def _verify(self, call: VerifyCall) -> None:
        result: list[Verdict] | Exception
        try:
            for request_id in call.preempted:
                await self._verifier.release(request_id)
            result = await self._verifier.verify(call.asked)
            if len(result) != len(call.asked):
                raise VerifierError(f"{len(result)} verdicts for {len(call.asked)} requests")
            trace_verdicts(self._tracer, call.asked, result, call.started_at)
        except Exception as error:
            trace_failure(self._tracer, "verifier", call.started_at)
            result = error
        finally:
            call.ended_at = time.monotonic()
            self.busy.end(call.ended_at)
        self._put(functools.partial(self._on_verdicts, call, result))

    def _settle(self, request: Request, plan: Plan) -> None:
        """Settle the step of a request that is about to be verified."""
        step = request.step
        if not step.is_settled and not request.prefill.is_long:
            is_wanted = request.policy.num_draft_tokens != 0 and request.room > 0
            is_missing = is_wanted and self._pool.names != () and not self._has_drafter(request)
            step.skip("drafter_unavailable" if is_missing else None)
            if is_wanted:
                with self._learner.attempt("learning from a step without a draft"):
                    request.acceptance.observe_no_draft()
        elif request.request_id in plan.num_nodes:
            with self._learner.attempt("cutting a draft"):
                request.keep_nodes(plan.num_nodes[request.request_id])
        if self._config.overlap and request.speculation.num_outcomes != 0:
            self._expect_outcomes(request)
        step.ready_at = step.ready_at or time.monotonic()
        if not (request.prefill.is_long and request.prefill.num_read):
            request.progress.enter("verifying", "the verifier")

    def _has_drafter(self, request: Request) -> bool:
        lanes = self._pool.lanes
        return any([lane.is_available and lane.chosen_by == request.drafter for lane in lanes])

    def _expect_outcomes(self, request: Request) -> None:
        earlier = request.pre_drafts
        if earlier is not None and earlier.happened is None and earlier.num_sent:
            return  # verified once more, after an outage
        request.pre_drafts = None
        if request.step.draft is not EMPTY_DRAFT:
            with self._learner.attempt("ranking outcomes"):
                request.expect_outcomes()

    def _on_verdicts(self, call: VerifyCall, result: list[Verdict] | Exception) -> None:
        if call is not self.in_flight:
            return  # the loop has failed since
        self.in_flight = None
        if isinstance(result, VerifierUnavailableError):
            self._on_outage(call, result)
        elif isinstance(result, Exception):
            self._isolate(call, result)
        else:
            self._backoff.succeeded()
            self.pages.on_verdicts(result)
            with self._learner.attempt("learning from a verification"):
                if any([verdict.is_held for verdict in result]):
                    self._learner.skip(call)
                else:
                    self._learner.on_verdicts(call, result)
            for request in call.requests:
                request.is_in_verifier = False
            for request, asked, verdict in zip(call.requests, call.asked, result, strict=True):
                self._take(request, asked, verdict, call)

    def _take(
        self, request: Request, asked: VerifyRequest, verdict: Verdict, call: VerifyCall
    ) -> None:
        """Pass a verdict to its request."""
        request.stalled_since = None
        if verdict.is_held and not request.is_finished:
            request.progress.waits_for = "the masks of its form, or room in the cache"
            request.prefill.hold(asked, verdict)
            request.state = "ready"
            return
        self.pages.num_reread_tokens += request.prefill.found(verdict)
        try:
            request.feed.take(verdict.states)
            is_read = request.prefill.take(asked, verdict)
        except Exception as error:
            self._finish_step(request, error, call)
            return
        if is_read or request.is_finished:
            self._finish_step(request, verdict, call)
        else:
            self._read_on(request, verdict)

    def _read_on(self, request: Request, verdict: Verdict) -> None:
        request.step.skip(None)  # the first token does not wait for a draft
        request.step.prefill_seconds += verdict.verify_seconds
        request.step.prefill_transport_seconds += verdict.transport_seconds
        request.progress.waits_for = f"prefill, {request.prefill.num_unread} tokens to read"
        request.state = "ready"

    def _isolate(self, call: VerifyCall, error: Exception) -> None:
        """End the only request of a failed call; if there are more, retry halves separately.

        Requests that were aborted meanwhile are not retried: the loop may know them no more.
        """
        is_alone = len(call.requests) == 1
        retried = [request for request in call.requests if not (is_alone or request.is_finished)]
        for request in call.requests:
            if request not in retried:
                request.is_in_verifier = False
                self._finish_step(request, error, call)
        half = len(retried) // 2
        self.isolated.extendleft(filter(None, [retried[half:], retried[:half]]))

    def _on_outage(self, call: VerifyCall, error: VerifierUnavailableError) -> None:
        """Hold requests until the verifier is back, except those that waited too long or ended."""
        self.pages.reset()
        self._on_lost_cache()
        pause, now = self._backoff.failed(), time.monotonic()
        logger.warning("the verifier is unavailable; next attempt in %.2g s: %s", pause, error)
        self.retry_at = now + pause
        for request in call.requests:
            request.is_in_verifier = False
            request.stalled_since = request.stalled_since or now
            if end := self._end_after_outage(request, error, now):
                self._finish_step(request, end, call)
            else:
                request.progress.waits_for = "the verifier, which is unavailable"
                request.state = "ready"

    def _end_after_outage(
        self, request: Request, error: VerifierUnavailableError, now: float
    ) -> DiffuspecError | None:
        """Return the error that ends a request; None: it is verified again."""
        if isinstance(error, VerifierLostError):
            try:
                request.losses.add(str(error), request.num_tokens)
            except FatalRequestError as fatal:
                return fatal
        has_waited = now - (request.stalled_since or now)
        if not request.is_finished and has_waited < self._config.max_verifier_outage_seconds:
            return None
        # a caller that sends it elsewhere has to count this loss
        return VerifierLostError(str(error)) if request.losses.has_grown else error

    def clear(self) -> None:
        """Forget all requests, except those with which the verifier is still busy."""
        self.isolated.clear()
        self.latest = ()
        if self.in_flight is not None and self.in_flight.ended_at:
            self.in_flight = None

    async def stop(self) -> None:
        """Cancel the call in flight."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
