"""A session: one engine, its requests, and its current step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from diffuspec.algorithm.draft_tree import best_chain
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import EMPTY_DRAFT, Draft
from diffuspec.draft_server.answers import likeliest, outcome_table, row_message
from diffuspec.draft_server.dispatcher import Dispatcher, DraftJob
from diffuspec.draft_server.engine_requests import Advance, EngineRequests
from diffuspec.draft_server.held_tokens import HeldTokens
from diffuspec.draft_server.metrics import SessionStats
from diffuspec.draft_server.planner import Planner, Sent
from diffuspec.draft_server.pre_drafts import PreDrafts
from diffuspec.draft_server.request import EngineRequest, ReadyDraft
from diffuspec.draft_server.tenants import Tenant
from diffuspec.draft_server.validation import check_step
from diffuspec.v1.draft_service_pb2 import (
    DRAFT_FORM_TREE,
    DRAFT_SOURCE_AHEAD,
    DRAFT_SOURCE_FAILED,
    DRAFT_SOURCE_FRESH,
    DRAFT_SOURCE_LATE,
    DRAFT_SOURCE_NOT_WORTH_IT,
    DRAFT_SOURCE_REST,
    DRAFT_SOURCE_UNKNOWN_BASE,
    DraftSource,
    EngineStep,
    Hello,
    OutcomeTable,
    StepDrafts,
)

_ANSWER_SECONDS = 0.0005  # time before the deadline at which an answer is sent
_LEAST_SECONDS, _MOST_SECONDS = 1e-6, 3600.0  # other times of a step are no measurements


@dataclass(slots=True)
class _Row:
    """One row of a step, and the draft found for it."""

    request: EngineRequest
    source: DraftSource = DRAFT_SOURCE_NOT_WORTH_IT
    made: ReadyDraft | None = None
    worth: float = 0.0  # expected tokens of `made`
    sent: Draft = EMPTY_DRAFT  # the part of `made` that is worth verifying

    @property
    def num_nodes(self) -> int:
        return self.sent.tree.num_nodes


class Session:
    """Answers the steps of one engine."""

    def __init__(
        self,
        name: str,
        hello: Hello,
        planner: Planner,
        info: TargetInfo,
        dispatcher: Dispatcher,
        tenant: Tenant,
        stats: SessionStats,
        drafter_weight: float | Literal["adaptive"],
        held_tokens: HeldTokens,
    ) -> None:
        """`name` is unique among sessions."""
        self.name = name
        self.lost_place = asyncio.Event()  # another engine has been given its place
        self.on_outcomes: Callable[[OutcomeTable], None] | None = None
        self.planner, self.stats = planner, stats
        self._hello = hello
        self._dispatcher = dispatcher
        self.pre_drafts = PreDrafts(planner, dispatcher, tenant, self._push)
        self._takes_trees = hello.form == DRAFT_FORM_TREE
        self.requests = EngineRequests(name, hello, info, drafter_weight, self._forget, held_tokens)
        self._silent_since = time.monotonic()
        self._is_answering = False
        self._sent: Sent | None = None
        self._step_id = 0
        self._pushed: set[tuple[EngineRequest, tuple[int, ...]]] = set()

    async def step(self, step: EngineStep) -> StepDrafts:
        """Return the answer to a step, within its deadline; call `draft_ahead` once it is sent.

        Raises InvalidRequestError for a step that breaks the protocol; no others may follow.
        """
        self._is_answering = True
        try:
            return await self._answered(step)
        finally:
            self._silent_since, self._is_answering = time.monotonic(), False

    async def _answered(self, step: EngineStep) -> StepDrafts:
        received = time.monotonic()
        check_step(step, self._hello, self._step_id)
        self.pre_drafts.end()
        self.requests.end(step.ended_request_ids)
        advance = await self.requests.take(step.rows)
        self.stats.count_accepted(advance.num_accepted)
        self.stats.count_silent(step.num_silent_steps)
        self._learn(step, advance, received)
        rows = [_Row(request) for request in advance.requests]
        for number in advance.unknown:
            rows[number].source = DRAFT_SOURCE_UNKNOWN_BASE
        known = [row for number, row in enumerate(rows) if number not in advance.unknown]
        unread = sum([row.request.num_unread for row in known])
        reading = self.planner.draft_costs.reading_seconds(unread)
        waited = await self._draft(known, received + step.deadline_seconds)
        answer = self._answer(step, rows, received, waited, min(reading, waited))
        self.stats.count_step(time.monotonic() - received)
        return answer

    def silent_seconds(self, now: float) -> float | None:
        """Return the time since its last step; None while it has requests or waits for drafts."""
        return None if self._is_answering or len(self.requests) else now - self._silent_since

    def draft_ahead(self) -> None:
        """Begin to pre-draft: the answer has been sent, so that drafting cannot delay it."""
        self._dispatcher.wake()

    def _learn(self, step: EngineStep, advance: Advance, received: float) -> None:
        """Learn from what the engine has done since the last answer, if it only verified that.

        If the number of requests has changed, it is unknown how many of them were verified.
        """
        sent, verify, wait = self._sent, step.verify_seconds, step.wait_seconds
        if sent is None or not advance.is_whole or not 0 < sent.num_requests == len(step.rows):
            if step.rows:
                self.planner.skip(len(step.rows))
            return
        if verify < _LEAST_SECONDS or max(verify, wait) > _MOST_SECONDS:
            return
        if step.num_silent_steps:
            self.planner.observe_silence(sent.num_requests, 1 + step.num_silent_steps, verify)
        else:
            busy = self._dispatcher.busy.seconds(received)
            self.planner.observe(sent, advance.num_accepted, verify, wait, busy)

    def close(self) -> None:
        """Remove all requests: the engine has gone."""
        self.pre_drafts.end()
        self.requests.close()
        self.stats.end()

    def _forget(self, requests: Sequence[EngineRequest]) -> None:
        self._dispatcher.forget(requests)
        for request in requests:
            self.stats.end_request(request)

    async def _draft(self, rows: Sequence[_Row], deadline: float) -> float:
        """Find or make a draft for each row. Returns the seconds waited for drafts."""
        lengths = self.planner.lengths([row.request for row in rows])
        missing: list[_Row] = []
        for row in rows:
            row.request.length = lengths.get(row.request.request_id, 0)
            if row.request.length:
                row.made, row.worth = row.request.best()
                if row.made is None or row.made.is_rest:
                    missing.append(row)
        waited = await self._draft_now(missing, len(rows), deadline) if missing else 0.0
        for row in rows:
            if row.made is not None and row.source == DRAFT_SOURCE_NOT_WORTH_IT:
                row.source = DRAFT_SOURCE_REST if row.made.is_rest else DRAFT_SOURCE_AHEAD
        return waited

    async def _draft_now(self, rows: Sequence[_Row], num_rows: int, deadline: float) -> float:
        """Wait for the drafts that are worth it. Returns the seconds waited."""
        dispatcher, started = self._dispatcher, time.monotonic()
        may_hang = not self.planner.is_fixed and dispatcher.is_overdue(started)
        if may_hang or not dispatcher.is_available:
            source = DRAFT_SOURCE_LATE if dispatcher.is_available else DRAFT_SOURCE_FAILED
            for row in rows:
                row.source = source if row.made is None else row.source
            return 0.0
        requests, at_hand = [row.request for row in rows], [row.worth for row in rows]
        if not self.planner.may_wait(requests, at_hand, num_rows):
            return 0.0
        jobs = {request: job for request in requests if (job := dispatcher.job_for(request))}
        new = {
            request: DraftJob.after(request, (), request.length, deadline)
            for request in requests
            if request not in jobs
        }
        dispatcher.submit([*new.values()])
        jobs |= new
        left = max(deadline - _ANSWER_SECONDS - started, 0.0)
        if not self.planner.is_fixed:
            left = min(left, dispatcher.patience([*jobs.values()], started))
        await asyncio.wait([job.done for job in jobs.values()], timeout=left)
        for row in rows:
            row.made, _ = row.request.best()
            row.source = _source(row.made, jobs[row.request].done)
        return time.monotonic() - started

    def _answer(
        self, step: EngineStep, rows: Sequence[_Row], received: float, waited: float, reading: float
    ) -> StepDrafts:
        """Cut the drafts to what is worth verifying, mark them as sent, and return them."""
        drafted = [row for row in rows if row.made is not None]
        reaches = [self._reach(row) for row in drafted]
        kept = self.planner.num_nodes(reaches, len(rows))
        for row, reach, number in zip(drafted, reaches, kept, strict=True):
            assert row.made is not None
            limit = min(number, row.request.room)
            row.sent, tokens = likeliest(row.made.draft, reach, limit)
            row.request.acceptance.observe_cut(row.num_nodes, tokens, sum(reach))
            if not row.num_nodes:
                row.source = DRAFT_SOURCE_NOT_WORTH_IT
        now = time.monotonic()
        for row in rows:
            row.request.send(row.sent)
            self.stats.count_row(row.request, row.source, row.num_nodes, now - received)
            if row.made is None:
                row.request.acceptance.observe_no_draft()
        num_nodes, busy = sum([row.num_nodes for row in rows]), self._dispatcher.busy.seconds(now)
        explores = any([row.request.request_id == self.planner.explored for row in drafted])
        self._sent = Sent(len(rows), num_nodes, waited, reading, busy, explores)
        self.pre_drafts.begin(self._sent, [row.request for row in rows if row.request.length])
        self._pushed.clear()
        self._step_id = step.step_id
        return StepDrafts(
            step_id=step.step_id,
            rows=[row_message(row.sent, row.source, self._takes_trees) for row in rows],
            num_silent_steps=self._num_silent_steps(rows),
        )

    def _num_silent_steps(self, rows: Sequence[_Row]) -> int:
        """Return the number of next steps that the engine need not report."""
        most = self._hello.max_silent_steps
        is_known = all([row.source == DRAFT_SOURCE_NOT_WORTH_IT for row in rows])
        if not most or not rows or not is_known or self.pre_drafts.is_drafting():
            return 0
        return min(self.planner.num_silent_steps([row.request for row in rows]), most)

    def _reach(self, row: _Row) -> list[float]:
        """Return the reach of the nodes of a row's draft; 0 for nodes that cannot be sent."""
        assert row.made is not None
        reach = row.request.reach_of(row.made)
        if self._takes_trees:
            return reach
        kept = best_chain(row.made.draft.tree, reach)
        return [value if node in kept else 0.0 for node, value in enumerate(reach)]

    def _push(self) -> None:
        """Send the pre-drafts that have not been sent yet."""
        if self.on_outcomes is None:
            return
        table = outcome_table(self._step_id, self.requests.items(), self._pushed)
        if table.outcomes:
            self.on_outcomes(table)


def _source(made: ReadyDraft | None, done: asyncio.Future[bool]) -> DraftSource:
    """Return where a draft comes from that was waited for, or why there is none."""
    if made is not None:
        return DRAFT_SOURCE_REST if made.is_rest else DRAFT_SOURCE_FRESH
    if not done.done():
        return DRAFT_SOURCE_LATE
    return DRAFT_SOURCE_NOT_WORTH_IT if done.result() else DRAFT_SOURCE_FAILED
