"""Runs a role's blocking work in a thread of its own, or inline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_SHORT_SECONDS = 0.1  # an event loop that is blocked this long at a time still serves well

_may_keep_loop = False  # setting of the whole process


def keep_loop_for_short_calls() -> None:
    """Have the workers of this process make short calls inline.

    For a process that has one processor and serves nothing but its models: threads only take turns
    there.
    """
    global _may_keep_loop
    _may_keep_loop = True


class Worker:
    """Runs one call at a time.

    A thread keeps the event loop free and lets roles work at the same time. Switching to it and
    back takes 0.3 to 0.6 ms where processors sleep between calls, so roles that never overlap work
    inline.
    """

    def __init__(self, name: str, is_inline: bool) -> None:
        self._executor = None if is_inline else ThreadPoolExecutor(1, thread_name_prefix=name)
        self._in_thread: set[Future[Any]] = set()  # calls that have not ended
        self._seconds = _SHORT_SECONDS  # duration of the latest call

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call; return its result or raise its exception."""
        if (executor := self._executor_for_next()) is None:
            return self._timed(lambda: work(*args, **kwargs))
        call = self._submit(executor, lambda: self._timed(lambda: work(*args, **kwargs)))
        return await asyncio.wrap_future(call)

    def post(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a call run before all that come later; do not wait for it. It may not raise."""
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
        """Return the thread for the next call; None if that is to be made inline."""
        if _may_keep_loop and not self._in_thread and self._seconds < _SHORT_SECONDS:
            return None
        return self._executor

    def _timed(self, work: Callable[[], T]) -> T:
        started = time.monotonic()
        try:
            return work()
        finally:
            self._seconds = time.monotonic() - started
