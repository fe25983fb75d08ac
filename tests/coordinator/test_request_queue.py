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
    assert await queue.take() == requests
    assert queue.take_now() == [] and not list(queue)


async def test_taking_from_an_empty_queue_waits_for_a_request() -> None:
    queue, request = RequestQueue(), make_request()
    taken = asyncio.create_task(queue.take())
    await asyncio.sleep(1)
    assert not taken.done()
    queue.put(request)
    assert await taken == [request]


async def test_a_request_that_was_removed_is_not_taken() -> None:
    queue, request, removed = RequestQueue(), make_request(), make_request()
    queue.put(removed)
    taken = asyncio.create_task(queue.take())
    queue.remove(removed)
    queue.remove(removed)
    await asyncio.sleep(1)
    assert not taken.done()
    queue.put(request)
    assert await taken == [request]


async def test_queues_may_share_the_event_that_they_set() -> None:
    filled = asyncio.Event()
    queues = RequestQueue(filled), RequestQueue(filled)
    queues[1].put(make_request())
    assert filled.is_set() and not queues[0].take_now()
