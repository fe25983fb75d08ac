"""Supervision: start something, watch it, drop it when it is lost, and start the next one."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from actors.supervision.background import in_background, log_problem
from diffuspec.core.backoff import Backoff

logger = logging.getLogger(__name__)

Thing = TypeVar("Thing")

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0
_STABLE_SECONDS = 5.0  # something lost after this long in service is replaced without a pause
_MAX_RECOVERIES = 100  # number of recoveries kept


@dataclass(frozen=True, slots=True)
class Recovery:
    """One loss and its repair."""

    reason: str
    seconds: float  # time from the loss until the replacement served
    num_attempts: int


class Supervisor(ABC, Generic[Thing]):
    """Keeps one thing, such as an actor, in service: at most one at a time, one after the other.

    Belongs to one event loop. Errors of the abstract methods are logged and count as a failed
    attempt or as a loss; only halt() ends the supervision.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem = "starting"  # why nothing is in service; "" while something is
        self.num_starts = 0
        self.recoveries: deque[Recovery] = deque(maxlen=_MAX_RECOVERIES)
        self._thing: Thing | None = None
        self._out_since = time.monotonic()
        self._is_closed = False  # once closed, nothing comes into service again
        self._changed = asyncio.Event()
        self._has_tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def seconds_out(self) -> float:
        """Seconds since something was last in service; 0 while something is."""
        return time.monotonic() - self._out_since if self._thing is None else 0.0

    @abstractmethod
    async def bring_up(self) -> Thing:
        """Start a thing and return it once it serves. Raises the error that prevents it."""

    @abstractmethod
    async def watch(self, thing: Thing) -> str:
        """Wait until the thing has to be replaced; return the reason."""

    @abstractmethod
    async def drop(self, thing: Thing | None, reason: str) -> None:
        """End a thing that has to be replaced; None: an attempt to start one failed."""

    async def start(self) -> Thing:
        """Bring up the first thing, in a single attempt. Raises the error that prevents it."""
        thing = await self.bring_up()
        self.num_starts += 1
        self._set(thing, "")
        self._has_tried.set()
        return thing

    def supervise(self) -> None:
        """Keep a thing in service from now on, in the background: start it and replace it."""
        self._task = in_background(self._supervise(), f"the supervisor of {self.name}")

    async def halt(self) -> None:
        """End the supervision; a thing in service keeps running."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def current(self) -> Thing | None:
        """Wait for a thing in service; None once the supervisor is closed."""
        await self._until(lambda: self._thing is not None or self._is_closed)
        return self._thing

    async def replaced(self, thing: Thing) -> None:
        """Wait until this thing is no longer in service."""
        await self._until(lambda: self._thing is not thing)

    async def tried(self) -> None:
        """Wait until the first attempt to start has succeeded or failed."""
        await self._has_tried.wait()

    def close(self, problem: str) -> None:
        """Take whatever is in service out of service for good. Call halt() before."""
        self._is_closed = True
        self._set(None, problem)

    async def _supervise(self) -> None:
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while True:
            if (thing := self._thing) is None:
                thing = await self._bring_up_again(backoff)
            served_since = time.monotonic()
            reason = await self._loss(thing)
            logger.warning("%s is out of service: %s", self.name, reason)
            await self._drop(thing, reason)
            if time.monotonic() - served_since >= _STABLE_SECONDS:
                backoff.succeeded()
            else:
                backoff.failed()

    async def _bring_up_again(self, backoff: Backoff) -> Thing:
        """Start the next thing, pausing between attempts."""
        reason, began, num_attempts = self.problem, time.monotonic(), 1
        while True:
            await asyncio.sleep(backoff.pause_seconds)
            try:
                thing = await self.start()
                break
            except Exception as error:  # Ray's errors have no common base class
                log_problem(f"{self.name} does not start", error)
                await self._drop(None, str(error))
                self._has_tried.set()
                backoff.failed()
                num_attempts += 1
        if self.num_starts > 1:
            self.recoveries.append(Recovery(reason, time.monotonic() - began, num_attempts))
            logger.warning("%s serves again after %.1f s", self.name, self.recoveries[-1].seconds)
        return thing

    async def _loss(self, thing: Thing) -> str:
        try:
            return await self.watch(thing)
        except Exception as error:
            log_problem(f"{self.name} cannot be watched", error)
            return str(error)

    async def _drop(self, thing: Thing | None, reason: str) -> None:
        self._set(None, reason)
        try:
            await self.drop(thing, reason)
        except Exception as error:
            log_problem(f"{self.name} was not ended", error)

    def _set(self, thing: Thing | None, problem: str) -> None:
        if self._thing is not None:
            self._out_since = time.monotonic()
        self._thing, self.problem = thing, problem
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()
