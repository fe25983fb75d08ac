"""A coordinator whose verifier has few pages: all are answered, and nobody takes a page in use.

The fake verifier fails the test if a batch takes more pages than it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.core.pages import PageUse
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.scheduler.coordinator import MAX_UNREAD_OUTPUTS
from tests.support.stage import FIXED, OFF, UNAVAILABLE, Stage, on_stage, rest_of, until

FEW: dict[str, Any] = {"num_pages": 5, "max_sequences": 8}
LONG = SamplingParams(max_tokens=130, ignore_eos=True)
PROMPTS = [[n] * (8 + 5 * n) for n in range(5)]  # of one page, and with the answer of three

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def answer_all(stage: Stage, speculation: SpeculationParams) -> None:
    tasks = [stage.start(prompt, LONG, speculation) for prompt in PROMPTS]
    for prompt, task in zip(PROMPTS, tasks, strict=True):
        assert await task == stage.plain(prompt, LONG)


@pytest.mark.parametrize(
    ("speculation", "overlap"), [(OFF, False), (FIXED, False), (SpeculationParams(), True)]
)
async def test_all_are_answered_in_few_pages(speculation, overlap):
    async with on_stage(overlap=overlap, **FEW) as stage:
        await answer_all(stage, speculation)
        assert stage.metric("num_preemptions_total") > 0
        assert stage.metric("reread_tokens_total") > 0
        await until(lambda: stage.is_empty)
        assert stage.metric("kv_cache_pages_used") == 0


async def test_with_room_for_all_nobody_is_preempted():
    async with on_stage(num_pages=100, max_sequences=8) as stage:
        await answer_all(stage, FIXED)
        assert stage.metric("num_preemptions_total") == 0


async def test_a_request_without_room_counts_as_waiting():
    async with on_stage(None, **{**FEW, "num_pages": 6}) as stage:
        stage.verifier.gate.close()
        answer = SamplingParams(max_tokens=150, ignore_eos=True)
        tasks = [stage.start(prompt, answer, OFF) for prompt in ([1] * 130, [2] * 200)]
        await stage.verifier.gate.arrival()
        running = stage.metric("num_requests_running"), stage.metric("num_requests_waiting")
        assert running == (1, 1)
        [_, waiting] = stage.coordinator.requests()
        assert (waiting.state, waiting.waits_for) == ("waiting", "room in the target's cache")
        stage.verifier.gate.open()
        await asyncio.gather(*tasks)


async def test_the_use_of_pages_is_shown():
    async with on_stage(None, **{**FEW, "num_pages": 8}) as stage:
        stream = stage.stream([1] * 100, LONG, OFF)
        await anext(stream)
        assert stage.metric("kv_cache_usage_perc") == 2 / 8
        await stream.aclose()
        await until(lambda: not stage.verifier.held)
        assert stage.metric("kv_cache_usage_perc") == 0


async def test_a_request_that_waits_for_its_reader_gives_way_and_goes_on_later():
    answer = SamplingParams(max_tokens=150, ignore_eos=True)
    async with on_stage(None, **{**FEW, "num_pages": 4}) as stage:
        slow = stage.stream([1] * 60, answer, OFF)
        tokens = [*(await anext(slow)).token_ids]
        await until(lambda: stage.coordinator.requests()[0].waits_for == "its reader")
        assert stage.coordinator.requests()[0].num_output_tokens == 1 + MAX_UNREAD_OUTPUTS
        assert await stage.tokens([2] * 70, answer, OFF) == stage.plain([2] * 70, answer)
        assert stage.metric("num_preemptions_total") == 1
        assert tokens + await rest_of(slow) == stage.plain([1] * 60, answer)


async def test_what_the_verifier_reports_counts_more_than_what_was_assumed():
    """Pages stay in use while others share them: the verifier holds what is too much then."""
    async with on_stage(None, **FEW) as stage:
        verify, num_held = stage.verifier.verify, 0

        async def hold(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            nonlocal num_held
            if len(requests) > 1 and num_held < 5:
                num_held += 1
                [first] = await verify(requests[:1])
                held = [
                    Verdict((0,), (), is_held=True, num_unread_tokens=len(one.prefix))
                    for one in requests[1:]
                ]
                return [replace(first, pages=PageUse(0, 2)), *held]
            return await verify(requests)

        stage.verifier.verify = hold  # type: ignore[method-assign]
        await answer_all(stage, OFF)


async def test_after_an_outage_all_pages_count_as_free(quiet):
    async with on_stage(None, **FEW) as stage:
        verify, num_calls = stage.verifier.verify, 0

        async def forget(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            nonlocal num_calls
            num_calls += 1
            if num_calls % 50 == 0:
                stage.verifier.num_read.clear()
                raise UNAVAILABLE
            return await verify(requests)

        stage.verifier.verify = forget  # type: ignore[method-assign]
        await answer_all(stage, OFF)
        assert num_calls > 50
