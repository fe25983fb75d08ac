"""Calls of the roles: their purpose, and when they are expected to end; a drafter's lane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diffuspec.core.backoff import Breaker
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.states import StateRows
from diffuspec.core.types import Draft, Verdict, VerifyRequest
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDraft, PreDrafts
from diffuspec.speculation.values import CallView, DrafterView, DraftTicket

UNNAMED = ""  # the name for a coordinator's drafters if they were given none
# first and last pause, in seconds, between a drafter's failure and its next health check
_PAUSES = 0.5, 30.0


@dataclass(slots=True, eq=False)
class VerifyCall:
    """One call of the verifier."""

    requests: Sequence[Request]
    asked: Sequence[VerifyRequest]
    num_rows: int  # roots and nodes of the trees
    num_decoding: int  # requests without prompt left to read
    num_running: int  # decoding requests when it began
    preempted: Sequence[str] = ()  # requests that lose their pages before
    started_at: float = 0.0  # points in time are of time.monotonic()
    ends_at: float = 0.0  # expected end
    ended_at: float = 0.0
    # the drafters' total busy seconds at the beginning
    draft_busy_seconds: Mapping[str, float] = field(default_factory=dict)

    def rows_fed(self, verdicts: Sequence[Verdict]) -> tuple[int, int]:
        """Return the number of rows that the target processed, and how many were prompt tokens."""
        rows = read = 0
        for asked, request, verdict in zip(self.asked, self.requests, verdicts, strict=True):
            unread = request.prefill.num_unread
            if unread > 1:
                cached = max(verdict.num_cached_tokens, request.prefill.num_read)
                unread = len(asked.prefix) - cached
                unread = max(min(unread, asked.max_read_tokens or unread), 1)
                read += unread
            rows += unread + asked.tree.num_nodes
        return rows, read


@dataclass(slots=True, eq=False)
class DraftJob:
    """One draft of a call."""

    request: Request
    ticket: DraftTicket
    pre_drafts: PreDrafts | None = None  # those of its step; None: the step waits for the draft
    pre_draft: PreDraft | None = None

    @property
    def is_next(self) -> bool:
        """Whether it is for the request's next step: no pre-draft, or that for what happened."""
        return self.pre_drafts is None or self.pre_drafts.hit is self.pre_draft

    def lose(self) -> bool:
        """Give up the draft; return whether it was a pre-draft for what has happened."""
        if self.pre_drafts is None or self.pre_draft is None:
            return False
        return self.pre_drafts.lose(self.pre_draft)


@dataclass(slots=True, eq=False)
class DraftCall:
    """One call of a drafter: drafts that requests wait for, then pre-drafts; or a health check."""

    lane: Lane
    jobs: Sequence[DraftJob]
    # requests whose next step waits for the call
    awaited: set[Request] = field(default_factory=set)
    wanted_by: set[Request] = field(default_factory=set)  # when no request wants the call, it ends
    is_check: bool = False  # its draft tests the drafter, and is dropped
    num_unread: int = 0  # prompt tokens that the drafter reads
    started_at: float = 0.0  # points in time are of time.monotonic()
    ends_at: float = 0.0  # expected end
    ended_at: float = 0.0
    verify_busy_seconds: float = 0.0  # the verifier's total at the beginning
    task: asyncio.Task[list[Draft] | Exception] | None = None
    deadline: asyncio.TimerHandle | None = None

    @property
    def num_positions(self) -> int:
        """Number of masked positions that the drafter computes."""
        return sum([job.ticket.length for job in self.jobs])

    @property
    def num_ahead(self) -> int:
        """Number of its pre-drafts."""
        return sum([job.pre_draft is not None for job in self.jobs])

    @property
    def view(self) -> CallView:
        awaited = [job.ticket for job in self.jobs if job.request in self.awaited and job.is_next]
        return CallView(awaited, self.started_at, self.ends_at)

    async def answer(self) -> list[Draft] | Exception:
        """Call the drafter; return the drafts, or the error."""
        share = StateRows.MAX_BYTES // max(1, len(self.jobs) - self.num_ahead)
        try:
            asked = [
                job.request.draft_request(
                    job.ticket, 0 if job.pre_draft or self.is_check else share
                )
                for job in self.jobs
            ]
            drafts = await self.lane.drafter.draft(asked)
            if len(drafts) != len(asked):
                raise DrafterError(f"{len(drafts)} drafts for {len(asked)} requests")
        except Exception as error:
            return error
        finally:
            self.ended_at = time.monotonic()
        return drafts

    def end(self) -> None:
        """Cancel the call. An event follows, as after an answer."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def drop(self, request: Request) -> None:
        """Remove a request from the call; cancel the call if that was the last one."""
        self.awaited.discard(request)
        self.wanted_by.discard(request)
        if not self.wanted_by:
            self.end()


class Lane:
    """One drafter of a pool: it runs one call at a time, and no lane waits for another."""

    def __init__(
        self, drafter: Drafter, name: str, chosen_by: str = UNNAMED, number: int = 0
    ) -> None:
        self.number = number  # unique in its pool
        self.chosen_by = chosen_by  # the name by which requests choose it
        self.drafter = drafter
        self.name = name
        self.is_gone = False
        self.breaker = Breaker(*_PAUSES)
        # large batches may fail where small ones succeed
        self.pre_draft_breaker = Breaker(*_PAUSES)
        self.call: DraftCall | None = None
        self.held_request_ids: set[str] = set()  # requests whose prefix it may hold

    @property
    def is_available(self) -> bool:
        """Return whether requests may be placed here."""
        return self.breaker.is_closed and not self.is_gone

    def view(self, now: float) -> DrafterView:
        """Return what decisions depend on."""
        ahead = self.pre_draft_breaker
        return DrafterView(
            self.number,
            self.chosen_by,
            self.is_available,
            self.is_gone,
            self.breaker.may_retry(now),
            ahead.is_closed or ahead.may_retry(now),
            len(self.held_request_ids),
            None if self.call is None else self.call.view,
        )
