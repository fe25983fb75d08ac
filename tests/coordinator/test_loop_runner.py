"""Loops run until they return or are stopped, and again after a bug."""

from __future__ import annotations

import asyncio

from diffuspec.coordinator.loop_runner import Loop, LoopRunner


async def test_a_loop_that_broke_off_runs_again_once_its_error_was_reported():
    reported: list[tuple[Loop, str]] = []
    runner = LoopRunner(lambda loop, error: reported.append((loop, str(error))))
    num_runs, is_over = 0, asyncio.Event()

    async def loop() -> None:
        nonlocal num_runs
        num_runs += 1
        if num_runs < 3:
            raise RuntimeError(f"bug {num_runs}")
        is_over.set()

    runner.start(loop)
    await is_over.wait()
    await asyncio.sleep(0)
    assert reported == [(loop, "bug 1"), (loop, "bug 2")]
    assert not runner.is_running


async def test_stopped_loops_have_ended_and_report_no_error():
    reported: list[Exception] = []
    runner = LoopRunner(lambda _, error: reported.append(error))
    ended: list[int] = []

    async def loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    runner.start(loop)
    runner.start(loop)
    await asyncio.sleep(0)
    assert runner.is_running
    await runner.stop()
    assert ended == [1, 1] and not runner.is_running and not reported
