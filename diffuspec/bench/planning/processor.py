"""The processor of a simulated machine: concurrent jobs slow each other down."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

_DONE_SECONDS = 1e-9  # work left by rounding in jobs that end together


@dataclass(slots=True, eq=False)
class _Job:
    seconds_left: float  # if it runs alone
    done: asyncio.Future[None]


class Processor:
    """Runs concurrent jobs, each at 1 / (1 + interference) of its speed beside one other job.

    Every further job slows the others down by as much again. Without interference each job has its
    own processor. The remaining work is updated only when a job begins or ends.
    """

    def __init__(self, interference: float) -> None:
        self._interference = interference
        self._jobs: list[_Job] = []
        self._counted_at = 0.0  # time at which the jobs' seconds_left were updated
        self._timer: asyncio.TimerHandle | None = None  # end of the shortest job

    def begin(self, seconds: float) -> asyncio.Future[None]:
        """Begin a job that takes this long alone; return a future for its end."""
        loop = asyncio.get_running_loop()
        self._count(loop.time())
        job = _Job(seconds, loop.create_future())
        self._jobs.append(job)
        self._set_timer(loop)
        return job.done

    @property
    def _slowdown(self) -> float:
        return 1 + self._interference * (len(self._jobs) - 1)

    def _count(self, now: float) -> None:
        """Subtract the work done since the last update."""
        work = (now - self._counted_at) / self._slowdown if self._jobs else 0.0
        for job in self._jobs:
            job.seconds_left -= work
        self._counted_at = now

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._jobs:
            first = min(self._jobs, key=lambda job: job.seconds_left)
            seconds = first.seconds_left * self._slowdown
            self._timer = loop.call_later(seconds, self._end, first, loop)

    def _end(self, first: _Job, loop: asyncio.AbstractEventLoop) -> None:
        """End the shortest job, and those that end at the same time."""
        self._count(loop.time())
        first.seconds_left = 0.0
        ended = [job for job in self._jobs if job.seconds_left <= _DONE_SECONDS]
        self._jobs = [job for job in self._jobs if job.seconds_left > _DONE_SECONDS]
        self._timer = None
        self._set_timer(loop)
        for job in ended:
            job.done.set_result(None)


class Worker:
    """One role's worker: it runs one call at a time, to its end even if the caller is cancelled.

    So do the threads and processes of the real roles.
    """

    def __init__(self, processor: Processor) -> None:
        self.busy_seconds = 0.0
        self._processor = processor
        self._latest: asyncio.Future[None] | None = None

    async def run(self, seconds: float) -> None:
        """Run a call that takes this long alone, after the calls already queued."""
        while self._latest is not None and not self._latest.done():
            await asyncio.wait([self._latest])
        started = asyncio.get_running_loop().time()
        self._latest = self._processor.begin(seconds)
        await asyncio.shield(self._latest)
        self.busy_seconds += asyncio.get_running_loop().time() - started
