"""What a coordinator tells of its requests: their state, since when, and what they wait for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.core.types import Verdict, VerifyRequest
from tests.support.stage import FOREVER, SHORT, Stage, on_stage, until

pytestmark = pytest.mark.virtual_time


def places(stage: Stage) -> dict[str, tuple[str, str]]:
    return {one.request_id: (one.state, one.waits_for) for one in stage.coordinator.requests()}


async def test_requests_are_told_by_state_and_by_what_they_wait_for() -> None:
    async with on_stage(max_sequences=2) as stage:
        stage.drafter.gate.close()
        tasks = [stage.start([n], request_id="abc"[n]) for n in range(3)]
        await stage.drafter.gate.arrival()
        assert places(stage) == {
            "a-1": ("drafting", "drafter"),
            "b-2": ("drafting", "drafter"),
            "c-3": ("waiting", "a slot"),
        }
        stage.verifier.gate.close()
        stage.drafter.gate.open()
        await stage.verifier.gate.arrival()
        assert places(stage)["a-1"] == ("verifying", "the verifier")
        stage.verifier.gate.open()
        await asyncio.gather(*tasks)
        assert not stage.coordinator.requests()


async def test_the_time_in_a_state_counts_from_its_beginning() -> None:
    async with on_stage(None) as stage:
        stage.verifier.gate.close()
        task = stage.start([1, 2, 3])
        await stage.verifier.gate.arrival()
        await asyncio.sleep(7)
        [status] = stage.coordinator.requests()
        assert status.seconds_in_state == pytest.approx(7)
        assert (status.num_prompt_tokens, status.num_output_tokens) == (3, 0)
        stage.verifier.gate.open()
        await task


async def test_a_prompt_that_is_read_in_chunks_says_how_much_is_left() -> None:
    async with on_stage(None, prefill_chunk_tokens=40) as stage:
        seen = []
        verify = stage.verifier.verify

        async def watched(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            seen.append(places(stage)["request-1"][1])
            return await verify(requests)

        stage.verifier.verify = watched  # type: ignore[method-assign]
        await stage.tokens([n % 50 for n in range(100)], SHORT)
        assert seen[:3] == [
            "the verifier",
            "prefill, 60 tokens to read",
            "prefill, 20 tokens to read",
        ]


async def test_an_outage_of_the_verifier_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with on_stage(None) as stage:
        stage.verifier.error = VerifierUnavailableError("gone")
        task = stage.start(sampling=FOREVER)
        await until(lambda: places(stage).get("request-1", ("", ""))[1].endswith("unavailable"))
        task.cancel()
        await asyncio.wait([task])


async def test_the_log_tells_what_a_finished_request_spent_its_time_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with on_stage(max_sequences=1) as stage:
        stage.drafter.gate.close()
        task = stage.start(request_id="a")
        await stage.drafter.gate.arrival()
        await asyncio.sleep(3)
        stage.drafter.gate.open()
        await task
    [line] = [r.getMessage() for r in caplog.records if "request a-1" in r.getMessage()]
    assert "waiting 0.000 s" in line and "drafting 3.000 s" in line and "verifying" in line
