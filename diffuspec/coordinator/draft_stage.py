"""The draft stage: drafts for the requests that wait for a draft, then pre-drafts.

Every drafter works by itself, in a lane of its own. One that fails, is late or answers nonsense
costs speed, never a request: its requests go on without drafts, or with another drafter's. After a
pause it is given a trial, and when that succeeds, it drafts again. A bug in this stage is logged
and costs a draft or pre-drafts, but no request either.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping

from diffuspec.control.costs import BusyTime, StepCosts
from diffuspec.coordinator.draft_batch import DraftBatch
from diffuspec.coordinator.draft_calls import DraftCalls
from diffuspec.coordinator.draft_lane import DraftLane
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.coordinator.early_draft import EarlyDraft
from diffuspec.coordinator.pre_draft_planner import PreDraftJob
from diffuspec.coordinator.pre_drafting import PreDrafting
from diffuspec.coordinator.pre_drafts import PreDraft
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.verify_batch import VerifyBatch
from diffuspec.coordinator.verify_stage import VerifyStage
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import DiffuspecError, InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, Verdict
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)

_MAX_CROWDING = 0.1  # with more, no drafter reads a prompt at the same time as the target


class DraftStage:
    """Puts every request submitted into the verify stage's queue once, drafted or not."""

    def __init__(
        self,
        drafters: DrafterPool | None,
        target: TargetInfo,
        config: CoordinatorConfig,
        costs: Mapping[str, StepCosts],
        verify: VerifyStage,
        busy: BusyTime,
        tracer: Tracer | None = None,
    ) -> None:
        """`drafters` is None for plain decoding: then a step without a draft is no fallback.

        `costs` are by the drafters' names; `busy` runs while drafts are being made.
        """
        self._is_plain = drafters is None
        self._pool = drafters or DrafterPool()
        self._target = target
        self._max_unread = config.prefill_chunk_tokens
        self._overlaps = config.overlap
        self._works_beside = config.overlap or target.max_sequences > 1
        self._costs = costs
        self._verify = verify
        self._pre_drafting = PreDrafting(costs)
        self._calls = DraftCalls(config.max_draft_seconds, busy, tracer)
        self._state_layers: dict[str, tuple[int, ...]] = {}  # wanted by drafters, by their names

    # ---- in

    def submit(self, request: Request) -> None:
        """Get a draft for a request's coming step: the pre-draft that was a hit, or a new one.

        A step that reads a long prompt has none. The drafter reads the prompt beside the target,
        and what its draft says after the first token is the draft of the second step.
        """
        if request.num_steps == 0:
            self._verify.next_prompt.note_prompt()
        request.enter("drafting", "a draft")
        if request.drafter in self._state_layers:
            request.feed.expect(self._state_layers[request.drafter])
        try:
            self._submit(request)
        except Exception:
            logger.exception(
                "a step of %s goes on without a draft", request.request_id, extra=request.about
            )
            request.early = None
            self._skip_draft([request], "drafter_error")

    def _submit(self, request: Request) -> None:
        hit = request.pre_drafts and request.pre_drafts.hit
        if hit and hit.draft is not None:
            self._take_pre_draft(request, hit, hit.draft)
        elif hit:
            request.lifecycle.waits_for = "a pre-draft on its way"
        elif request.early is not None:
            self._on_early_step(request, request.early)
        elif self._is_plain or request.plan_draft() == 0:
            self._skip_draft([request], None)
        elif self._works_beside and request.reading.is_long:
            if self._costs[request.drafter].crowding <= _MAX_CROWDING:
                request.plan_early_draft()
                self._place(request)
            self._skip_draft([request], None)
        elif request.reading.num_unread > self._max_unread:
            self._skip_draft([request], None)
        else:
            self._place(request)

    def _on_early_step(self, request: Request, early: EarlyDraft) -> None:
        """Get the draft of a request's second step, which was requested before the first."""
        if early.draft is not None:
            self._take_early_draft(request)
        elif early.is_asked:
            request.lifecycle.waits_for = "a draft on its way"
        else:  # a draft for the prefix as it is now is better
            self._pool.drop(request)
            request.early = None
            self._submit(request)

    def look_ahead(self, batch: VerifyBatch) -> None:
        """Have the likeliest outcomes of a verification that begins now pre-drafted."""
        if self._overlaps:
            self._pre_drafting.look_ahead(batch)

    def resolve(self, request: Request, verdict: Verdict) -> None:
        """Match a verdict, before it is committed, with the pre-drafts made for it."""
        self._pre_drafting.resolve(request, verdict)

    def drop(self, request: Request) -> None:
        """Stop drafting for a request that has ended."""
        self._pre_drafting.forget(request)
        self._pool.drop(request)

    # ---- one lane

    async def run_lane(self, lane: DraftLane) -> None:
        """Draft with one drafter until it leaves: drafts that requests wait for, and pre-drafts."""
        while not lane.is_gone:
            lane.has_work.clear()  # before the trial, during which the drafter may leave
            if lane.trial is not None:
                await self._calls.make_trial(lane, lane.trial)
            costs = self._costs[lane.chosen_by]
            if self._works_beside:
                seconds = DraftBatch([*lane.queue], [], costs).seconds
                await self._verify.let_prompts_go_first(seconds)
                if self._verify.expects_prompt(seconds):
                    self._skip_draft(lane.queue.take_now(), None)
            requests = lane.queue.take_now()
            jobs = self._pre_drafting.plan(lane, requests)
            if requests or jobs:
                await self._draft(lane, DraftBatch(requests, jobs, costs))
                await asyncio.sleep(0)  # drafters may not suspend: let consumers have a turn
            else:
                await lane.has_work.wait()
        self._pool.forget(lane)
        self._place_elsewhere(lane)

    async def _draft(self, lane: DraftLane, batch: DraftBatch) -> None:
        """Make the drafts of a batch; every request goes on, with a draft or without."""
        for request in batch.requests:
            if request.early is None:
                request.lifecycle.waits_for = lane.name
            else:
                request.early.is_asked = True
        try:
            drafts = await self._calls.draft(lane, batch)
            if drafts is None:
                _lose(batch.jobs)
            else:
                self._on_drafts(lane, batch, drafts)
                self._verify.next_prompt.note_call(batch.started_at)
        except Exception as error:
            self._on_failure(lane, batch, error)

    # ---- out

    def _on_drafts(self, lane: DraftLane, batch: DraftBatch, drafts: list[Draft]) -> None:
        seconds = time.monotonic() - batch.started_at
        requests, jobs = batch.requests, batch.jobs
        lane.breaker.succeeded()
        if jobs:
            lane.pre_draft_breaker.succeeded()
        batch.learn(seconds)
        for request, draft in zip(requests, drafts[: len(requests)], strict=True):
            if draft.states_wanted is not None:  # by a drafter in another process
                self._state_layers[request.drafter] = draft.states_wanted.layers
            request.note_states(draft)
            if request.early is not None:
                self._on_early_draft(request, request.early, draft)
            elif request.state == "drafting":
                request.times.drafting_seconds = seconds
                self._take_draft(request, draft)
        for job, draft in zip(jobs, drafts[len(requests) :], strict=True):
            if not draft.tree.num_nodes:  # once the prefix is committed, there may be a draft
                is_awaited = job.lose()
            else:
                is_awaited = job.pre_drafts.arrive(job.pre_draft, draft)
            if not is_awaited or job.request.is_finished:
                continue
            if draft.tree.num_nodes:
                self._take_pre_draft(job.request, job.pre_draft, draft)
            else:
                self._submit(job.request)

    def _on_failure(self, lane: DraftLane, batch: DraftBatch, error: Exception) -> None:
        """Let the requests of a failed call go on without drafts, and the drafter rest."""
        trace = None if isinstance(error, DiffuspecError) else error
        message = "%s failed; decoding goes on without its drafts: %s"
        logger.warning(message, lane.name, error, exc_info=trace)
        waiting = [*batch.requests, *_lose(batch.jobs)]
        for request in batch.requests:
            request.early = None
        if batch.jobs:
            lane.pre_draft_breaker.failed()
        if waiting or any(lane.queue):
            lane.breaker.failed()
        self._skip_draft(waiting, "drafter_error")
        if not lane.breaker.is_closed:
            self._place_elsewhere(lane)

    def _place(self, request: Request) -> None:
        lane = self._pool.place(request)
        if lane is None:
            self._pool.try_again(request)
            request.early = None
            self._skip_draft([request], "drafter_unavailable")
        else:
            if request.state == "drafting":
                request.lifecycle.waits_for = lane.turn
            lane.queue.put(request)

    def _place_elsewhere(self, lane: DraftLane) -> None:
        """Let the requests queued for a drafter wait for another, or go on without a draft."""
        for request in lane.queue.take_now():
            self._place(request)

    def _take_draft(self, request: Request, draft: Draft) -> None:
        if not draft.tree.num_nodes:
            self._skip_draft([request], None)  # a drafter may have nothing to propose: no fallback
            return
        try:
            request.take_draft(draft, self._target)
        except InvalidRequestError as error:
            self._drop_draft(request, error)
        else:
            self._drafted(request)

    def _on_early_draft(self, request: Request, early: EarlyDraft, draft: Draft) -> None:
        early.draft = draft
        request.is_known_to_drafter = True
        if request.state == "drafting":
            request.times.drafting_seconds = time.monotonic() - request.times.started_at
            self._take_early_draft(request)

    def _take_early_draft(self, request: Request) -> None:
        try:
            is_taken = request.take_early_draft(self._target)
        except InvalidRequestError as error:
            self._drop_draft(request, error)
            return
        if is_taken:
            self._pool.try_again(request)
            self._pass_on(request)
        else:
            self._submit(request)

    def _take_pre_draft(self, request: Request, hit: PreDraft, draft: Draft) -> None:
        try:
            request.take_pre_draft(draft, hit.num_draft_tokens, self._target)
        except InvalidRequestError as error:
            self._drop_draft(request, error)
        else:
            request.times.drafting_seconds = time.monotonic() - request.times.started_at
            self._drafted(request)

    def _drafted(self, request: Request) -> None:
        if request.num_outcomes != 0 and request.is_known_to_drafter:
            waited = time.monotonic() - request.times.started_at
            self._costs[request.drafter].observe_wait(request.num_draft_tokens, waited)
        request.is_known_to_drafter = True
        self._pool.try_again(request)
        self._pass_on(request)

    def _drop_draft(self, request: Request, error: InvalidRequestError) -> None:
        name = request.request_id
        logger.warning("a draft for %s is dropped: %s", name, error, extra=request.about)
        self._skip_draft([request], "invalid_draft")

    def _skip_draft(self, requests: Iterable[Request], reason: str | None) -> None:
        for request in requests:
            if request.state == "drafting":  # neither ended nor passed on
                request.skip_draft(reason)
                self._pass_on(request)

    def _pass_on(self, request: Request) -> None:
        request.times.ready_at = time.monotonic()
        request.enter("verifying", "the verifier")
        self._verify.queue.put(request)


def _lose(jobs: Iterable[PreDraftJob]) -> list[Request]:
    """Give pre-drafts up; return the requests that wait for one of them."""
    return [job.request for job in jobs if job.lose()]
