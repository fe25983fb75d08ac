"""The demo as a user runs it: a cluster of its own, a table, a trace."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from deploy.forked import forked

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def demo(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        forked("-m", "deploy.demo", *arguments),
        cwd=ROOT,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "local"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_three_ways_of_decoding_give_the_same_tokens(tmp_path):
    trace = tmp_path / "new" / "trace.json"
    result = demo("--repeats", 1, "--max-tokens", 16, "--trace", trace)
    assert result.returncode == 0, result.stderr
    assert "same tokens: yes" in result.stdout and str(trace) in result.stdout
    for word in ("coordinator", "drafter 0", "path scorer 0", "verifier rank 0"):
        assert word in result.stdout
    for word in ("plain", "sequential", "overlapped"):
        assert word in result.stdout
    events = json.loads(trace.read_text())
    assert {"verify", "draft"} <= {event["name"] for event in events if event["ph"] == "X"}


def test_a_wrong_pipeline_file_is_refused_before_a_cluster_starts(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text("engine: {preset: large}\n")
    result = demo("--config", path, "--trace", tmp_path / "trace.json")
    assert result.returncode == 2 and "preset must be tiny or smollm2" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_pipeline_too_large_for_this_machine_is_refused_at_once(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "engine: {preset: tiny}\n"
        "placement: {coordinator: {node: {labels: {role: head}}}}\n"
        "deadlines: {placement_seconds: 1800}\n"
    )
    result = demo("--config", path, "--trace", tmp_path / "trace.json")
    assert result.returncode == 2, result.stderr
    assert "coordinator needs a node with labels {'role': 'head'}" in result.stderr
    assert "Traceback" not in result.stderr
