"""Calls of a role's blocking work."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from diffuspec.models import worker as workers
from diffuspec.models.worker import Worker, keep_loop_for_short_calls


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


async def test_short_calls_may_keep_the_loop(monkeypatch):
    monkeypatch.setattr(workers, "_may_keep_loop", False)  # again after the test
    worker, mine = Worker("role", is_inline=False), threading.get_ident()
    assert await worker.run(threading.get_ident) != mine
    keep_loop_for_short_calls()
    assert await worker.run(threading.get_ident) == mine
    await worker.run(time.sleep, 0.11)
    assert await worker.run(threading.get_ident) != mine
    worker.close()


async def test_no_call_keeps_the_loop_before_those_in_the_thread_have_ended(monkeypatch):
    monkeypatch.setattr(workers, "_may_keep_loop", True)
    worker, calls = Worker("role", is_inline=False), list[int]()
    first_may_end, second_may_end = threading.Event(), threading.Event()
    first = asyncio.create_task(worker.run(first_may_end.wait))  # may take long: goes to the thread
    await asyncio.sleep(0)
    worker.post(lambda: calls.append(second_may_end.wait()))
    first_may_end.set()
    await first
    asyncio.get_running_loop().call_later(0.01, second_may_end.set)
    await worker.run(calls.append, 2)
    worker.close()
    assert calls == [True, 2]


async def test_no_call_keeps_the_loop_while_one_before_a_cancelled_one_runs(monkeypatch):
    monkeypatch.setattr(workers, "_may_keep_loop", True)
    worker, may_end = Worker("role", is_inline=False), threading.Event()
    running = asyncio.create_task(worker.run(may_end.wait))
    cancelled = asyncio.create_task(worker.run(lambda: None))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    worker._seconds = 0.0  # the latest call was short
    after = asyncio.create_task(worker.run(threading.get_ident))
    await asyncio.sleep(0)
    assert not after.done()
    may_end.set()
    assert await running and await after != threading.get_ident()
    worker.close()
