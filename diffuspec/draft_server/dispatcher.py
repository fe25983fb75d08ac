"""The dispatcher: one drafter for all engines, with priority for those that wait for a draft.

While no engine waits, it pre-drafts for the engine where a second of drafting saves the most
seconds, weighted by its tenant's share.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from diffuspec.algorithm.validation import check_draft
from diffuspec.core.backoff import Breaker
from diffuspec.core.errors import DrafterError
from diffuspec.core.interfaces import Drafter, TargetInfo
from diffuspec.core.params import MAX_TREE_NODES
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.draft_server.metrics import DraftMetrics
from diffuspec.draft_server.request import EngineRequest
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import DraftCosts
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.profile import Profile

logger = logging.getLogger(__name__)

_MAX_QUEUED = 1024  # queued drafts that engines wait for
_PATIENCE = 4.0  # a call has failed after this multiple of its expected time
_LEAST_PATIENCE_SECONDS = 0.005
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 10.0  # pauses after a failure


@dataclass(slots=True, eq=False)
class DraftJob:
    """One draft to make: for the prefix of a request at some time, plus tokens that may follow."""

    request: EngineRequest
    wanted: DraftRequest
    length: int
    num_tokens: int  # length of the prefix when the draft was requested
    tokens: tuple[int, ...] = ()
    waited_until: float = 0.0  # deadline of its engine, by time.monotonic(); 0: a pre-draft
    # done once its call has ended: whether the drafter has answered
    done: asyncio.Future[bool] = field(default_factory=lambda: asyncio.Future())

    @classmethod
    def after(
        cls,
        request: EngineRequest,
        tokens: tuple[int, ...],
        length: int,
        waited_until: float = 0.0,
    ) -> DraftJob:
        """Return a job for a request's present prefix followed by these tokens."""
        wanted = request.draft_request(tokens, length)
        return cls(request, wanted, length, request.num_tokens, tokens, waited_until)

    def is_for(self, request: EngineRequest) -> bool:
        """Return whether it is a draft for a request's present prefix."""
        return (
            request is self.request
            and request.num_tokens == self.num_tokens + len(self.tokens)
            and request.tokens_from(self.num_tokens) == self.tokens
        )

    def rank(self, now: float) -> tuple[bool, int, float]:
        """The lowest is drafted first: jobs for which an engine still waits, by their priority."""
        return self.waited_until < now, -self.request.priority, self.waited_until


@dataclass(frozen=True, slots=True)
class PreDraftBatch:
    """Pre-drafts for one engine that could be made in one call."""

    jobs: Sequence[DraftJob]
    value: float  # seconds saved per second of drafting


class PreDraftSource(Protocol):
    """The pre-drafts of one engine, as seen by the dispatcher."""

    def next_batch(self, now: float) -> PreDraftBatch | None:
        """Return what to pre-draft now; None: nothing is worth it."""
        ...

    @property
    def weight(self) -> float:
        """The share of its tenant, divided by the tenant's recent use."""
        ...

    def charge(self, seconds: float) -> None:
        """Account for seconds of pre-drafting."""
        ...


