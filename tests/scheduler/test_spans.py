"""The spans that a coordinator draws into its trace."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from diffuspec.core.errors import DrafterError, VerifierUnavailableError
from diffuspec.core.params import SamplingParams
from diffuspec.telemetry.trace import Tracer
from tests.support.stage import (
    FIXED,
    LONG,
    PRE_DRAFTING,
    PROMPT,
    UNAVAILABLE,
    fake_drafters,
    on_a_pool,
    on_stage,
    overlapped,
    slow_down,
    until,
)
from tests.support.trace import assert_nested, read

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def trace_requests(path: Path, num_requests: int = 3) -> None:
    tracer, sampling = Tracer(path), SamplingParams(max_tokens=60, ignore_eos=True)
    async with overlapped(hit_rate=0.6, max_sequences=4, tracer=tracer) as stage:
        tasks = [stage.start([*PROMPT, n], sampling, PRE_DRAFTING) for n in range(num_requests)]
        for task in tasks:
            await task
    tracer.close()


async def test_every_role_has_a_lane_whose_spans_nest(tmp_path):
    path = tmp_path / "trace.json"
    await trace_requests(path)
    lanes = read(path)
    roles = {"drafter", "scorer", "verifier", "coordinator"}
    ways = {"transport to drafter", "transport to verifier"}
    slots = {f"request slot {slot}" for slot in range(3)}
    assert set(lanes) == roles | ways | slots
    for spans in lanes.values():
        assert_nested(spans)
    assert {span["name"] for span in lanes["drafter"]} <= {"draft", "pre-draft"}
    assert {span["name"] for span in lanes["verifier"]} == {"verify"}


async def test_hits_and_misses_are_drawn_in_their_colours(tmp_path):
    path = tmp_path / "trace.json"
    await trace_requests(path, num_requests=1)
    spans = read(path)["request slot 0"]
    colours = {span["name"]: span.get("cname") for span in spans}
    assert colours["pre-draft hit"] == "good" and colours["pre-draft miss"] == "bad"
    steps = [span for span in spans if span["name"] == "step"]
    assert sum(step["args"]["committed"] for step in steps) == 60
    assert {step["args"]["request"] for step in steps} == {"request-1"}


async def test_failed_calls_are_drawn(tmp_path, quiet):
    path = tmp_path / "trace.json"
    tracer = Tracer(path)
    async with on_stage(tracer=tracer, max_verifier_outage_seconds=0) as stage:
        stage.drafter.error = DrafterError("no memory")
        stage.verifier.error = UNAVAILABLE
        with pytest.raises(VerifierUnavailableError):
            await stage.tokens()
    tracer.close()
    lanes = read(path)
    assert [span["name"] for span in lanes["drafter"]] == ["failed"]
    assert [span["name"] for span in lanes["verifier"]] == ["failed"]


async def test_every_drafter_of_a_pool_has_lanes_of_its_own(tmp_path: Path):
    path, drafters = tmp_path / "trace.json", fake_drafters(2)
    tracer = Tracer(path)
    async with on_a_pool(drafters, tracer=tracer, overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(drafters[0], "draft", 0.01)
        slow_down(drafters[1], "draft", 0.03)
        await stage.check_requests(4, speculation=PRE_DRAFTING)
    tracer.close()
    lanes = read(path)
    for number, drafter in enumerate(drafters):
        spans = lanes[f"drafter {number}"]
        assert len(spans) == drafter.num_calls
        assert_nested(spans)
        assert lanes[f"scorer {number}"] and lanes[f"transport to drafter {number}"]
    assert not {"drafter", "scorer", "transport to drafter"} & set(lanes)


async def test_a_trial_is_drawn_apart_from_drafts(tmp_path: Path, quiet):
    path, [drafter] = tmp_path / "trace.json", fake_drafters(1)
    tracer = Tracer(path)
    async with on_a_pool([drafter], tracer=tracer) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        drafter.error = DrafterError("for a while")
        running = stage.start([1], LONG, replace(FIXED, num_draft_tokens=2))
        await until(lambda: stage.metric("fallback_total", reason="drafter_error"))
        drafter.error = None
        await running
    tracer.close()
    assert [span["name"] for span in read(path)["drafter 0"]][:3] == [
        "failed",
        "health check",
        "draft",
    ]


async def test_a_full_disk_ends_the_trace_and_no_request(caplog, monkeypatch):
    monkeypatch.setattr("diffuspec.telemetry.trace._FLUSH_SECONDS", 0.0)
    await trace_requests(Path("/dev/full"))
    warnings = [one.message for one in caplog.records if one.levelno >= logging.WARNING]
    assert warnings == ["the trace to /dev/full ends here: [Errno 28] No space left on device"]
