"""Ending a batch by SIGTERM or Ctrl-C in good order."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any


class Interrupted(BaseException):  # like KeyboardInterrupt, no Exception
    """A signal ended the batch."""

    CTRL_C = 128 + signal.SIGINT

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # the convention of shells


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM raise Interrupted within the block, so that what it has started is ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; at SIGTERM or SIGINT cancel it, wait for its end and raise the above."""
    received: list[int] = []

    async def watched() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        await work

    try:
        asyncio.run(watched())
    except asyncio.CancelledError:
        if not received:
            raise
        raise Interrupted(received[0]) from None
