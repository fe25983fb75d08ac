"""Turns of rows: many at a time, or one alone."""

from __future__ import annotations

import asyncio

import pytest

from deploy.batches.turns import Turns

pytestmark = pytest.mark.virtual_time


async def take(turns: Turns, name: str, log: list[str], *, alone: bool = False) -> None:
    async with turns.taken(alone=alone):
        log.append(f"+{name}")
        await asyncio.sleep(1)
        log.append(f"-{name}")


async def test_a_row_alone_waits_for_those_in_flight_and_later_ones_wait_for_it():
    turns, log = Turns(), list[str]()
    async with asyncio.TaskGroup() as group:
        for name, alone in (("a", False), ("b", False), ("X", True), ("c", False), ("Y", True)):
            group.create_task(take(turns, name, log, alone=alone))
    assert log == ["+a", "+b", "-a", "-b", "+X", "-X", "+Y", "-Y", "+c", "-c"]


async def test_rows_that_give_up_waiting_hold_up_none():
    turns, log = Turns(), list[str]()
    running = asyncio.create_task(take(turns, "a", log))
    await asyncio.sleep(0.1)
    alone = asyncio.create_task(take(turns, "X", log, alone=True))
    later = asyncio.create_task(take(turns, "b", log))
    await asyncio.sleep(0.1)
    alone.cancel()
    await asyncio.gather(running, later)
    assert log == ["+a", "+b", "-a", "-b"]
