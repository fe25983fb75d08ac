"""Calls of a drafter: their deadlines, and their end when no request wants them any more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest
from tests.support.fakes import FakeDrafter, FakeVerifier, HangingDrafter, always_right, oracle_of
from tests.support.stage import OFF, SHORT, on_a_pool, on_stage, until

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("quiet"),
]


class HangingAtSecond(HangingDrafter):
    """Returns no tokens at its first call, after two seconds; never returns from the others."""

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if self.num_calls:
            return await super().draft(requests)
        self.num_calls = 1
        await asyncio.sleep(2.0)
        return [EMPTY_DRAFT for _ in requests]


# ---- deadlines


async def test_a_call_that_is_late_is_cancelled_and_its_request_goes_on():
    drafter = HangingDrafter()
    async with on_stage(drafter, max_draft_seconds=2.5) as stage:
        began = time.monotonic()
        assert await stage.tokens() == stage.plain()
        assert time.monotonic() - began == pytest.approx(2.5)
        assert drafter.was_cancelled
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        await until(lambda: not stage.verifier.held)


async def test_every_call_has_the_whole_time_however_soon_it_follows_another():
    drafter = HangingAtSecond()
    async with on_stage(drafter, max_draft_seconds=2.5) as stage:
        began = time.monotonic()
        assert await stage.tokens() == stage.plain()
        assert time.monotonic() - began == pytest.approx(2.0 + 2.5)
        assert drafter.num_calls == 2 and drafter.was_cancelled


async def test_calls_of_two_drafters_each_end_at_their_own_deadline():
    drafters = [HangingDrafter(), HangingDrafter()]
    async with on_a_pool(drafters, max_draft_seconds=2.5) as stage:
        requests = [stage.start([1])]
        await asyncio.sleep(1)
        requests.append(stage.start([2]))
        await asyncio.sleep(1.49)
        assert not drafters[0].was_cancelled
        await asyncio.sleep(0.02)
        assert drafters[0].was_cancelled
        await asyncio.sleep(0.98)
        assert not drafters[1].was_cancelled
        await asyncio.sleep(0.02)
        assert drafters[1].was_cancelled
        assert await asyncio.gather(*requests) == [stage.plain([1]), stage.plain([2])]


# ---- calls that nobody wants


async def test_a_call_that_no_request_wants_any_more_is_cancelled_at_once():
    drafter = HangingDrafter()
    async with on_stage(drafter, max_sequences=1) as stage:
        began = time.monotonic()
        task, waiting = stage.start(), stage.start([9], SHORT, OFF)
        await drafter.is_asked.wait()
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: drafter.was_cancelled)
        assert await waiting == stage.plain([9])
        assert time.monotonic() == began
        assert stage.metric("fallback_total", reason="drafter_error") == 0


async def test_a_drafter_is_asked_again_right_after_a_call_that_nobody_wanted():
    async with on_stage() as stage:
        stage.drafter.gate.close()
        task = stage.start([1])
        await stage.drafter.gate.arrival()
        task.cancel()
        await asyncio.wait([task])
        stage.drafter.gate.open()
        assert await stage.tokens([2]) == stage.plain([2])
        assert {r.prefix[0] for batch in stage.drafter.batches[1:] for r in batch} == {2}


async def test_a_call_goes_on_while_one_of_its_requests_wants_it():
    async with on_stage(max_sequences=2) as stage:
        stage.drafter.gate.close()
        gone, kept = stage.start([1]), stage.start([2])
        await stage.drafter.gate.arrival()
        assert len(stage.drafter.batches[0]) == 2
        gone.cancel()
        await asyncio.wait([gone])
        stage.drafter.gate.open()
        assert await kept == stage.plain([2])
        assert [len(r.prefix) for r in stage.drafter.batches[1]] > [1], "the first call served"
        assert stage.metric("fallback_total", reason="drafter_error") == 0


async def test_a_call_ends_when_the_last_of_its_requests_does():
    drafter = HangingDrafter()
    async with on_stage(drafter, max_sequences=2) as stage:
        tasks = [stage.start([n]) for n in range(2)]
        await drafter.is_asked.wait()
        tasks[0].cancel()
        await asyncio.sleep(1)
        assert not drafter.was_cancelled
        tasks[1].cancel()
        await until(lambda: drafter.was_cancelled)
        await until(lambda: stage.is_empty)


async def test_a_coordinator_that_shuts_down_ends_its_calls():
    drafter = HangingDrafter()
    async with on_stage(drafter) as stage:
        task = stage.start()
        await drafter.is_asked.wait()
    assert drafter.was_cancelled
    await asyncio.wait([task])


# ---- wrong answers


async def test_a_drafter_that_returns_too_few_drafts_has_failed():
    class Miscounting(FakeDrafter):
        async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return []

    async with on_stage(Miscounting(oracle_of(FakeVerifier()), always_right)) as stage:
        assert await stage.tokens() == stage.plain()
        assert stage.metric("fallback_total", reason="drafter_error") == 1
