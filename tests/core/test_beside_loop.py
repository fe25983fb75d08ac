"""Coroutines that run to their end where an event loop runs already."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from diffuspec.core.beside_loop import call_beside, is_in_loop, run_beside


async def test_what_a_coroutine_returns_or_raises_is_the_callers():
    async def answer(number: int) -> int:
        await asyncio.sleep(0)
        return 10 // number

    assert is_in_loop() and not await asyncio.to_thread(is_in_loop)
    runner = asyncio.Runner()
    assert [run_beside(runner, answer(number)) for number in (1, 2)] == [10, 5]
    with pytest.raises(ZeroDivisionError):
        run_beside(runner, answer(0))
    call_beside(runner.close)


def test_an_interrupt_cancels_the_coroutine():
    ended = []
    main = threading.main_thread().ident
    assert main is not None

    async def wait() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def cell(runner: asyncio.Runner) -> None:
        run_beside(runner, wait())

    loop = asyncio.new_event_loop()  # whose SIGINT is Python's own, as in a notebook
    with asyncio.Runner() as runner, pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(cell(runner))
    loop.close()
    assert ended == [True]
