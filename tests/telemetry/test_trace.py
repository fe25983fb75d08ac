"""The trace file, as a viewer reads it."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import ConfigError, DrafterError, VerifierUnavailableError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.telemetry.trace import Tracer, numbered
from tests.support.fakes import FakeDrafter, FakeVerifier, oracle_of, sometimes_right
from tests.support.stage import PROMPT, Stage

LONG = SamplingParams(max_tokens=60, ignore_eos=True)
PRE_DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=4, num_outcomes=4)


def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the spans of each lane, in order of time."""
    events = json.loads(path.read_text())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[names[event["tid"]]].append(event)
    for spans in lanes.values():
        spans.sort(key=lambda event: (event["ts"], -event["dur"]))
    return dict(lanes)


def assert_nested(spans: list[dict[str, Any]]) -> None:
    """Assert that of any two spans one contains the other or they are disjoint."""
    open_until: list[int] = []
    for span in spans:
        start, end = span["ts"], span["ts"] + span["dur"]
        while open_until and open_until[-1] <= start:
            open_until.pop()
        assert not open_until or end <= open_until[-1], span
        open_until.append(end)


async def trace_requests(path: Path, num_requests: int = 3, **config: Any) -> Stage:
    verifier = FakeVerifier()
    drafter = FakeDrafter(oracle_of(verifier), sometimes_right, foresight=0.6)
    tracer = Tracer(path)
    settings = CoordinatorConfig(overlap=True, **config)
    async with Coordinator(
        verifier, drafter, settings, DraftLengthConfig(), tracer=tracer
    ) as coordinator:
        stage = Stage(coordinator, verifier, drafter)
        tasks = [stage.start([*PROMPT, n], LONG, PRE_DRAFTED) for n in range(num_requests)]
        for task in tasks:
            await task
    tracer.close()
    return stage


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


async def test_hits_and_misses_are_shown_and_coloured(tmp_path):
    path = tmp_path / "trace.json"
    await trace_requests(path, num_requests=1)
    spans = read(path)["request slot 0"]
    colours = {span["name"]: span.get("cname") for span in spans}
    assert colours["pre-draft hit"] == "good" and colours["pre-draft miss"] == "bad"
    steps = [span for span in spans if span["name"] == "step"]
    assert sum(step["args"]["committed"] for step in steps) == 60
    assert {step["args"]["request"] for step in steps} == {"request-1"}


async def test_failures_are_shown(tmp_path):
    path = tmp_path / "trace.json"
    tracer = Tracer(path)
    verifier = FakeVerifier()
    drafter = FakeDrafter(oracle_of(verifier), sometimes_right)
    drafter.error = DrafterError("no memory")
    settings = CoordinatorConfig(max_verifier_outage_seconds=0)
    verifier.error = VerifierUnavailableError("gone")
    async with Coordinator(
        verifier, drafter, settings, DraftLengthConfig(), tracer=tracer
    ) as coordinator:
        with pytest.raises(VerifierUnavailableError):
            await Stage(coordinator, verifier, drafter).tokens()
    tracer.close()
    lanes = read(path)
    assert [span["name"] for span in lanes["drafter"]] == ["failed"]
    assert [span["name"] for span in lanes["verifier"]] == ["failed"]


def test_spans_beyond_the_bound_are_dropped_and_counted(tmp_path):
    path = tmp_path / "trace.json"
    tracer = Tracer(path, max_events=3)
    for n in range(10):
        tracer.span("verifier", "verify", n, n + 1)
    tracer.close()
    tracer.close()
    tracer.span("verifier", "verify", 20, 21)
    last = json.loads(path.read_text())[-1]
    assert last["args"] == {"num_events": 3, "num_dropped_events": 7}
    assert len(read(path)["verifier"]) == 3


def test_a_killed_process_leaves_a_trace_that_lacks_only_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("diffuspec.telemetry.trace._FLUSH_SECONDS", 0.0)
    path = tmp_path / "trace.json"
    tracer = Tracer(path)
    tracer.span("verifier", "verify", 0, 1)
    events = json.loads(path.read_text().removesuffix(",\n") + "]")
    tracer.close()
    assert [event["name"] for event in events if event["ph"] == "X"] == ["verify"]


def test_each_start_has_its_own_file():
    path = Path("runs/trace.json")
    assert [str(numbered(path, n)) for n in (1, 2, 3)] == [
        "runs/trace.json",
        "runs/trace.2.json",
        "runs/trace.3.json",
    ]


def test_absent_arguments_and_colours_are_left_out(tmp_path):
    path = tmp_path / "trace.json"
    tracer = Tracer(path)
    tracer.span("a", "b", 0.0, 1.0, None, {"known": 1, "unknown": None})
    tracer.span("a", "c", 2.0, 1.0)
    tracer.close()
    first, second = sorted(read(path)["a"], key=lambda span: span["name"])
    assert first["args"] == {"known": 1} and first["dur"] == 1_000_000 and "cname" not in first
    assert second["dur"] == 0 and "args" not in second


async def test_a_full_disk_ends_the_trace_but_no_request(caplog, monkeypatch):
    monkeypatch.setattr("diffuspec.telemetry.trace._FLUSH_SECONDS", 0.0)
    await trace_requests(Path("/dev/full"))
    assert [record.message for record in caplog.records] == [
        "the trace to /dev/full ends here: [Errno 28] No space left on device"
    ]


def test_a_full_disk_at_the_end_is_only_warned_of(caplog):
    tracer = Tracer(Path("/dev/full"))
    tracer.span("verifier", "verify", 0, 1)
    tracer.close()
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_opened_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot write a trace to"):
        Tracer(tmp_path / "missing" / "trace.json")
