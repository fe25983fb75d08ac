"""The coordinator: draft, verify, commit, adapt, for many requests at once.

`Coordinator._run` is the whole loop. The verify stage verifies all requests that are ready in one
batch; meanwhile the draft stage drafts for others, and pre-drafts for the likeliest outcomes of the
batch. Requests move between the stages through queues. The roles are known by their interfaces
alone: this code is the same in one process and on a cluster, and no failure of a worker ends it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Mapping

from diffuspec.control.cost_aware import Economics
from diffuspec.control.costs import BusyTime
from diffuspec.coordinator.admission import Admission
from diffuspec.coordinator.draft_stage import DraftStage
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.coordinator.gauges import bind_gauges
from diffuspec.coordinator.lifecycle import StepTimes
from diffuspec.coordinator.loop_runner import Loop, LoopRunner
from diffuspec.coordinator.releases import Releases
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.request_factory import RequestFactory
from diffuspec.coordinator.step import StepObserver, step_output, step_stats
from diffuspec.coordinator.verify_batch import StepResult, Verified
from diffuspec.coordinator.verify_stage import VerifyStage
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import DiffuspecError, RequestCancelledError, VerifierError
from diffuspec.core.interfaces import Drafter, RequestStatus, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import NO_TOKENS, FinishReason, RequestOutput, TokenIds
from diffuspec.telemetry.metrics import Metrics
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.detokenizer import Detokenizer

logger = logging.getLogger(__name__)

MAX_UNREAD_OUTPUTS = 64  # of one request; its next step then waits for its reader
_GRACE_SECONDS = 1.0  # for workers to release requests at shutdown


class Coordinator:
    """Owns the requests. Lives in one event loop; use it as an async context manager."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | Mapping[str, Drafter] | DrafterPool | None,
        config: CoordinatorConfig,
        draft_length: DraftLengthConfig,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """A mapping holds drafters by the names that requests choose, the default first.

        The tracer is written to and not closed.
        """
        self.metrics = metrics or Metrics()
        self._verifier = verifier
        self._admission = Admission(config.max_waiting, self.metrics)
        drafters = None if drafter is None else DrafterPool.of(drafter)
        self._pool = pool = drafters or DrafterPool()
        length = draft_length.max_draft_tokens
        crowding = 0.0 if config.overlap else 1.0  # without overlap, the roles share a machine
        # By the drafters' names: the costs and the acceptance of one say nothing about another's.
        self._economics = {name: Economics(length, crowding) for name in pool.names}
        costs = {name: economics.costs for name, economics in self._economics.items()}
        self._factory = RequestFactory(
            verifier, pool, self._admission, config, draft_length, self._economics
        )
        self._releases = Releases(verifier, drafters)
        self._draft_busy = BusyTime()
        self._verify = VerifyStage(verifier, config, costs.values(), self._draft_busy, pool, tracer)
        self._drafts = DraftStage(
            drafters, verifier.info, config, costs, self._verify, self._draft_busy, tracer
        )
        self._observer = StepObserver(self.metrics, tracer, self._admission, costs)
        busy = {"verifier": self._verify.busy, "drafter": self._draft_busy}
        bind_gauges(self.metrics, self._admission, drafters, verifier.info, busy)
        self._loops = LoopRunner(self._on_loop_error)

    # ---- the loop

    async def _run(self) -> None:
        while True:
            batch = await self._verify.take()
            self._drafts.look_ahead(batch)
            await self._verify.run(batch, self._finish_step)

    def _begin_step(self, request: Request, times: StepTimes) -> None:
        request.times = times
        if request.auto is not None:
            request.auto.begin_step(request)
        self._drafts.submit(request)

    def _finish_step(self, request: Request, result: StepResult) -> None:
        """Commit a verdict and begin the next step, or end the request."""
        if request.is_finished:  # aborted while it was verified
            self._free(request)
            return
        try:
            if isinstance(result, Exception):
                raise result
            now = self._step_times()
            self._commit(request, result, now)
            if request.finish_reason is not None:
                self._finish(request, request.finish_reason)
            elif request.outputs.num_unread < MAX_UNREAD_OUTPUTS:
                self._begin_step(request, now)
            else:
                request.enter("waiting", "its reader")
                self._admission.hold(request)
        except Exception as error:
            self._abort(request, error)

    def _step_times(self) -> StepTimes:
        now = time.monotonic()
        return StepTimes(now, self._verify.busy.seconds(now), self._draft_busy.seconds(now))

    def _commit(self, request: Request, result: Verified, next_step: StepTimes) -> None:
        """Append the verdict's tokens, learn from it, and emit what it adds to the answer."""
        verdict = result.verdict
        self._drafts.resolve(request, verdict)
        request.adapt(verdict)
        token_ids, pieces = request.commit(verdict)
        step = step_stats(request, result, len(token_ids), next_step)
        request.outputs.put(step_output(request, verdict, step, token_ids, pieces))
        self._observer.observe(request, result, step, next_step.started_at)

    # ---- the beginning of a request

    async def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        detokenizer: Detokenizer | None = None,
        request_id: str | None = None,
        committed_token_ids: TokenIds = NO_TOKENS,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield one output per step until the request is finished.

        The answer goes on after `committed_token_ids`, output of a run that was interrupted: they
        count as output, are not yielded again, and put the request at the front of the queue.

        A request whose outputs are not read holds its slot and waits, at MAX_UNREAD_OUTPUTS.
        Closing the iterator aborts the request and frees its slot within one step. Raises
        InvalidRequestError or OverloadedError before any work, VerifierError when it cannot go on.
        """
        if not self._loops.is_running:
            raise RequestCancelledError("the coordinator is not running")
        try:
            request = self._factory.make(
                prompt_token_ids,
                sampling,
                speculation,
                detokenizer,
                request_id,
                committed_token_ids,
            )
        except DiffuspecError as error:
            self.metrics.observe_refusal(error)
            raise
        self._admission.submit(request)
        self._admit()
        try:
            while True:
                output = await request.outputs.take()
                self._on_read(request)
                if isinstance(output, DiffuspecError):
                    raise output
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._abort(request)

    def _on_read(self, request: Request) -> None:
        """Go on with a request that waits for its reader, once half of its outputs are read."""
        is_held = request.state == "waiting" and self._admission.is_running(request)
        if is_held and request.outputs.num_unread <= MAX_UNREAD_OUTPUTS // 2:
            self._admission.go_on(request)
            self._begin_step(request, self._step_times())

    def _admit(self) -> None:
        while admitted := self._admission.admit(self._verifier.info.max_sequences):
            for request in admitted:
                try:
                    self._begin_step(request, self._step_times())
                except Exception as error:
                    self._abort(request, error)

    def requests(self) -> tuple[RequestStatus, ...]:
        """Return the state of every request that has not ended: the waiting ones first."""
        now = time.monotonic()
        return tuple(request.status(now) for request in self._admission.alive)

    # ---- its end

    def cancel(self, request_id: str) -> int:
        """Abort all requests that were submitted under an id; return how many there were.

        Their streams raise RequestCancelledError.
        """
        chosen = [one for one in self._admission.alive if one.client_request_id == request_id]
        for request in chosen:
            self._abort(request)
            request.outputs.put(RequestCancelledError(f"{request_id!r} was cancelled"))
        return len(chosen)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """End a request that has its last token."""
        request.timeline.finished_at = time.monotonic()
        request.close(reason)
        sizes = request.num_prompt_tokens, request.num_output_tokens
        self.metrics.observe_finish(reason, *sizes, request.timeline)
        self._free(request)

    def _abort(self, request: Request, error: Exception | None = None) -> None:
        """End a request early, unless it has ended. Its stream raises `error`; None: it was closed.

        While the verifier works on the request, it keeps its slot; `_finish_step` then frees it.
        """
        if request.is_finished:
            return
        if error is None:
            request.close("cancelled")
            self.metrics.observe_cancel()
        else:
            if not isinstance(error, DiffuspecError):
                name = request.request_id
                logger.error("decoding %s failed", name, exc_info=error, extra=request.about)
                error = VerifierError(f"decoding failed: {error}")
            request.close(type(error).__name__)
            self.metrics.observe_failure(error)
            request.outputs.put(error)
        if not request.is_in_verifier:
            self._free(request)

    def _free(self, request: Request) -> None:
        """Take a request out of the stages, release it at the workers, and free its slot."""
        if not self._admission.is_running(request):
            self._admission.leave(request)
            return
        self._drafts.drop(request)
        self._verify.drop(request)
        self._releases.start(request.request_id, lambda: self._free_slot(request))

    def _free_slot(self, request: Request) -> None:
        self._admission.leave(request)
        if self._loops.is_running:
            self._admit()

    # ---- the coordinator's own life

    async def __aenter__(self) -> Coordinator:
        self._releases.open()
        self._loops.start(self._run)
        self._loops.start(self._run_lanes)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loops.stop()
        self._pool.let_lanes_join_again()
        self._verify.clear()
        self._abort_all(RequestCancelledError("the coordinator was shut down"))
        await self._releases.finish(_GRACE_SECONDS)

    async def drain(self, max_seconds: float) -> bool:
        """Refuse new requests, and let the others finish within `max_seconds`.

        Returns whether all did; the rest end with RequestCancelledError. The coordinator cannot be
        used afterwards: leave its context.
        """
        is_done = await self._admission.drain(max_seconds)
        message = f"shut down before the request had finished, {max_seconds:g} s after the notice"
        for request in list(self._admission):
            self._abort(request, RequestCancelledError(message))
        return is_done

    async def _run_lanes(self) -> None:
        """Run a loop for each drafter, also for those that join later."""
        while True:
            lane = await self._pool.joined.get()
            self._loops.start(functools.partial(self._drafts.run_lane, lane))

    def _on_loop_error(self, loop: Loop, error: Exception) -> None:
        """End all requests with an error, since a bug has ended a loop."""
        if loop == self._run:
            self._verify.clear()
        self._abort_all(VerifierError(f"decoding broke off: {error}"))

    def _abort_all(self, error: DiffuspecError) -> None:
        for request in list(self._admission):
            with contextlib.suppress(Exception):  # the bug may be there
                if not request.is_finished:
                    self._abort(request, error)
                elif not request.is_in_verifier:
                    self._free(request)
