"""The coordinator: requests in, outputs out. `loop` decodes them in between."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping

from diffuspec.algorithm.validation import check_request
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import (
    BrokenEngineError,
    DiffuspecError,
    FatalRequestError,
    RequestCancelledError,
    VerifierError,
    VerifierLostError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import Drafter, RequestStatus, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.releases import Releases
from diffuspec.core.types import NO_TOKENS, FinishReason, RequestOutput, TokenIds, Verdict
from diffuspec.scheduler.admission import Admission, Beginnings
from diffuspec.scheduler.calls import VerifyCall
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.loop import Loop
from diffuspec.scheduler.observe import bind_gauges, report_step
from diffuspec.scheduler.pulse import Pulse
from diffuspec.scheduler.request import Request, Submission
from diffuspec.scheduler.step import Step
from diffuspec.telemetry.metrics import Metrics
from diffuspec.telemetry.profile import Profile
from diffuspec.telemetry.trace import Tracer
from diffuspec.text.detokenizer import Detokenizer

logger = logging.getLogger(__name__)

# number of unread outputs at which a request's next step waits for its reader
MAX_UNREAD_OUTPUTS = 64
_GRACE_SECONDS = 1.0  # time for workers to release requests at shutdown
# After this many breaks of the loop within these seconds the coordinator gives up.
_MAX_BREAKS, _BREAK_SECONDS = 3, 60.0


class Coordinator:
    """Owns the requests. Belongs to one event loop; use it as an async context manager."""

    def __init__(
        self,
        verifier: Verifier,
        drafter: Drafter | Mapping[str, Drafter] | DrafterPool | None,
        config: CoordinatorConfig,
        draft_length: DraftLengthConfig,
        metrics: Metrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """A mapping holds drafters by the names that requests use, the default first.

        The caller closes the tracer.
        """
        self.metrics = metrics or Metrics()
        self._verifier = verifier
        self._info = verifier.info
        self._config = config
        self._tracer = tracer
        pool = None if drafter is None else DrafterPool.of(drafter)
        self.pool = pool or DrafterPool()
        self._beginnings = Beginnings(self._info, pool, config, draft_length)
        self.admission = Admission(self._info.max_sequences, config.max_waiting, self.metrics)
        self.releases = Releases(verifier, self.pool)
        count = self.metrics.observe_decision_failure
        self.loop = Loop(verifier, self.pool, config, self._finish_step, tracer, count)
        self.pulse = Pulse(self.loop.events.put)
        self.broken: BrokenEngineError | None = None  # why it has given up
        self.on_broken: Callable[[BrokenEngineError], None] = lambda _: None  # called once
        self._breaks: deque[float] = deque(maxlen=_MAX_BREAKS)  # times of the loop's last breaks
        self._held: set[Request] = set()  # requests whose next step waits for their reader
        self._task: asyncio.Task[None] | None = None
        verifications = self.loop.verifications
        busy = {"verifier": verifications.busy, "drafter": self.loop.drafting.busy}
        bind_gauges(self.metrics, self._info, self.admission, pool, verifications.pages, busy)

    # ---- the start of a request

    async def stream(
        self,
        prompt_token_ids: TokenIds,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        detokenizer: Detokenizer | None = None,
        request_id: str | None = None,
        committed_token_ids: TokenIds = NO_TOKENS,
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield one output per step until the request is finished.

        The answer continues after `committed_token_ids`, output of an interrupted run: these count
        as output, are not yielded again, and put the request at the front of the queue.

        At MAX_UNREAD_OUTPUTS unread outputs, a request waits while holding its slot. Closing the
        iterator aborts the request and frees its slot within one step. Raises InvalidRequestError
        or OverloadedError before any work, VerifierError if it cannot continue, FatalRequestError
        if workers were lost three times while they worked on it, `num_losses` included.
        """
        if self.broken is not None:
            raise self.broken
        if self._task is None:
            raise RequestCancelledError("the coordinator is not running")
        wanted = Submission(
            prompt_token_ids,
            sampling,
            speculation,
            detokenizer,
            request_id,
            committed_token_ids,
            num_losses,
        )
        try:
            check_request(prompt_token_ids, sampling, speculation, self._info, committed_token_ids)
            drafter = self.pool.choose(speculation.drafter)
            self.admission.check_load(is_resumed=len(committed_token_ids) > 0)
            request = self._beginnings.make(wanted, drafter)
        except DiffuspecError as error:
            self.metrics.observe_refusal(error)
            raise
        self.admission.submit(request)
        self._admit()
        try:
            while True:
                output = await request.outputs.take()
                if request in self._held:
                    self._on_read(request)
                if isinstance(output, DiffuspecError):
                    raise output
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._abort(request)

    def _on_read(self, request: Request) -> None:
        """Resume a request that waits for its reader, once half of its outputs are read."""
        if not request.is_finished and request.outputs.num_unread <= MAX_UNREAD_OUTPUTS // 2:
            self._held.discard(request)
            self.loop.events.put(lambda: self._resume(request))

    def _resume(self, request: Request) -> None:
        if not request.is_finished:
            self.loop.begin_step(request)

    def _admit(self) -> None:
        """Start waiting requests, as far as there are slots."""
        for request in self.admission.admit():
            try:
                self.loop.begin_step(request)
            except Exception as error:
                self._abort(request, error)
        self.loop.events.put(lambda: None)  # wakes the loop to look at the state again

    def requests(self) -> tuple[RequestStatus, ...]:
        """Return the state of every request that has not ended: the waiting ones first."""
        now = time.monotonic()
        return tuple(request.status(now) for request in self.admission.alive)

    # ---- a step

    def _finish_step(self, request: Request, result: Verdict | Exception, call: VerifyCall) -> None:
        """Commit a verdict and begin the next step, or end the request."""
        if request.is_finished:  # aborted during its verification
            self._free(request)
            return
        try:
            if isinstance(result, Exception):
                raise result
            following = self._commit(request, result, call)
            if request.finish_reason is not None:
                self._finish(request, request.finish_reason)
            elif request.outputs.num_unread < MAX_UNREAD_OUTPUTS:
                self.loop.begin_step(request, following)
            else:
                request.progress.enter("waiting", "its reader")
                self.loop.hold(request)
                self._held.add(request)
                if request.losses.is_suspect:
                    self._admit()
        except Exception as error:
            self._abort(request, error)

    def _commit(self, request: Request, verdict: Verdict, call: VerifyCall) -> Step:
        """Append the verdict's tokens, learn from it, and emit the new part of the answer.

        Returns the next step.
        """
        attempt = self.loop.learner.attempt
        self.loop.drafting.resolve(request, verdict)
        with attempt("learning from a verdict"):
            request.adapt(verdict)
        committed = request.commit(verdict)
        following = self.loop.next_step()
        report_step(request, verdict, committed, call, following, self.metrics, self._tracer)
        return following

    # ---- the end of a request

    def cancel(self, request_id: str) -> int:
        """Abort all requests that were submitted with an id; return how many there were.

        Their streams raise RequestCancelledError.
        """
        chosen = [
            request for request in self.admission.alive if request.client_request_id == request_id
        ]
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

        While the verifier works on the request, it keeps its slot, which `_finish_step` then frees.
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
        """Remove a request from the loop, release it at the workers, and free its slot."""
        self._held.discard(request)
        if not self.admission.is_running(request):
            self.admission.leave(request)
            return
        self.loop.drop(request)
        self.loop.verifications.pages.release(request.num_pages)
        self.releases.start(request.request_id, lambda: self._free_slot(request))

    def _free_slot(self, request: Request) -> None:
        self.admission.leave(request)
        if self._task is not None:
            self._admit()

    # ---- the life of the coordinator

    async def profile(self, max_seconds: float = 1.0) -> None:
        """Measure unknown costs of calls, for at most about `max_seconds`.

        A hanging role is given up after the configuration's `max_draft_seconds`.
        """
        profile = Profile(self._info, max_seconds, self._config.max_draft_seconds)
        learner, costs = self.loop.learner, self.loop.learner.costs
        lanes = {lane.chosen_by: lane for lane in self.pool.lanes if lane.is_available}
        if not costs.is_known:
            for call in await profile.verifier_calls(self._verifier):
                costs = costs.observe_verification(call.size, call.num_requests, call.seconds, {})
        for name, lane in lanes.items():
            if not costs.drafters[name].is_known:
                for call in await profile.drafter_calls(lane.drafter, name):
                    costs = costs.observe_draft(
                        name, call.size, call.num_requests, call.num_unread, call.seconds
                    )
        await profile.release([self._verifier, *[lane.drafter for lane in lanes.values()]])
        learner.costs = costs
        learner.keep()

    async def __aenter__(self) -> Coordinator:
        self.releases.open()
        # In its own context: the caller's may belong to one request.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())
        self.pulse.start()
        return self

    async def _run(self) -> None:
        """Run the loop. After a failure of it, end all requests and run it again, or give up."""
        while self.broken is None:
            try:
                await self.loop.run()
            except Exception as error:
                logger.critical("the loop of the coordinator broke off", exc_info=error)
                self._on_break(error)
            await asyncio.sleep(0)

    def _on_break(self, error: Exception) -> None:
        """End all requests after a failure of the loop, and free what they hold.

        Requests in flight count it as a loss: one that causes it is a suspect when it is sent
        again. Give up after _MAX_BREAKS failures within _BREAK_SECONDS without a suspect in flight.
        """
        lost = {*self.loop.verifications.latest}
        self.loop.clear()
        if not any([request.losses.is_suspect for request in lost]):
            self._breaks.append(time.monotonic())
        is_full = len(self._breaks) == _MAX_BREAKS
        if is_full and self._breaks[-1] - self._breaks[0] < _BREAK_SECONDS:
            number = f"{_MAX_BREAKS} times within {_BREAK_SECONDS:.0f} seconds"
            self.broken = BrokenEngineError(f"decoding broke off {number}, at last: {error}")
            logger.critical("the coordinator gives up: %s", self.broken)
        for request in list(self.admission):
            request.is_in_verifier = request in self.loop.in_verifier
        self._abort_all(VerifierUnavailableError(f"decoding broke off: {error}"), lost)
        if self.broken is not None:
            self.on_broken(self.broken)

    async def __aexit__(self, *_: object) -> None:
        self.pulse.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.loop.stop()
        for request in self.admission:
            request.is_in_verifier = False  # its verification has been cancelled
        self._abort_all(RequestCancelledError("the coordinator was shut down"))
        await self.releases.finish(_GRACE_SECONDS)

    async def drain(self, max_seconds: float) -> bool:
        """Refuse new requests, and let the others finish within `max_seconds`.

        Returns whether all did; the rest end with RequestCancelledError. Afterwards the coordinator
        cannot be used: leave its context.
        """
        is_done = await self.admission.drain(max_seconds)
        message = f"shut down before the request had finished, {max_seconds:g} s after the notice"
        for request in list(self.admission):
            self._abort(request, RequestCancelledError(message))
        return is_done

    def _abort_all(self, error: DiffuspecError, lost: Collection[Request] = ()) -> None:
        """End all requests; `lost`: those in flight, or just answered, when the loop failed."""
        for request in list(self.admission):
            with contextlib.suppress(Exception):  # the failure may have its cause in here
                if not request.is_finished:
                    self._abort(request, _loss_of(request, error) if request in lost else error)
                elif not request.is_in_verifier:
                    self._free(request)


def _loss_of(request: Request, error: DiffuspecError) -> DiffuspecError:
    """Count a failure of the loop as a loss of a request in flight; return the error to raise."""
    try:
        request.losses.add(str(error), request.num_tokens)
    except FatalRequestError as fatal:
        return fatal
    return VerifierLostError(str(error))
