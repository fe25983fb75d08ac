"""Calls of a role's blocking work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from diffuspec.models.worker import Worker


@pytest.mark.parametrize("is_inline", [True, False])
async def test_a_posted_call_runs_before_later_ones(is_inline):
    worker, calls = Worker("role", is_inline), list[int]()
    worker.post(calls.append, 1)
    await worker.run(calls.append, 2)
    worker.post(calls.append, 3)
    worker.close()
    assert calls == [1, 2, 3]


def test_a_posted_call_is_not_waited_for():
    worker, may_end, calls = Worker("role", is_inline=False), threading.Event(), list[bool]()
    worker.post(lambda: calls.append(may_end.wait()))
    assert not calls
    may_end.set()
    worker.close()
    assert calls == [True]


async def test_idle_work_is_repeated_until_it_is_done():
    worker, is_done, left = Worker("role", is_inline=False), threading.Event(), [3, 2, 1]

    def work() -> bool:
        left.pop(0)
        if not left:
            is_done.set()
        return bool(left)

    await worker.run(worker.when_idle, work)
    assert await asyncio.to_thread(is_done.wait, 60)
    worker.close()
    assert not left


async def test_calls_that_wait_come_before_idle_work():
    worker, has_begun, calls = Worker("role", is_inline=False), threading.Event(), list[str]()

    def work() -> bool:
        has_begun.set()
        while not worker.is_awaited:
            pass
        calls.append("idle")
        return False

    await worker.run(worker.when_idle, work)
    assert await asyncio.to_thread(has_begun.wait, 60)
    await worker.run(calls.append, "call")
    worker.close()
    assert calls == ["idle", "call"]


async def test_an_inline_worker_is_never_idle():
    worker = Worker("role", is_inline=True)
    worker.when_idle(lambda: pytest.fail("it worked"))
    await worker.run(int)
    assert not worker.is_awaited
