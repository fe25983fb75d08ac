"""One drafter: its calls, their deadline, and the breaker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.draft_batch import DraftBatch
from diffuspec.coordinator.draft_lane import Breaker, DraftLane
from diffuspec.core.errors import DrafterError
from diffuspec.core.types import EMPTY_DRAFT, Draft, DraftRequest
from tests.support.fakes import FakeDrafter, FakeVerifier, HangingDrafter, always_right, oracle_of
from tests.support.stage import OFF, SHORT, make_request, on_stage, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


@pytest.fixture
def clock(monkeypatch):
    """A time that the test advances."""
    moment = [100.0]
    monkeypatch.setattr("diffuspec.coordinator.draft_lane.time.monotonic", lambda: moment[0])
    return moment


def test_the_breaker_pauses_longer_after_each_failure_up_to_a_limit(clock):
    breaker = Breaker()
    assert breaker.is_closed
    pauses = []
    for _ in range(9):
        breaker.failed()
        began = clock[0]
        while not breaker.take_trial():
            clock[0] += 0.25
        pauses.append(clock[0] - began)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    breaker.succeeded()
    assert breaker.is_closed
    breaker.failed()
    clock[0] += 0.5
    assert breaker.take_trial()


def test_the_breaker_allows_one_trial_at_a_time(clock):
    breaker = Breaker()
    assert not breaker.take_trial(), "a closed breaker needs no trial"
    breaker.failed()
    clock[0] += 1
    assert breaker.take_trial() and not breaker.take_trial()
    breaker.give_up_trial()
    assert breaker.take_trial()


# ---- calls


async def test_a_late_call_is_an_error_of_the_drafter():
    drafter = HangingDrafter()
    lane, request = DraftLane(drafter, "drafter"), make_request()
    with pytest.raises(DrafterError, match=r"no draft within 2\.5 seconds"):
        await lane.draft([request.draft_request()], {request}, 2.5)
    assert drafter.was_cancelled


async def test_every_call_has_the_whole_time_however_soon_it_follows_another():
    class Slower(HangingDrafter):
        async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            if self.is_asked.is_set():
                return await super().draft(requests)
            self.is_asked.set()
            await asyncio.sleep(2.0)
            return [EMPTY_DRAFT for _ in requests]

    lane, request, loop = DraftLane(Slower(), "drafter"), make_request(), asyncio.get_running_loop()
    assert await lane.draft([request.draft_request()], {request}, 2.5) == [EMPTY_DRAFT]
    began = loop.time()
    with pytest.raises(DrafterError, match="no draft within"):
        await lane.draft([request.draft_request()], {request}, 2.5)
    assert loop.time() - began == pytest.approx(2.5)


async def test_a_call_that_no_request_wants_any_more_returns_none():
    drafter = HangingDrafter()
    lane, requests = DraftLane(drafter, "drafter"), [make_request(), make_request()]
    draft_requests = [request.draft_request() for request in requests]
    call = asyncio.create_task(lane.draft(draft_requests, {*requests}, 60.0))
    await drafter.is_asked.wait()
    lane.drop(requests[0])
    lane.drop(requests[0])
    await asyncio.sleep(1)
    assert not call.done()
    lane.drop(requests[1])
    assert await call is None and drafter.was_cancelled


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["unwanted", "cancelled besides"])
async def test_the_end_of_a_call_hides_no_cancellation_of_its_task(is_cancelled):
    drafter, request = HangingDrafter(), make_request()
    lane = DraftLane(drafter, "drafter")
    call = asyncio.create_task(lane.draft([request.draft_request()], {request}, max_seconds=9))
    await asyncio.sleep(1)
    lane.drop(request)
    if is_cancelled:
        call.cancel()
    await asyncio.wait([call])
    assert call.cancelled() == is_cancelled
    assert call.cancelling() == is_cancelled


async def test_the_load_of_a_lane_counts_draft_tokens_queued_and_in_a_call():
    lane, requests = DraftLane(HangingDrafter(), "drafter"), [make_request(), make_request()]
    for request in requests:
        request.plan_draft()
    lane.queue.put(requests[0])
    lane.under_way = DraftBatch(requests[1:], [], StepCosts())
    assert lane.load == (8, 0)
    lane.drop(requests[0])
    assert lane.load == (4, 0)


async def test_a_drafter_that_returns_too_few_drafts_has_failed(quiet):
    class Miscounting(FakeDrafter):
        async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return []

    verifier = FakeVerifier()
    async with on_stage(Miscounting(oracle_of(verifier), always_right)) as stage:
        assert await stage.tokens() == stage.plain()
        assert stage.metric("fallback_total", reason="drafter_error") == 1


async def test_a_call_that_is_late_is_cancelled(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_draft_seconds=0.02) as stage:
        assert await stage.tokens() == stage.plain()
        assert drafter.was_cancelled
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        await until(lambda: not stage.verifier.held)


async def test_cancelling_the_only_request_of_a_call_ends_the_call_at_once(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_sequences=1) as stage:
        task, waiting = stage.start(), stage.start([9], SHORT, OFF)
        await drafter.is_asked.wait()
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: drafter.was_cancelled)
        assert await waiting == stage.plain([9])
        assert stage.metric("fallback_total", reason="drafter_error") == 0


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
        assert stage.drafter.num_calls == len(stage.drafter.batches)
