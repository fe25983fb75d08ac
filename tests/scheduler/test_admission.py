"""Which requests start, wait or are refused, and how a coordinator drains."""

from __future__ import annotations

import asyncio

import pytest

from diffuspec.core.errors import OverloadedError, RequestCancelledError
from diffuspec.core.params import SamplingParams
from diffuspec.scheduler.admission import Admission
from diffuspec.telemetry.metrics import Metrics
from tests.support.stage import FOREVER, make_request, on_stage, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def test_requests_are_admitted_in_the_order_they_came():
    async with on_stage(None, max_sequences=1) as stage:
        tasks = [stage.start([n], SamplingParams(max_tokens=2)) for n in range(1, 6)]
        await asyncio.gather(*tasks)
        prompts = [batch[0].prefix[0] for batch in stage.verifier.batches]
        assert prompts == sorted(prompts)


async def test_a_full_queue_refuses_requests_until_it_has_room_again():
    async with on_stage(None, max_sequences=1, max_waiting=1) as stage:
        stage.verifier.gate.close()
        tasks = [stage.start() for _ in range(2)]
        await stage.verifier.gate.arrival()
        with pytest.raises(OverloadedError, match="1 requests are waiting"):
            await stage.tokens()
        stage.verifier.gate.open()
        assert await asyncio.gather(*tasks) == [stage.plain()] * 2
        assert await stage.tokens() == stage.plain()


async def test_without_a_queue_a_request_may_follow_another_at_once():
    async with on_stage(max_sequences=1, max_waiting=0) as stage:
        for _ in range(5):
            assert await stage.tokens() == stage.plain()


def test_a_request_gets_the_lowest_slot_that_is_free() -> None:
    admission = Admission(3, 64, Metrics())
    requests = [make_request() for _ in range(5)]
    for request in requests:
        admission.submit(request)
    assert admission.admit() == requests[:3] and not admission.admit()
    assert [request.slot for request in requests[:3]] == [0, 1, 2]
    admission.leave(requests[1])
    admission.leave(requests[0])
    assert admission.admit() == requests[3:]
    assert [request.slot for request in requests[3:]] == [0, 1]


def test_a_waiting_request_that_leaves_is_not_admitted() -> None:
    admission, requests = Admission(1, 64, Metrics()), [make_request() for _ in range(2)]
    for request in requests:
        admission.submit(request)
    admission.leave(requests[0])
    assert admission.admit() == requests[1:] and list(admission) == requests[1:]
    assert admission.is_running(requests[1]) and not admission.is_running(requests[0])


# ---- draining


async def test_draining_lets_requests_finish_and_refuses_new_ones():
    async with on_stage(max_sequences=1) as stage:
        stage.verifier.gate.close()
        tasks = [stage.start([n]) for n in range(3)]
        await stage.verifier.gate.arrival()
        draining = asyncio.create_task(stage.coordinator.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="shutting down"):
            await stage.tokens()
        stage.verifier.gate.open()
        assert await draining is True
        assert [await task for task in tasks] == [stage.plain([n]) for n in range(3)]


async def test_draining_aborts_requests_that_do_not_finish_in_time():
    async with on_stage(max_sequences=1) as stage:
        running, waiting = stage.start([1], FOREVER), stage.start([2])
        await until(lambda: len(stage.verifier.batches) > 2)
        stage.verifier.gate.close()
        await stage.verifier.gate.arrival()
        assert await stage.coordinator.drain(0.01) is False
        for task in (running, waiting):
            with pytest.raises(RequestCancelledError, match=r"0\.01 s after the notice"):
                await task
        stage.verifier.gate.open()
        await until(lambda: not stage.verifier.held)


async def test_draining_an_idle_coordinator_takes_no_time():
    async with on_stage() as stage:
        assert await stage.coordinator.drain(0.0) is True
