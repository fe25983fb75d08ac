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
from diffuspec.draft_server.dispatcher import Ahead, Dispatcher, DraftJob
from diffuspec.draft_server.engine_requests import Advance, EngineRequests
from diffuspec.draft_server.metrics import SessionStats
from diffuspec.draft_server.planner import Planner, Sent
from diffuspec.draft_server.request import EngineRequest, Made
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
_MAX_AHEAD = 64  # pre-drafts in one call


@dataclass(slots=True)
class _Row:
    """One request of a step, and the draft found for it."""

    request: EngineRequest
    source: DraftSource = DRAFT_SOURCE_NOT_WORTH_IT
    made: Made | None = None


class Session:
    """Answers the steps of one engine, and offers pre-drafts between them."""

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
    ) -> None:
        """`name` is unique among sessions."""
        self.name = name
        self.on_outcomes: Callable[[OutcomeTable], None] | None = None
        self.planner, self.stats = planner, stats
        self._hello = hello
        self._dispatcher, self._tenant = dispatcher, tenant
        self._takes_trees = hello.form == DRAFT_FORM_TREE
        self.requests = EngineRequests(name, hello, info, drafter_weight, self._forget)
        self._sent: Sent | None = None
        self._sent_at = 0.0
        self._verifying: list[EngineRequest] = []  # drafting requests of the running step
        self._step_id = 0
        self._pushed: set[tuple[EngineRequest, tuple[int, ...]]] = set()

    @property
    def weight(self) -> float:
        """See Customer."""
        return self._tenant.weight

    def charge(self, seconds: float) -> None:
        """See Customer."""
        self._tenant.charge(seconds)

    # ---- a step

    async def step(self, step: EngineStep) -> StepDrafts:
        """Return the answer to a step, within its deadline; call `draft_ahead` once it is sent.

        Raises InvalidRequestError for a step that breaks the protocol; no others may follow.
        """
        received = time.monotonic()
        check_step(step, self._hello, self._step_id)
        self._verifying = []  # until the answer, there is nothing to pre-draft for
        self.requests.end(step.ended_request_ids)
        found = await self.requests.take(step.rows)
        self.stats.count_accepted(found.num_accepted)
        self.stats.count_silent(step.num_silent_steps)
        self._learn(step, found, received)
        rows = [_Row(one) for one in found.requests]
        for number in found.unknown:
            rows[number].source = DRAFT_SOURCE_UNKNOWN_BASE
        known = [row for number, row in enumerate(rows) if number not in found.unknown]
        reading = self.planner.reading_seconds([row.request for row in known])
        waited = await self._draft(known, received + step.deadline_seconds)
        answer = self._answer(step, rows, received, waited, min(reading, waited))
        self._sent_at = time.monotonic()
        self.stats.count_step(self._sent_at - received)
        return answer

    def draft_ahead(self) -> None:
        """Begin to pre-draft: the answer has been sent, so that drafting cannot delay it."""
        self._dispatcher.wake()

    def _learn(self, step: EngineStep, found: Advance, received: float) -> None:
        """Learn from what the engine has done since the last answer, if it only verified that.

        If the number of requests has changed, it is unknown how many of them were verified.
        """
        sent = self._sent
        if sent is None or len(step.rows) != sent.num_requests:
            return
        if not found.is_whole or not step.verify_seconds:
            return
        if step.num_silent_steps:
            steps = 1 + step.num_silent_steps
            self.planner.observe_silence(sent.num_requests, steps, step.verify_seconds)
            return
        busy = self._dispatcher.busy.seconds(received)
        accepted, seconds = found.num_accepted, step.verify_seconds
        self.planner.observe(sent, accepted, seconds, step.wait_seconds, busy)

    def close(self) -> None:
        """Remove all requests: the engine has gone."""
        self._verifying = []
        self.requests.end_all()
        self.stats.end()

    def _forget(self, requests: Sequence[EngineRequest]) -> None:
        self._dispatcher.forget(requests)
        for request in requests:
            self.stats.end_request(request)

    async def _draft(self, rows: Sequence[_Row], deadline: float) -> float:
        """Find or make a draft for each row. Returns the seconds waited for drafts."""
        lengths = self.planner.lengths([row.request for row in rows])
        missing: list[_Row] = []
        at_hand: list[float] = []
        for row in rows:
            row.request.length = lengths.get(row.request, 0)
            if row.request.length:
                row.made, worth = row.request.best()
                if row.made is None or row.made.is_rest:
                    missing.append(row)
                    at_hand.append(worth)
        waited = 0.0
        may_hang = not self.planner.is_patient and self._dispatcher.is_overdue(time.monotonic())
        if missing and not self._dispatcher.is_available:
            for row in missing:
                row.source = DRAFT_SOURCE_FAILED
        elif missing and may_hang:
            for row in missing:
                row.source = DRAFT_SOURCE_LATE if row.made is None else row.source
        elif missing:
            waited = await self._draft_now(missing, at_hand, len(rows), deadline)
        for row in rows:
            if row.made is not None and row.source == DRAFT_SOURCE_NOT_WORTH_IT:
                row.source = DRAFT_SOURCE_REST if row.made.is_rest else DRAFT_SOURCE_AHEAD
        return waited

    async def _draft_now(
        self, rows: Sequence[_Row], at_hand: Sequence[float], num_rows: int, deadline: float
    ) -> float:
        """Wait for the drafts that are worth it. Returns the seconds waited."""
        coming = {row.request: job for row in rows if (job := self._dispatcher.coming(row.request))}
        requests = [row.request for row in rows]
        lengths = self.planner.lengths_now(requests, at_hand, num_rows)
        wanted = {one: length for one, length in lengths.items() if one not in coming}
        jobs = [self._job(one, (), length, deadline) for one, length in wanted.items()]
        self._dispatcher.submit(jobs)
        awaited = [*jobs, *[job for one, job in coming.items() if one in lengths]]
        if not awaited:
            return 0.0
        started = time.monotonic()
        left = max(deadline - _ANSWER_SECONDS - started, 0.0)
        if not self.planner.is_patient:
            left = min(left, self._dispatcher.patience(awaited, started))
        await asyncio.wait([job.done for job in awaited], timeout=left)
        for row in rows:
            if row.request in lengths:
                row.made, _ = row.request.best()
                is_fresh = row.made is not None and not row.made.is_rest
                if is_fresh:
                    row.source = DRAFT_SOURCE_FRESH
                elif row.made is None:
                    is_done = all([job.done.done() for job in awaited])
                    row.source = DRAFT_SOURCE_FAILED if is_done else DRAFT_SOURCE_LATE
        return time.monotonic() - started

    def _job(
        self,
        request: EngineRequest,
        tokens: tuple[int, ...],
        length: int,
        waited_until: float = 0.0,
    ) -> DraftJob:
        wanted = request.draft_request(tokens, length)
        return DraftJob(request, wanted, length, request.num_tokens, tokens, waited_until)

    def _answer(
        self, step: EngineStep, rows: Sequence[_Row], received: float, waited: float, reading: float
    ) -> StepDrafts:
        """Cut the drafts to what is worth verifying, mark them as sent, and return them."""
        drafted = [row for row in rows if row.made is not None]
        reaches = [self._reach(row) for row in drafted]
        kept = self.planner.num_nodes(reaches, len(rows))
        answers, num_nodes = dict[int, Draft](), 0
        for row, reach, number in zip(drafted, reaches, kept, strict=True):
            assert row.made is not None
            limit = min(number, row.request.room)
            draft, tokens = likeliest(row.made.draft, reach, limit)
            row.request.expectation.observe_cut(draft.tree.num_nodes, tokens, sum(reach))
            row.request.send(draft)
            if not draft.tree.num_nodes:
                row.source = DRAFT_SOURCE_NOT_WORTH_IT
            answers[id(row)] = draft
            num_nodes += draft.tree.num_nodes
        now = time.monotonic()
        for row in rows:
            draft = answers.get(id(row), EMPTY_DRAFT)
            self.stats.count_row(row.request, row.source, draft.tree.num_nodes, now - received)
            if row.made is None:
                row.request.expectation.observe_no_draft()
                row.request.send(EMPTY_DRAFT)
        busy = self._dispatcher.busy.seconds(now)
        self._sent = Sent(len(rows), num_nodes, waited, reading, busy)
        self._verifying = [row.request for row in rows if row.request.length]
        self._sent_at = now
        self._pushed.clear()
        self._step_id = step.step_id
        messages = [
            row_message(answers.get(id(row), EMPTY_DRAFT), row.source, self._takes_trees)
            for row in rows
        ]
        return StepDrafts(
            step_id=step.step_id, rows=messages, num_silent_steps=self._num_silent_steps(rows)
        )

    def _num_silent_steps(self, rows: Sequence[_Row]) -> int:
        """Return the number of next steps that the engine need not report."""
        most = self._hello.max_silent_steps
        is_known = all([row.source == DRAFT_SOURCE_NOT_WORTH_IT for row in rows])
        if not most or not rows or not is_known or self._is_drafting():
            return 0
        return min(self.planner.num_silent_steps([row.request for row in rows]), most)

    def _is_drafting(self) -> bool:
        """Return whether drafts for the coming steps are being made, or are worth making."""
        if not self._verifying:
            return False
        if self.planner.is_patient or self._dispatcher.is_drafting_for(self._verifying):
            return True
        return bool(self._worth_ahead(time.monotonic()))

    def _reach(self, row: _Row) -> list[float]:
        """Return the reach of the nodes of a row's draft; 0 for nodes that cannot be sent."""
        assert row.made is not None
        reach = row.request.reach_of(row.made)
        if self._takes_trees:
            return reach
        kept = best_chain(row.made.draft.tree, reach)
        return [value if node in kept else 0.0 for node, value in enumerate(reach)]

    # ---- between steps

    def ahead(self, now: float) -> Ahead | None:
        """Return the pre-drafts for the likeliest outcomes of the running verification."""
        chosen = self._worth_ahead(now)
        if not chosen:
            return None
        costs = self.planner.costs
        saved = sum([chance * costs.seconds(length, 1) for chance, _, _, length in chosen])
        spent = costs.seconds(sum([length + 1 for *_, length in chosen]), len(chosen))
        jobs = [self._job(one, tokens, length) for _, one, tokens, length in chosen]
        if self.on_outcomes is not None:
            jobs[-1].done.add_done_callback(lambda _: self._push())
        return Ahead(jobs, saved / max(spent, 1e-9))

    def _worth_ahead(self, now: float) -> list[tuple[float, EngineRequest, tuple[int, ...], int]]:
        """Return the outcomes worth drafting for: probability, request, next tokens and length."""
        sent, is_sent = self._sent, self._dispatcher.is_sent
        if sent is None or not self._verifying:
            return []
        seconds = self.planner.verify_seconds(sent.num_rows, sent.num_requests)
        left = max(self._sent_at + seconds - now, 0.0)
        found: list[tuple[float, EngineRequest, tuple[int, ...]]] = []
        for request in self._verifying:
            found += [(chance, request, tokens) for chance, tokens in request.outcomes()]
            if request.sent is EMPTY_DRAFT:  # the present prefix has no known continuations
                found.append((request.expectation.at(1), request, ()))
        found = [one for one in found if one[1].room_after(len(one[2])) and not is_sent(*one[1:])]
        found = sorted(found, key=lambda one: one[0], reverse=True)[:_MAX_AHEAD]
        rooms = [(chance, one, one.room_after(len(tokens))) for chance, one, tokens in found]
        lengths = self.planner.lengths_ahead(rooms, left, sent.num_requests)
        return [(*one, length) for one, length in zip(found, lengths, strict=True) if length]

    def _push(self) -> None:
        """Send the pre-drafts that have not been sent yet."""
        if self.on_outcomes is None:
            return
        table = outcome_table(self._step_id, self.requests.items(), self._pushed)
        if table.outcomes:
            self.on_outcomes(table)
