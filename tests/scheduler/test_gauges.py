"""What the series say of a coordinator at work."""

from __future__ import annotations

import asyncio

import pytest

from diffuspec.core.errors import DrafterError
from tests.support.stage import (
    LONG,
    PROMPT,
    SHORT,
    fake_drafters,
    on_a_pool,
    on_stage,
    slow_down,
    until,
)

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def test_load_is_counted_against_its_limits():
    async with on_stage(None, max_sequences=2, max_waiting=3) as stage:
        stage.verifier.gate.close()
        tasks = [stage.start() for _ in range(3)]
        await stage.verifier.gate.arrival()
        shown = {
            name: stage.metric(name) for name in ("num_requests_running", "num_requests_waiting")
        }
        limits = {
            name: stage.metric(name) for name in ("max_requests_running", "max_requests_waiting")
        }
        assert [*shown.values(), *limits.values()] == [2, 1, 2, 3]
        stage.verifier.gate.open()
        await asyncio.gather(*tasks)
        assert stage.is_empty


async def test_idle_shares_follow_from_busy_and_active_time():
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.3)
        slow_down(stage.drafter, "draft", 0.1)
        await stage.tokens(sampling=LONG)
        active = stage.metric("active_seconds_total")
        busy = {r: stage.metric("role_busy_seconds_total", role=r) for r in ("verifier", "drafter")}
        assert sum(busy.values()) == pytest.approx(active)
        num_steps = stage.metric("step_seconds_count", stage="step")
        assert busy["verifier"] == pytest.approx(0.3 * num_steps)
        await asyncio.sleep(100)
        assert stage.metric("active_seconds_total") == active


async def test_drafters_are_counted_while_they_are_well():
    drafters = fake_drafters(2)
    async with on_a_pool(drafters) as stage:
        counted = "num_drafters_available", "num_drafters_expected"
        assert [stage.metric(name) for name in counted] == [2, 2]
        drafters[0].error = DrafterError("it is gone")
        await asyncio.gather(*(stage.tokens(sampling=SHORT) for _ in range(2)))
        await until(lambda: stage.metric("num_drafters_available") == 1)
        assert stage.metric("fallback_total", reason="drafter_error") > 0


async def test_times_of_a_request_add_up():
    async with on_stage(None, max_sequences=1) as stage:
        slow_down(stage.verifier, "verify", 1.0)
        await asyncio.gather(stage.tokens(), stage.tokens())

        def total(name: str) -> float:
            return stage.metric(f"{name}_seconds_sum")

        assert total("request_queue_time") > 0
        assert total("time_to_first_token") == pytest.approx(
            total("request_queue_time") + total("request_prefill_time")
        )
        assert total("request_inference_time") == pytest.approx(
            total("request_prefill_time") + total("request_decode_time")
        )
        assert total("e2e_request_latency") == pytest.approx(
            total("request_queue_time") + total("request_inference_time")
        )
        assert stage.metric("prompt_tokens_total") == 2 * len(PROMPT)
