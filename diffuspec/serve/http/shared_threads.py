"""Threads for work that takes time, such as tokenising: clients take turns."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from diffuspec.core.places import Places
from diffuspec.telemetry import context

T = TypeVar("T")

_SHORT_BYTES = 16 * 1024  # tokenised in some 10 ms


class SharedThreads:
    """Runs work for the bodies of requests; long bodies wait for threads of their own.

    A short body never waits for a long one. Among the requests that wait, API keys take turns.
    """

    def __init__(self, num_threads: int, max_waiting: int, name: str) -> None:
        """`num_threads`: for short bodies, and half as many for long ones, at least one.

        `max_waiting`: of short bodies, and of long ones.
        """
        self._short = _Threads(num_threads, max_waiting, name)
        self._long = _Threads(max(num_threads // 2, 1), max_waiting, f"{name} long")

    async def run(self, work: Callable[[], T], num_bytes: int) -> T:
        """Return the result of `work` for a body of this size. Raises OverloadedError.

        If this is cancelled, work that has not begun is dropped.
        """
        threads = self._short if num_bytes <= _SHORT_BYTES else self._long
        return await threads.run(work)


class _Threads:
    def __init__(self, number: int, max_waiting: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(number, name)
        self._places = Places(number, max_waiting, "prompts wait to be tokenised")

    async def run(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        client = context.key_name.get()
        await self._places.take(client)

        def free(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._places.free, client)

        running = self._executor.submit(work)
        running.add_done_callback(free)
        return await asyncio.wrap_future(running)
