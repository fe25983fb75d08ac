"""`python -m deploy.serve` as a user runs it: it answers, and Ctrl-C leaves nothing."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from benchmarks.chaos import PROCESSES, Kind
from deploy.processes import listeners, raylet_of
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
TARGET = {"device": "cpu", "max_model_len": 512}

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def serve(*arguments: object, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", **variables}
    return subprocess.Popen(
        [sys.executable, "-m", "deploy.serve", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def said_until(last: str, process: subprocess.Popen[str]) -> list[str]:
    """Return the lines before a line. Fails if the process ends first."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        if line == last:
            return lines
        lines.append(line)
    pytest.fail(f"it ended after {lines}: {process.communicate()[1]}")


def kinds_below(raylet: psutil.Process | None) -> set[Kind]:
    """Return the kinds of the service's processes below a raylet."""
    assert raylet is not None
    titles = [" ".join(process.cmdline()) for process in raylet.children(True)]
    return {
        kind for kind, title in PROCESSES.items() if any(one.startswith(title) for one in titles)
    }


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ,
    reason="Ray gives a node 30 s to start, few beside other clusters: make test runs it alone",
)
def test_it_answers_until_it_is_interrupted_and_leaves_nothing():
    pipeline = {
        "engine": {"preset": "tiny", "target": TARGET, "drafter": None},
        "placement": {"coordinator": {"num_cpus": 0.25}, "verifier": {"num_cpus": 0.25}},
    }
    data = yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text())
    data["applications"][0]["args"]["pipeline"] = pipeline
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="d") as folder:  # pytest's are too long for sockets
        path = Path(folder) / "serve.yaml"
        path.write_text(yaml.safe_dump(data))
        process = serve("--config", path, "--port", port, TMPDIR=folder)
        said = said_until("Ctrl-C stops it.\n", process)
        assert said[0] == f"serving diffuspec-tiny on http://127.0.0.1:{port}\n"
        assert "curl http://" in "".join(said) and "from openai import OpenAI" in "".join(said)
        asked_for = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True}
        body = json.dumps(asked_for).encode()
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
        missing = {Kind.DRAFTER, Kind.PATH_SCORER, Kind.HAPROXY}  # the last has no title
        assert kinds_below(raylet_of(port)) == set(Kind) - missing
        assert [one.name() for one in listeners(port)] == [Kind.HAPROXY]
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "stopping\n")
        assert process.returncode == 0
        left = {one.name for one in Path(folder).iterdir()} - {"serve.yaml"}
        assert not any(name.startswith("ray") for name in left)
    with pytest.raises(ProcessLookupError):  # the group of all processes that it started
        os.killpg(process.pid, 0)


def test_a_file_with_a_key_that_serve_would_ignore_is_refused_before_anything_starts(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_text((ROOT / "deploy" / "serve.yaml").read_text().replace("host:", "hosts:"))
    process = serve("--config", path)
    _, said = process.communicate()
    assert process.returncode == 2
    assert said == f"error: {path}: Ray Serve has no key http_options.hosts\n"
