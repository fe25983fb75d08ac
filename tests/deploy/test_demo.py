"""The demo as a user runs it: a table and a trace, on a running cluster or on one of its own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.forked import forked

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def demo(*arguments: object, address: str = "local") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        forked("-m", "deploy.demo", *arguments),
        cwd=ROOT,
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        check=False,
    )


def test_three_ways_of_decoding_give_the_same_tokens(cluster, tmp_path):
    trace = tmp_path / "new" / "trace.json"
    arguments = ("--repeats", 1, "--max-tokens", 16, "--trace", trace)
    result = demo(*arguments, address=cluster.address)
    assert result.returncode == 0, result.stderr
    assert "same tokens: yes" in result.stdout and str(trace) in result.stdout
    assert cluster.head_node.node_id[:6] in result.stdout  # RAY_ADDRESS, as Ray sets it in a job
    roles = ("coordinator", "drafter 0", "path scorer 0", "verifier rank 0")
    for word in (*roles, "plain", "sequential", "overlapped"):
        assert word in result.stdout
    events = json.loads(trace.read_text())
    assert {"verify", "draft"} <= {event["name"] for event in events if event["ph"] == "X"}


def test_a_label_that_no_node_of_a_cluster_has_is_named_when_the_time_is_over(cluster, tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "engine: {preset: tiny}\n"
        "placement: {verifier: {node: {labels: {role: nowhere}}}}\n"
        "deadlines: {placement_seconds: 1}\n"
    )
    trace = tmp_path / "trace.json"
    result = demo("--address", cluster.address, "--config", path, "--trace", trace)
    assert result.returncode == 2
    *_, line = result.stderr.splitlines()
    needed = "verifier needs a node with labels {'role': 'nowhere'}, there is none"
    assert line == (
        f"error: no room for the pipeline within 1 seconds: {needed}: no node has a label role"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: {preset: large}", "preset must be tiny or smollm2"),  # before a cluster starts
        (
            "engine: {preset: tiny}\n"
            "placement: {coordinator: {node: {labels: {role: head}}}}\n"
            "deadlines: {placement_seconds: 1800}\n",
            "coordinator needs a node with labels {'role': 'head'}",  # which never comes
        ),
    ],
)
def test_a_pipeline_that_is_wrong_or_too_large_for_this_machine_is_refused_at_once(
    tmp_path, text, message
):
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    result = demo("--config", path, "--trace", tmp_path / "trace.json")
    assert result.returncode == 2, result.stderr
    assert message in result.stderr and "Traceback" not in result.stderr
