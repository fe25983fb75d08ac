"""The queues between the stages."""

from __future__ import annotations

import asyncio

import pytest

from diffuspec.coordinator.request_queue import RequestQueue
from tests.support.stage import make_request

pytestmark = pytest.mark.virtual_time


async def test_a_queue_returns_all_its_requests_in_the_order_they_came() -> None:
    queue, requests = RequestQueue(), [make_request() for _ in range(3)]
    for request in requests:
        queue.put(request)
    await queue.wait()
    assert queue.take_now() == requests
    assert queue.take_now() == [] and not list(queue)


async def test_a_wait_at_an_empty_queue_ends_with_a_request() -> None:
    queue = RequestQueue()
    waiting = asyncio.create_task(queue.wait())
    await asyncio.sleep(1)
    assert not waiting.done()
    queue.put(make_request())
    await waiting


async def test_a_request_that_was_removed_is_not_taken() -> None:
    queue, request, removed = RequestQueue(), make_request(), make_request()
    queue.put(removed)
    queue.put(request)
    queue.remove(removed)
    queue.remove(removed)
    assert queue.take_now() == [request]


async def test_a_queue_grows_by_a_request_that_comes_in_time() -> None:
    queue, loop = RequestQueue(), asyncio.get_running_loop()
    queue.put(make_request())
    loop.call_later(1, queue.put, make_request())
    assert await queue.grows(2) and len(list(queue)) == 2
    assert not await queue.grows(2)


async def test_queues_may_share_the_event_that_they_set() -> None:
    filled = asyncio.Event()
    queues = RequestQueue(filled), RequestQueue(filled)
    queues[1].put(make_request())
    assert filled.is_set() and not queues[0].take_now()