class Dispatcher:
    """Calls the drafter, one call at a time."""

    def __init__(
        self, drafter: Drafter, info: TargetInfo, max_seconds: float, metrics: DraftMetrics
    ) -> None:
        """A call of the drafter that takes longer than max_seconds counts as failed."""
        self.costs = DraftCosts(Interference.assumed(0.0))
        self.busy = BusyTime()
        self._started_at = self._ends_at = 0.0  # start and expected end of the running call
        self.pre_draft_sources: list[PreDraftSource] = []
        self._metrics = metrics
        metrics.queued.read = lambda: len(self._queue)
        self._drafter = drafter
        self._info = info
        self._max_seconds = max_seconds
        self._breaker = Breaker(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        self._queue: list[DraftJob] = []
        self._in_call: Sequence[DraftJob] = ()
        self._releases: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    @property
    def is_available(self) -> bool:
        """Return whether drafts may be requested: the drafter has not just failed."""
        return self._breaker.is_closed or self._breaker.may_retry(time.monotonic())

    def patience(self, jobs: Sequence[DraftJob], now: float) -> float:
        """Return the seconds to wait for jobs queued now; after that the drafter may hang."""
        return max(_PATIENCE * self.seconds_until(jobs, now), _LEAST_PATIENCE_SECONDS)

    def submit(self, jobs: Sequence[DraftJob]) -> None:
        """Queue drafts that an engine waits for. Those beyond the limit are dropped."""
        for job in jobs:
            if len(self._queue) < _MAX_QUEUED:
                self._queue.append(job)
            else:
                job.done.set_result(False)
        self._wake.set()

    def seconds_until(self, jobs: Sequence[DraftJob], now: float) -> float:
        """Return the expected seconds until jobs are done that are running or next in the queue."""
        left = max(self._ends_at - now, 0.0) if self._in_call else 0.0
        return left + self._seconds([job for job in jobs if job not in self._in_call])

    def is_overdue(self, now: float) -> bool:
        """Return whether the running call takes so long that it may have hung."""
        expected = self._ends_at - self._started_at
        return bool(self._in_call) and now - self._started_at > _PATIENCE * expected

    def job_for(self, request: EngineRequest) -> DraftJob | None:
        """Return the queued or running job for a request's present prefix."""
        return next((job for job in (*self._in_call, *self._queue) if job.is_for(request)), None)

    def is_drafting_after(self, request: EngineRequest, tokens: tuple[int, ...]) -> bool:
        """Return whether a draft for the prefix followed by these tokens is being made."""
        return any(
            job.request is request and job.num_tokens == request.num_tokens and job.tokens == tokens
            for job in self._in_call
        )

    def is_drafting_for(self, requests: Collection[EngineRequest]) -> bool:
        """Return whether the running call drafts for any of these requests."""
        return any([job.request in requests for job in self._in_call])

    def wake(self) -> None:
        """Look for work, because an engine has begun to verify."""
        self._wake.set()

    def forget(self, requests: Sequence[EngineRequest]) -> None:
        """Stop drafting for requests that have ended, and free what is cached for them."""
        ended = {*requests}
        self._drop([job for job in self._queue if job.request in ended])
        release = asyncio.create_task(self._release([request.request_id for request in requests]))
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    async def _release(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            try:
                await self._drafter.release(request_id)
            except Exception as error:
                logger.warning("request %r could not be released: %s", request_id, error)

    async def profile(self, max_seconds: float) -> None:
        """Measure the drafter before engines use it."""
        profile = Profile(self._info, max_seconds, max_wait_seconds=max(10 * max_seconds, 10.0))
        for call in await profile.drafter_calls(self._drafter):
            sizes = call.size, call.num_requests, call.num_unread
            self.costs = self.costs.observe(*sizes, call.seconds)
        await profile.release([self._drafter])

    async def run(self) -> None:
        """Draft until cancelled. Requests that are not released by then are not released."""
        try:
            while True:
                jobs = self._next()
                if jobs:
                    await self._call(jobs)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except Exception:
            logger.exception("drafting has ended: restart the server")
            raise
        finally:
            for release in self._releases:
                release.cancel()

    def _next(self) -> Sequence[DraftJob]:
        """Return the jobs of the next call."""
        if not self.is_available:
            self._drop(self._queue)
            return ()
        now = time.monotonic()
        self._drop([job for job in self._queue if not job.is_for(job.request)])
        if self._queue:
            self._queue.sort(key=lambda job: job.rank(now))
            most = self._info.max_sequences
            jobs, self._queue = self._queue[:most], self._queue[most:]
            return jobs
        sources = self.pre_draft_sources
        offers = [
            (source, batch) for source in sources if (batch := source.next_batch(now)) is not None
        ]
        if not offers:
            return ()
        source, batch = max(offers, key=lambda offer: offer[0].weight * offer[1].value)
        source.charge(self._seconds(batch.jobs))
        return batch.jobs

    def _drop(self, jobs: Sequence[DraftJob]) -> None:
        """Take jobs off the queue for which nothing is to be drafted any more."""
        for job in jobs:
            job.done.set_result(False)
        self._queue = [job for job in self._queue if not job.done.done()]

    def _seconds(self, jobs: Sequence[DraftJob]) -> float:
        if not jobs:
            return 0.0
        return self.costs.seconds(sum([job.length for job in jobs]), len(jobs), _num_unread(jobs))

    async def _call(self, jobs: Sequence[DraftJob]) -> None:
        unread = _num_unread(jobs)
        self._in_call, started = jobs, time.monotonic()
        self._started_at, self._ends_at = started, started + self._seconds(jobs)
        is_answered = False
        self.busy.begin(started)
        try:
            async with asyncio.timeout(self._max_seconds):
                drafts = await self._drafter.draft([job.wanted for job in jobs])
            self._check(drafts, jobs)
        except Exception as error:
            self._fail(error)
        else:
            is_answered = True
            self._breaker.succeeded()
            seconds = time.monotonic() - started
            kind = "waited_for" if jobs[0].waited_until else "ahead"
            self._metrics.calls.at(kind).observe(seconds)
            positions = sum([job.length for job in jobs])
            num_refreshed = sum([draft.num_refreshed for draft in drafts])
            sizes = positions, len(jobs), unread
            self.costs = self.costs.observe(*sizes, seconds, num_refreshed)
            for job, draft in zip(jobs, drafts, strict=True):
                job.request.is_read = True
                job.request.keep(job.num_tokens, job.tokens, draft, job.length)
        finally:
            self.busy.end(time.monotonic())
            self._in_call = ()
            for job in jobs:
                if not job.done.done():
                    job.done.set_result(is_answered)

    def _check(self, drafts: Sequence[Draft], jobs: Sequence[DraftJob]) -> None:
        if len(drafts) != len(jobs):
            raise DrafterError(f"{len(jobs)} drafts were asked for, {len(drafts)} came")
        for draft in drafts:
            check_draft(draft, MAX_TREE_NODES, self._info)

    def _fail(self, error: Exception) -> None:
        self._breaker.failed(time.monotonic())
        self._metrics.failures.inc()
        reason = f"no drafts within {self._max_seconds:g} s" if not str(error) else str(error)
        logger.warning("drafting failed, engines go on without drafts for a while: %s", reason)


def _num_unread(jobs: Sequence[DraftJob]) -> int:
    """Return the number of prompt tokens that the drafter reads for these jobs."""
    return sum([request.num_unread for request in {job.request for job in jobs}])
