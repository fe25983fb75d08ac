"""The trace file, as a viewer reads it."""

import json
from pathlib import Path

import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.telemetry.trace import Tracer, numbered
from tests.support.trace import read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.json"


def test_spans_beyond_the_bound_are_dropped_and_counted(path):
    tracer = Tracer(path, max_events=3)
    for n in range(10):
        tracer.span("verifier", "verify", n, n + 1)
    tracer.close()
    tracer.close()
    tracer.span("verifier", "verify", 20, 21)
    last = json.loads(path.read_text())[-1]
    assert last["args"] == {"num_events": 3, "num_dropped_events": 7}
    assert len(read(path)["verifier"]) == 3


def test_a_killed_process_leaves_a_trace_that_lacks_only_its_end(path, monkeypatch):
    monkeypatch.setattr("diffuspec.telemetry.trace._FLUSH_SECONDS", 0.0)
    tracer = Tracer(path)
    tracer.span("verifier", "verify", 0, 1)
    events = json.loads(path.read_text().removesuffix(",\n") + "]")
    tracer.close()
    assert [event["name"] for event in events if event["ph"] == "X"] == ["verify"]


def test_each_start_has_its_own_file():
    names = [numbered(Path("runs/trace.json"), number).name for number in (1, 2, 3)]
    assert names == ["trace.json", "trace.2.json", "trace.3.json"]


def test_absent_arguments_and_colours_are_left_out(path):
    tracer = Tracer(path)
    tracer.span("a", "b", 0.0, 1.0, None, {"known": 1, "unknown": None})
    tracer.span("a", "c", 2.0, 1.0)
    tracer.close()
    first, second = sorted(read(path)["a"], key=lambda span: span["name"])
    assert first["args"] == {"known": 1} and first["dur"] == 1_000_000 and "cname" not in first
    assert second["dur"] == 0 and "args" not in second


def test_a_full_disk_at_the_end_is_only_warned_of(caplog):
    tracer = Tracer(Path("/dev/full"))
    tracer.span("verifier", "verify", 0, 1)
    tracer.close()
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_opened_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot write a trace to"):
        Tracer(tmp_path / "missing" / "trace.json")
