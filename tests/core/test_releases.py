"""Requests that have ended are released at the workers."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fakes import HangingDrafter
from tests.support.stage import on_stage, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


class HangingAtDrafts(HangingDrafter):
    """Releases requests at once."""

    async def release(self, request_id: str) -> None:
        pass


@pytest.mark.parametrize("num_turns", range(6))
async def test_a_slot_is_freed_while_a_draft_call_is_being_cancelled(num_turns):
    drafter = HangingAtDrafts()
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
        assert await stage.coordinator.drain(1), "no request holds a slot"


async def test_a_finished_request_is_released_at_both_roles():
    async with on_stage() as stage:
        await stage.tokens()
        await until(lambda: not stage.verifier.held and stage.drafter.released)
        assert stage.metric("num_requests_running") == 0
        await until(lambda: not stage.leftovers())


async def test_a_drafter_that_hangs_at_a_release_delays_no_request():
    async with on_stage(max_sequences=1) as stage:

        async def never(request_id: str) -> None:
            await asyncio.Event().wait()

        stage.drafter.release = never
        for prompt in ([7], [8]):
            assert await stage.tokens(prompt) == stage.plain(prompt)


async def test_a_verifier_that_fails_at_a_release_stops_no_request():
    async with on_stage(max_sequences=1) as stage:
        stage.verifier.release_error = OSError("connection lost")
        for prompt in ([7], [8]):
            assert await stage.tokens(prompt) == stage.plain(prompt)
