"""Requests that have ended are let go of, whatever else happens in that moment."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fakes import HangingDrafter
from tests.support.stage import on_stage

pytestmark = pytest.mark.virtual_time


class Hanging(HangingDrafter):
    async def release(self, request_id: str) -> None:
        pass


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_slot_is_freed_also_while_a_draft_call_is_being_cancelled(num_turns):
    drafter = Hanging()
    async with on_stage(drafter) as stage:
        drafted = stage.start(request_id="a")
        await drafter.is_asked.wait()
        waiting = stage.start(request_id="b")
        await asyncio.sleep(0)
        stage.coordinator.cancel("a")
        for _ in range(num_turns):
            await asyncio.sleep(0)
        stage.coordinator.cancel("b")
        await asyncio.wait([drafted, waiting])
        assert await stage.coordinator.drain(1), "nobody holds a slot any more"
