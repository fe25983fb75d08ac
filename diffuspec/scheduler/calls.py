"""Calls of the roles: their purpose, and when they are expected to end; a drafter's lane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from diffuspec.core.backoff import Breaker
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import Drafter
from diffuspec.core.states import StateRows
from diffuspec.core.types import Draft, DraftRequest, Verdict, VerifyRequest
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDraft, PreDrafts

UNNAMED = ""  # the name for a coordinator's drafters if they were given none
# first and last pause, in seconds, between a drafter's failure and its next trial
_PAUSES = 0.5, 30.0


class PreDraftJob(NamedTuple):
    """A pre-draft requested of a drafter."""

    request: Request
    pre_drafts: PreDrafts  # the verification's pre-drafts
    pre_draft: PreDraft

    def arrive(self, draft: Draft) -> bool:
        """Store the pre-draft; return whether its outcome has happened."""
        return self.pre_drafts.arrive(self.pre_draft, draft)

    def lose(self) -> bool:
        """Give up the pre-draft; return whether its outcome has happened."""
        return self.pre_drafts.lose(self.pre_draft)


@dataclass(slots=True, eq=False)
class VerifyCall:
    """One call of the verifier."""

    requests: Sequence[Request]
    asked: Sequence[VerifyRequest]
    num_rows: int  # roots and nodes of the trees
    num_decoding: int  # requests without prompt left to read
    num_running: int  # decoding requests when it began
    started_at: float = 0.0  # points in time are of time.monotonic()
    ends_at: float = 0.0  # expected end
    ended_at: float = 0.0
    draft_busy_seconds: dict[str, float] = field(default_factory=dict)  # totals at the beginning
    surprise: float = 0.0  # log ratio of its actual to expected seconds

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
class DraftCall:
    """One call of a drafter: drafts that requests wait for, then pre-drafts; or a trial."""

    lane: Lane
    lengths: dict[Request, int]  # lengths of the drafts
    # lengths of drafts that a step waits for
    awaited: dict[Request, int] = field(default_factory=dict)
    jobs: Sequence[PreDraftJob] = ()
    # costs in plain steps of those drafts that test whether drafts pay
    trial_steps: dict[Request, float] = field(default_factory=dict)
    trial: Request | None = None  # a copy of this request's draft request tests the drafter
    started_at: float = 0.0
    ends_at: float = 0.0  # expected end; points in time are of time.monotonic()
    ended_at: float = 0.0
    num_unread: int = 0  # prompt tokens that the drafter reads
    verify_busy_seconds: float = 0.0  # the verifier's total at the beginning
    wanted_by: set[Request] = field(default_factory=set)  # when no request wants the call, it ends
    task: asyncio.Task[list[Draft] | Exception] | None = None
    deadline: asyncio.TimerHandle | None = None

    @property
    def requests(self) -> set[Request]:
        """The requests that it drafts for."""
        trial = [] if self.trial is None else [self.trial]
        return {*self.lengths, *[job.request for job in self.jobs], *trial}

    @property
    def num_positions(self) -> int:
        """Number of masked positions that the drafter computes."""
        ahead = sum([job.pre_draft.num_draft_tokens for job in self.jobs])
        return sum(self.lengths.values()) + ahead

    async def answer(self) -> list[Draft] | Exception:
        """Call the drafter; return the drafts, or the error."""
        try:
            requests = self._draft_requests()
            drafts = await self.lane.drafter.draft(requests)
            if len(drafts) != len(requests):
                raise DrafterError(f"{len(drafts)} drafts for {len(requests)} requests")
        except Exception as error:
            return error
        finally:
            self.ended_at = time.monotonic()
        return drafts

    def _draft_requests(self) -> list[DraftRequest]:
        """Return the requests for the drafter, pre-drafts last."""
        if self.trial is not None:
            return [self.trial.draft_request(max(self.trial.step.num_draft_tokens, 1))]
        share = StateRows.MAX_BYTES // max(1, len(self.lengths))
        wanted = [request.draft_request(length, share) for request, length in self.lengths.items()]
        return wanted + [job.pre_draft.request for job in self.jobs]

    def makes(self, request: Request, pre_draft: PreDraft | None) -> bool:
        """Return whether it makes a pre-draft, or if that is None a draft for the prefix."""
        if pre_draft is None:
            return request in self.lengths
        return any([job.pre_draft is pre_draft for job in self.jobs])

    def seconds_left(self, now: float) -> float:
        """Expected seconds to its end; a late call takes as long again as it is late."""
        return abs(self.ends_at - now)

    def is_overdue(self, now: float) -> bool:
        """Return whether it has taken twice as long as expected."""
        return now - self.started_at > 2 * (self.ends_at - self.started_at)

    def end(self) -> None:
        """Cancel the call. An event follows, as after an answer."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def lose_jobs(self) -> None:
        """Give up its pre-drafts."""
        for job in self.jobs:
            job.lose()

    def drop(self, request: Request) -> None:
        """Remove a request from the call; cancel the call if that was the last one."""
        self.awaited.pop(request, None)
        self.wanted_by.discard(request)
        if not self.wanted_by:
            self.end()


class Lane:
    """One drafter of a pool: it runs one call at a time, and no lane waits for another."""

    def __init__(self, drafter: Drafter, name: str, chosen_by: str = UNNAMED) -> None:
        self.chosen_by = chosen_by  # the name by which requests choose it
        self.drafter = drafter
        self.name = name
        self.is_gone = False
        self.breaker = Breaker(*_PAUSES)
        # large batches may fail where small ones succeed
        self.pre_draft_breaker = Breaker(*_PAUSES)
        self.call: DraftCall | None = None
        self.homed: set[Request] = set()  # requests placed in this lane
        self.known: set[Request] = set()  # requests whose prefix the drafter has read
        self.held_request_ids: set[str] = set()  # requests whose prefix it may hold

    @property
    def is_available(self) -> bool:
        """Return whether requests may be placed here."""
        return self.breaker.is_closed and not self.is_gone

    @property
    def is_idle(self) -> bool:
        return self.call is None and not self.is_gone

    @property
    def load(self) -> tuple[int, int]:
        """Draft tokens of the requests placed here, then requests held; the least comes first."""
        num_tokens = sum([max(request.last_length, 1) for request in self.homed])
        return num_tokens, len(self.held_request_ids)
