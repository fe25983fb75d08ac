"""The status of requests: state, since when and what they wait for, on request and in the log."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
from collections.abc import Sequence
from contextlib import aclosing

import pytest

from diffuspec.core.errors import VerifierError, VerifierUnavailableError
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.telemetry import context
from diffuspec.telemetry.logs import JsonLines
from tests.support.stage import FOREVER, PROMPT, SHORT, Stage, on_stage, until

pytestmark = pytest.mark.virtual_time


def places(stage: Stage) -> dict[str, tuple[str, str]]:
    return {one.request_id: (one.state, one.waits_for) for one in stage.coordinator.requests()}


async def test_the_status_of_a_request_names_its_state_and_what_it_waits_for() -> None:
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


async def test_the_status_during_prefill_names_the_tokens_left_to_read() -> None:
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


async def test_the_status_during_an_outage_names_the_verifier(quiet: None) -> None:
    async with on_stage(None) as stage:
        stage.verifier.error = VerifierUnavailableError("gone")
        task = stage.start(sampling=FOREVER)
        await until(lambda: places(stage).get("request-1", ("", ""))[1].endswith("unavailable"))
        task.cancel()
        await asyncio.wait([task])


async def test_the_log_of_a_finished_request_names_its_trace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    trace_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with on_stage() as stage:
        context.follow_trace(f"00-{trace_id}-00f067aa0ba902b7-01")  # the loop runs already
        await stage.start(request_id="a")
    [record] = [r for r in caplog.records if "request a-1" in r.getMessage()]
    line = contextvars.Context().run(JsonLines().format, record)
    assert json.loads(line)["trace_id"] == trace_id


async def test_the_log_of_a_finished_request_names_the_seconds_in_each_state(
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


async def test_the_log_has_one_line_for_each_request_and_no_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with on_stage(max_sequences=2) as stage:
        await stage.tokens(request_id="done")
        async with aclosing(stage.stream(PROMPT, FOREVER, request_id="gone")) as stream:
            await anext(stream)
        stage.verifier.error = VerifierError("device lost")
        with pytest.raises(VerifierError):
            await stage.tokens()
    lines = [r.getMessage() for r in caplog.records if r.name == "diffuspec.scheduler.request"]
    done, gone, failed = [line.rpartition(" (")[0] for line in lines]
    assert done == "request done-1: 5 prompt tokens, 24 output tokens, length"
    assert gone.startswith("request gone-2: 5 prompt tokens, ") and gone.endswith(", cancelled")
    assert failed == "request request-3: 5 prompt tokens, 0 output tokens, VerifierError"


async def test_lines_about_a_request_carry_the_id_that_its_client_knows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with on_stage() as stage:
        await asyncio.gather(stage.tokens(request_id="a"), stage.tokens(request_id="b"))
    lines = {r.__dict__["request_id"] for r in caplog.records if "output tokens" in r.getMessage()}
    assert lines == {"a", "b"}


async def test_the_loop_is_in_the_context_of_no_request() -> None:
    context.request_id.set("the first")
    seen = []
    async with on_stage() as stage:
        verify = stage.verifier.verify

        async def watched(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            seen.append(context.request_id.get())
            return await verify(requests)

        stage.verifier.verify = watched  # type: ignore[method-assign]
        await stage.tokens()
    assert set(seen) == {""}
