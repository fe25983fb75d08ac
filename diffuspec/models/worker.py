"""Runs a role's blocking work in a thread of its own, or inline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_threads_pay = True  # in this process


def work_inline() -> None:
    """Have all workers that are made from now on work in the event loop's thread.

    For a process that has one processor and serves nothing but its models: threads only take turns
    there.
    """
    global _threads_pay
    _threads_pay = False


class Worker:
    """Runs one call at a time.

    A thread keeps the event loop free and lets roles work at the same time. Switching to it and
    back takes 0.3 to 0.6 ms where processors sleep between calls, so roles that never overlap work
    inline.
    """

    def __init__(self, name: str, is_inline: bool) -> None:
        has_thread = _threads_pay and not is_inline
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name) if has_thread else None

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call; return its result or raise its exception."""
        if self._executor is None:
            return work(*args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def post(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have a call run before all that come later; do not wait for it. It may not raise."""
        if self._executor is None:
            work(*args, **kwargs)
        else:
            self._executor.submit(lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Wait for the running call, then stop the thread."""
        if self._executor is not None:
            self._executor.shutdown()
