"""The events of the loop: what has happened comes in order, and ends a wait."""

from __future__ import annotations

import asyncio
import math
import time

import pytest

from diffuspec.scheduler.loop import Events

pytestmark = pytest.mark.virtual_time


def happened() -> None:
    """An event."""


def happened_too() -> None:
    """Another one."""


async def test_all_that_has_happened_is_taken_once_in_the_order_it_came() -> None:
    events = Events()
    for event in (happened, happened_too, happened):
        events.put(event)
    assert [*await events.take(until=math.inf)] == [happened, happened_too, happened]
    assert [*await events.take(until=time.monotonic())] == []


async def test_a_wait_ends_with_an_event() -> None:
    events = Events()
    waiting = asyncio.create_task(events.take(until=math.inf))
    await asyncio.sleep(1)
    assert not waiting.done()
    events.put(happened)
    assert [*await waiting] == [happened]


async def test_a_wait_for_nothing_ends_at_its_time_limit() -> None:
    events = Events()
    waiting = asyncio.create_task(events.take(until=time.monotonic() + 1))
    await asyncio.sleep(0.75)
    assert not waiting.done()
    assert [*await waiting] == []


async def test_a_cancelled_wait_loses_no_event() -> None:
    events = Events()
    waiting = asyncio.create_task(events.take(until=math.inf))
    await asyncio.sleep(1)
    events.put(happened)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert [*await events.take(until=math.inf)] == [happened]


async def test_events_that_were_not_looked_at_are_kept():
    events, happened_too = Events(), lambda: None
    events.put(happened)
    events.put(happened_too)
    assert next(await events.take(until=math.inf)) is happened
    assert [*await events.take(until=math.inf)] == [happened_too]
