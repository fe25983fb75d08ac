"""The verify stage: verifies the drafts of all requests that are ready, in one batch.

Where much of a prefix is unread, the target reads it in chunks first, so that no verification takes
long. While the verifier is unavailable its requests are held, and verified again after a pause,
with their prefixes read again. A request that the verifier fails at ends alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from diffuspec.control.costs import BusyTime, StepCosts
from diffuspec.coordinator.batch_choice import BatchChoice
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.coordinator.next_prompt import NextPrompt
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.request_queue import RequestQueue
from diffuspec.coordinator.spans import trace_failure, trace_verdicts
from diffuspec.coordinator.verify_batch import StepResult, Verified, VerifyBatch
from diffuspec.core.backoff import Backoff
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import VerifierError, VerifierUnavailableError
from diffuspec.core.interfaces import Verifier
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 0.05  # of a verifier that is unavailable
_MAX_PAUSE_SECONDS = 1.0
_NUM_TURNS = 3  # of the event loop: a frame arrives, its task begins, its request is queued


class _Drafting(NamedTuple):
    """Seconds of drafting since the last verification: until this one began, and beside it."""

    before: float
    beside: float


class VerifyStage:
    """Verifies the requests in its queue; each leaves with a verdict or an error."""

    def __init__(
        self,
        verifier: Verifier,
        config: CoordinatorConfig,
        costs: Iterable[StepCosts],
        draft_busy: BusyTime,
        drafters: DrafterPool,
        tracer: Tracer | None = None,
    ) -> None:
        """`draft_busy` runs while drafts are being made."""
        self.queue = RequestQueue()
        self.busy = BusyTime()
        self.next_prompt = NextPrompt()
        self._draft_busy = draft_busy
        self._drafters = drafters
        self._verifier = verifier
        self._max_chunk_tokens = config.prefill_chunk_tokens
        self._max_outage_seconds = config.max_verifier_outage_seconds
        self._costs = tuple(costs)
        self._choice = BatchChoice(self.queue, self._costs[0], config.prefill_chunk_tokens)
        self._tracer = tracer
        self._backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._num_outages = 0
        self._batch: Sequence[Request] = ()  # the latest
        self._ended_at = 0.0  # of the latest verification, by time.monotonic()
        self._read_at = 0.0  # end of the latest one that read prompts
        self._drafted_seconds = 0.0  # of all drafts until then
        self._was_plain = (
            False  # the last verification had no drafts, and none were made before or beside it
        )
        self._changed = asyncio.Event()  # a verification has returned, or a request ended

    async def take(self) -> VerifyBatch:
        """Wait for requests; return those to be verified now as one batch."""
        ready = await self._take_ready()
        for request in ready:
            if request.num_outages < self._num_outages:
                # The verifier may be a new one, with an empty cache. To read the whole prefix in
                # one step could miss the deadline again and again, so it is read in chunks.
                request.num_outages, request.reading.num_read = self._num_outages, 0
        self._batch = requests = self._choice.choose(ready)
        for request in requests:
            request.is_in_verifier = True
        return VerifyBatch(requests, [self._asked(request) for request in requests])

    async def _let_others_work(self) -> None:
        """Let answers go out, and requests that have come in meanwhile be queued.

        Verifiers and drafters may not suspend.
        """
        for _ in range(_NUM_TURNS):
            await asyncio.sleep(0)

    def _asked(self, request: Request) -> VerifyRequest:
        most = self._max_chunk_tokens
        scored = request.reading.next_scored(self._verifier.info.max_tree_nodes, most)
        return scored or request.verify_request(most)

    async def _take_ready(self) -> list[Request]:
        """Wait for requests; return those that are ready, with others if it pays to wait for them.

        Two verifications of few requests take longer than one of all: much longer if most of the
        time goes into reading the target's weights. So the requests wait for drafts under way if
        one batch of all saves more time in a step than the wait takes.
        """
        while True:
            await self.queue.wait()
            await self._let_others_work()
            until = math.inf
            while (until := min(until, self._waits_until(time.monotonic()))) > time.monotonic():
                if not await self.queue.grows(until - time.monotonic()):
                    break
            if ready := self.queue.take_now():  # empty if all have ended during the wait
                return ready

    def _waits_until(self, now: float) -> float:
        """Return until when the queued requests wait for drafts of others; `now`: not at all."""
        drafting = self._drafters.drafting()
        if not drafting:
            return now
        here, costs = list(self.queue), self._costs[0]
        if any(request.reading.is_long for request in here):
            return now
        drafted = [request for request in here if request.num_draft_tokens]
        if not drafted and costs.is_crowded and len(drafting) >= len(here):
            # A verification of their own would hold up the drafts for as long as it takes.
            return now + costs.draft.at(sum(request.num_draft_tokens for request in drafting))
        coming, ends_at = self._drafters.next_drafts()
        if not coming or (not drafted and len(coming) < len(here)):
            return now  # without drafts they can be verified now, and again with the others
        leaving = drafted or here
        num_rows = sum(1 + request.draft.tree.num_nodes for request in leaving)
        rows = num_rows, round(num_rows * len(coming) / len(leaving))
        positions = [sum(one.num_draft_tokens for one in some) for some in (leaving, coming)]
        saved = costs.saved_by_joining(rows, (positions[0], positions[1]))
        return now + saved if ends_at - now < saved else now

    async def let_prompts_go_first(self, drafting_seconds: float) -> None:
        """Wait for the first tokens that a draft call of this length would delay too much.

        They are those of the verification under way, or of the next one if there is none.
        """
        if not self._costs[0].delays_reading(drafting_seconds):
            return
        ended_at, read_at = self._ended_at, self._read_at
        await self._let_others_work()
        if self._ended_at != ended_at:  # a verification has kept the loop
            await self._let_others_work()
        batch = [request for request in self._batch if request.is_in_verifier] or self.queue
        reading = [request for request in batch if self._choice.ends_reading(request)]
        while any(map(self._choice.ends_reading, reading)):
            self._changed.clear()
            await self._changed.wait()
        if self._read_at != read_at:
            await self._let_others_work()  # first tokens go out

    def expects_prompt(self, drafting_seconds: float) -> bool:
        """Whether a draft call of this length had better wait for the next prompt of a client.

        It does if the call would delay that prompt too much, and takes longer than a step without
        drafts: the others take such a step first.
        """
        if not self.next_prompt.is_due:
            return False
        costs, seconds = self._costs[0], drafting_seconds
        return costs.delays_reading(seconds) and costs.outlasts_plain_step(seconds)

    def drop(self, request: Request) -> None:
        """Stop verifying for a request that has ended."""
        self.queue.remove(request)
        self.next_prompt.note_end()
        self._changed.set()

    def clear(self) -> None:
        """Note that the loop has failed: no request is in a verification."""
        for request in self._batch:
            request.is_in_verifier = False
        self._changed.set()

    async def run(self, batch: VerifyBatch, leave: Callable[[Request, StepResult], None]) -> None:
        """Verify a batch; call `leave` with every request that leaves the stage, and its result.

        A request with more to read, or held up by an outage, is queued again instead, unless it
        has ended meanwhile.
        """
        started = time.monotonic()
        drafted = self._draft_busy.seconds(started)
        try:
            verdicts = await self._ask(batch, started)
        except VerifierUnavailableError as error:
            for request in self._requeue_after_outage(batch.requests, error):
                leave(_left(request), error)
            await self._pause(error)
        except Exception as error:
            if len(batch.requests) == 1:
                leave(_left(batch.requests[0]), error)
                return
            for half in batch.halves():
                await self.run(half, leave)
        else:
            ended = time.monotonic()
            before, self._drafted_seconds = self._drafted_seconds, self._draft_busy.seconds(ended)
            drafting = _Drafting(drafted - before, self._drafted_seconds - drafted)
            self._on_verdicts(batch, verdicts, started, ended - started, drafting, leave)

    def _on_verdicts(
        self,
        batch: VerifyBatch,
        verdicts: list[Verdict],
        started: float,
        seconds: float,
        drafting: _Drafting,
        leave: Callable[[Request, StepResult], None],
    ) -> None:
        num_rows = batch.num_rows
        alone = self._costs[0].alone(num_rows, seconds, drafting.beside)
        is_plain = num_rows == len(batch.requests) and not any(drafting)
        are_plain, self._was_plain = is_plain and self._was_plain, is_plain
        for request in self._choice.put_off:
            request.times.yielded_seconds += seconds
        self._learn(batch, num_rows, verdicts, seconds, drafting, are_plain)
        for request, asked, verdict in zip(batch.requests, batch.asked, verdicts, strict=True):
            request.stalled_since = None
            request.feed.take(verdict.states)
            try:
                is_read = request.reading.take(asked, verdict)
            except VerifierError as error:
                leave(_left(request), error)
                continue
            if is_read or request.is_finished:
                leave(_left(request), Verified(verdict, started, seconds, alone, are_plain))
            else:
                self._requeue_to_read(request, verdict)

    async def _ask(self, batch: VerifyBatch, started: float) -> list[Verdict]:
        """Return the verifier's verdicts.

        Raises what it raises, and VerifierError for a wrong number of verdicts.
        """
        self.busy.begin(started)
        try:
            verdicts = await self._verifier.verify(batch.asked)
        except Exception:
            trace_failure(self._tracer, "verifier", started)
            raise
        finally:
            self.busy.end(time.monotonic())
            self._changed.set()
        self._backoff.succeeded()
        if len(verdicts) != len(batch.asked):
            raise VerifierError(f"{len(verdicts)} verdicts for {len(batch.asked)} requests")
        trace_verdicts(self._tracer, batch.asked, verdicts, started)
        return verdicts

    def _learn(
        self,
        batch: VerifyBatch,
        num_rows: int,
        verdicts: list[Verdict],
        seconds: float,
        drafting: _Drafting,
        are_plain: bool,
    ) -> None:
        """Learn from a decoding step, or of another what drafts have cost it.

        Beside a prompt, the number of rows is not known.
        """
        before, self._ended_at = self._ended_at, time.monotonic()
        if any([one.reading.num_unread > 1 for one in batch.requests]):
            self._read_at = self._ended_at
            self._learn_beside_prompts(batch, verdicts, drafting)
            return
        num_tokens = sum([len(verdict.token_ids) for verdict in verdicts])
        num_requests = len(batch.requests)
        since = max(before, min([request.times.started_at for request in batch.requests]))
        for costs in self._costs:
            costs.observe_verify(num_rows, num_requests, num_tokens, seconds, drafting.beside)
            costs.observe_progress(num_tokens, self._ended_at - since, are_plain)

    def _learn_beside_prompts(
        self, batch: VerifyBatch, verdicts: list[Verdict], drafting: _Drafting
    ) -> None:
        decoding = [one.reading.num_unread <= 1 for one in batch.requests]
        num_tokens = sum(len(verdict.token_ids) for verdict in compress(verdicts, decoding))
        num_kept_out = len(self._choice.put_off) + len(self._drafters.drafting())
        num_gained = num_tokens - sum(decoding) - num_kept_out
        num_nodes = batch.num_rows - len(batch.requests)
        num_rows = sum(map(self._choice.num_to_read, batch.requests))
        for costs in self._costs:
            seconds = drafting.before + costs.crowding * drafting.beside
            costs.observe_beside_prompts(num_rows, num_nodes, num_kept_out, num_gained, seconds)

    def _requeue_to_read(self, request: Request, verdict: Verdict) -> None:
        request.times.prefill_seconds += verdict.verify_seconds
        request.times.prefill_transport_seconds += verdict.transport_seconds
        request.lifecycle.waits_for = f"prefill, {request.reading.num_unread} tokens to read"
        self.queue.put(_left(request))

    def _requeue_after_outage(
        self, requests: Sequence[Request], error: VerifierUnavailableError
    ) -> list[Request]:
        """Queue requests until the verifier is back; return those that waited too long or ended."""
        self._num_outages += 1
        now, given_up = time.monotonic(), []
        for request in requests:
            request.stalled_since = request.stalled_since or now
            if request.is_finished or now - request.stalled_since >= self._max_outage_seconds:
                given_up.append(request)
            else:
                request.lifecycle.waits_for = "the verifier, which is unavailable"
                self.queue.put(_left(request))
        return given_up

    async def _pause(self, error: VerifierUnavailableError) -> None:
        pause = self._backoff.failed()
        logger.warning("the verifier is unavailable; next attempt in %.2g s: %s", pause, error)
        await asyncio.sleep(pause)
        self._ended_at = time.monotonic()


def _left(request: Request) -> Request:
    request.is_in_verifier = False
    return request
