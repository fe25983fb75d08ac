"""Admission: creates requests, and decides which run, wait for a slot, or are refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import OverloadedError, ShuttingDownError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.request import Request, Submission
from diffuspec.scheduler.waiting import WaitingRequests
from diffuspec.speculation.acceptance import Acceptance, SharedAcceptance
from diffuspec.speculation.policies import make_policy
from diffuspec.telemetry import context
from diffuspec.telemetry.busy_time import BusyTime
from diffuspec.telemetry.metrics import Metrics


class Beginnings:
    """Creates requests, each with a policy and the acceptance learnt from earlier requests."""

    def __init__(
        self,
        target: TargetInfo,
        pool: DrafterPool | None,
        config: CoordinatorConfig,
        draft_length: DraftLengthConfig,
    ) -> None:
        """Without a pool, no request has drafts."""
        self._target = target
        self._drafters = () if pool is None else pool.names
        self._config = config
        self._draft_length = draft_length
        self._numbers = count(1)
        self._shared: dict[tuple[str, bool], SharedAcceptance] = {}  # keys: drafter, is_greedy

    def make(self, wanted: Submission, drafter: str) -> Request:
        """Return a new request that uses the drafter with this name; see Request."""
        speculation = wanted.speculation
        if not self._config.overlap:
            speculation = replace(speculation, num_outcomes=0)
        if not self._drafters:
            speculation = replace(speculation, policy="off")
        key = drafter, wanted.sampling.is_greedy
        if key not in self._shared:
            self._shared[key] = SharedAcceptance(self._draft_length.max_draft_tokens)
        return Request(
            f"{wanted.client_request_id or 'request'}-{next(self._numbers)}",
            replace(wanted, speculation=speculation),
            self._target.eos_token_ids,
            make_policy(speculation, self._draft_length),
            Acceptance(self._shared[key]),
            drafter,
        )


class Admission:
    """The requests of a coordinator: those that run, and those that wait for a slot."""

    def __init__(self, max_running: int, max_waiting: int, metrics: Metrics) -> None:
        self.max_running = max_running
        self.max_waiting = max_waiting
        self.active = BusyTime()  # time with a request running
        self._metrics = metrics
        self._waiting = WaitingRequests()
        self._running: dict[Request, None] = {}  # an ordered set
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._is_draining = False

    @property
    def running(self) -> tuple[Request, ...]:
        return tuple(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter((*self._waiting, *self._running))

    @property
    def alive(self) -> list[Request]:
        """The requests that have not ended."""
        return [request for request in self if not request.is_finished]

    def check_load(self, *, is_resumed: bool = False) -> None:
        """Raise OverloadedError if no further request of the task's key can be accepted.

        A full queue still takes requests of a key that has fewer in it than an equal share of the
        places, so that no key can keep the others out.

        A resumed request was admitted before and should not be refused now: it is accepted even
        while draining, and beyond the limit by a whole coordinator's requests (max_running +
        max_waiting), whatever its key: resumed requests do not take turns.
        """
        if self._is_draining and not is_resumed:
            raise ShuttingDownError("the coordinator is shutting down; try again later")
        num_decoding = sum(not request.is_finished for request in self._running)
        limit = self.max_waiting + max(self.max_running - num_decoding, 0)
        if is_resumed:
            limit += self.max_waiting + self.max_running
        may_share = not is_resumed and self._waiting.has_share_left(context.key_name.get(), limit)
        if len(self._waiting) >= limit and not may_share:
            raise OverloadedError(f"{len(self._waiting)} requests are waiting; try again later")

    def submit(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.put(request)
        self._is_empty.clear()

    def admit(self) -> list[Request]:
        """Return the requests that may start now, each with its own slot.

        None starts after a suspect until it has ended or waits for its reader: see `choose_ready`.
        """
        admitted = []
        while self._waiting and len(self._running) < self.max_running and not self._has_suspect:
            request, now = self._waiting.take(), time.monotonic()
            taken = {other.slot for other in self._running}
            request.slot = next(slot for slot in count() if slot not in taken)
            self._running[request] = None
            self.active.begin(now)
            request.timeline.admitted_at = now
            self._metrics.observe_admission(now - request.timeline.submitted_at)
            if request.on_begin is not None:
                request.on_begin()
            admitted.append(request)
            if request.losses.is_suspect:
                break
        return admitted

    @property
    def _has_suspect(self) -> bool:
        at_work = "drafting", "verifying"
        return any([r.losses.is_suspect and r.progress.state in at_work for r in self._running])

    def is_running(self, request: Request) -> bool:
        return request in self._running

    def leave(self, request: Request) -> None:
        """Remove a waiting or running request, and free its slot."""
        if request in self._running:
            del self._running[request]
            self.active.end(time.monotonic())
        else:
            self._waiting.remove(request)
        if not self._waiting and not self._running:
            self._is_empty.set()

    async def drain(self, max_seconds: float) -> bool:
        """Refuse new requests; return whether the others ended within `max_seconds`."""
        self._is_draining = True
        try:
            async with asyncio.timeout(max_seconds):
                await self._is_empty.wait()
        except TimeoutError:
            return False
        return True
