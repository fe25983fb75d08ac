"""Runs a role's blocking work in its own thread, or inline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SHORT_SECONDS = 0.1  # an event loop can be blocked for this long without harm

_may_keep_loop = False  # a setting for the whole process


def keep_loop_for_short_calls() -> None:
    """Make the workers of this process run short calls inline.

    For a process with one processor that serves only its models: there, threads would only take
    turns.
    """
    global _may_keep_loop
    _may_keep_loop = True


class Worker:
    """Runs one call at a time.

    A thread keeps the event loop free and lets roles work concurrently. Switching to it and back
    takes 0.3 to 0.6 ms if processors sleep between calls, so roles that never overlap work inline.
    """

    def __init__(self, name: str, is_inline: bool) -> None:
        self._executor = None if is_inline else ThreadPoolExecutor(1, thread_name_prefix=name)
        self._in_thread: set[Future[Any]] = set()  # calls that have not finished
        self._seconds = _SHORT_SECONDS  # duration of the latest call

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call; return its result or raise its exception."""
        if (executor := self._executor_for_next()) is None:
            return self._timed(lambda: work(*args, **kwargs))
        call = self._submit(executor, lambda: self._timed(lambda: work(*args, **kwargs)))
        return await asyncio.wrap_future(call)

    def post(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue a call before all later ones, without waiting for it. It must not raise."""
        if (executor := self._executor_for_next()) is None:
            work(*args, **kwargs)
        else:
            self._submit(executor, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Wait for the running call, then stop the thread."""
        if self._executor is not None:
            self._executor.shutdown()

    def _submit(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
        call = executor.submit(work)
        self._in_thread.add(call)
        call.add_done_callback(self._in_thread.discard)
        return call

    def _executor_for_next(self) -> ThreadPoolExecutor | None:
        """Return the thread for the next call; None: run it inline."""
        if _may_keep_loop and not self._in_thread and self._seconds < _SHORT_SECONDS:
            return None
        return self._executor

    def _timed(self, work: Callable[[], T]) -> T:
        started = time.monotonic()
        try:
            return work()
        finally:
            self._seconds = time.monotonic() - started
