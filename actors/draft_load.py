"""The load of a draft server: engines, waiting drafts, and the share of time spent drafting."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from diffuspec.draft_server.service import DraftService

_SAMPLE_SECONDS = 0.1  # a queue lasts for milliseconds, so a single sample says little
_WINDOW_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DraftLoad:
    """The recent load of a draft server."""

    num_engines: int  # engines connected now
    num_queued: float  # mean number of drafts that engines waited for and that had not started
    drafting_share: float  # share of the time, 0 to 1, in which the drafter was busy
    failing_share: float  # share of the time, 0 to 1, in which drafting failed


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float
    busy_seconds: float  # total seconds the drafter has been busy since the server started
    num_queued: float
    is_failing: bool


class DraftLoadMeter:
    """Samples a draft service in the event loop that entered its context.

    Any thread may call `load`.
    """

    def __init__(self, service: DraftService, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        most = round(_WINDOW_SECONDS / _SAMPLE_SECONDS)
        self._samples: deque[_Sample] = deque(maxlen=most)
        self._sampling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.sample()
        self._sampling = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sampling is not None:
            self._sampling.cancel()

    def sample(self) -> None:
        """Record the present state."""
        service, now = self._service, self._clock()
        sample = _Sample(
            now,
            service.dispatcher.busy.seconds(now),
            service.metrics.queued.read(),
            not service.is_healthy(),
        )
        self._samples.append(sample)

    def load(self) -> DraftLoad:
        """Return the load over the last seconds, or since the start if that is shorter."""
        samples = [*self._samples]
        num_engines = len(self._service.sessions)
        if not samples:
            return DraftLoad(num_engines, 0.0, 0.0, 0.0)
        first, last, number = samples[0], samples[-1], len(samples)
        seconds = last.at - first.at
        share = (last.busy_seconds - first.busy_seconds) / seconds if seconds else 0.0
        return DraftLoad(
            num_engines,
            sum([one.num_queued for one in samples]) / number,
            min(max(share, 0.0), 1.0),
            sum([one.is_failing for one in samples]) / number,
        )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            self.sample()
