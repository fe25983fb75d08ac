"""Connecting to a cluster, and starting one that leaves no files."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from actors.settings import parse_pipeline
from deploy.batches.serve_app import running_app
from deploy.local_ray import _interrupts_held, ray_cluster
from diffuspec.core.errors import ConfigError

SMALL = """
from ray._private.node import Node

for one in ("start_api_server", "start_log_monitor", "start_monitor"):  # nothing here needs them
    setattr(Node, one, lambda *_, **__: None)
"""
INTERRUPTED_START = """
import signal
import ray
from deploy.local_ray import ray_cluster

start = ray.init

def interrupted(**options):
    signal.raise_signal(signal.SIGINT)
    start(**options)

signal.signal(signal.SIGINT, signal.default_int_handler)
ray.init = interrupted
with ray_cluster("", None):
    print("entered")
"""

LASTING = """
import time
from deploy.local_ray import ray_cluster

with ray_cluster("", None):
    print("entered", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT as Python does, although a job in the background is started to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_takes_effect_at_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), _interrupts_held():
        signal.raise_signal(signal.SIGINT)
        done.append("block")
    assert done == ["block"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("interruptible")
def test_a_second_interrupt_takes_effect_at_once():
    with pytest.raises(KeyboardInterrupt), _interrupts_held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("went on")


def test_sigterm_has_its_own_handler_after_the_block():
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with _interrupts_held():
            signal.raise_signal(signal.SIGTERM)
            assert received == []
        assert received == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "foo"])
def test_an_address_without_a_cluster_is_named(address):
    pipeline = parse_pipeline({"engine": {"preset": "tiny"}})
    with pytest.raises(ConfigError, match=f"--address.*{address}"), ray_cluster(address, pipeline):
        pass


def test_the_address_of_ray_s_client_is_refused_with_what_to_do_instead(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    message = r"^RAY_ADDRESS is ray://head:10001: a client of Ray cannot .* ray job submit"
    with pytest.raises(ConfigError, match=message), ray_cluster("", None):
        pass


def test_without_a_cluster_to_be_found_the_message_has_the_reason_and_not_the_advice_of_ray(
    monkeypatch,
):
    def find_none(**_: object) -> None:
        raise ConnectionError("Could not find any Ray instance. Please set the `--address` flag.")

    monkeypatch.setattr("ray.init", find_none)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=r"^--address: no Ray cluster .*: Could .* instance$"):
        running_app()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS: cannot reach 127.0.0.1:1: "):
        running_app()


@pytest.mark.process
def test_a_start_that_is_interrupted_leaves_no_folder():
    with tempfile.TemporaryDirectory(prefix="d") as folder:  # pytest's are too long for sockets
        environment = {**os.environ, "TMPDIR": folder, "RAY_ADDRESS": "local"}
        ended = subprocess.run(
            [sys.executable, "-c", SMALL + INTERRUPTED_START],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.stdout, ended.stderr) == ("", "interrupted\n")
        assert list(Path(folder).iterdir()) == []


@pytest.mark.process
@pytest.mark.parametrize(("part", "name"), [("raylet", "raylet"), ("gcs_server", "GCS")])
def test_a_command_ends_with_an_error_when_its_cluster_is_lost_and_leaves_nothing(part, name):
    with tempfile.TemporaryDirectory(prefix="d") as folder:  # pytest's are too long for sockets
        command = subprocess.Popen(
            [sys.executable, "-c", SMALL + LASTING],
            env={**os.environ, "TMPDIR": folder, "RAY_ADDRESS": "local"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert command.stdout is not None and command.stdout.readline() == "entered\n"
        started = psutil.Process(command.pid).children(recursive=True)
        [lost] = [one for one in started if one.name() == part]
        lost.kill()
        said = command.communicate()[1]
        assert command.returncode == 1
        assert said == (
            f"error: Ray's {name} has ended (signal 9): this command has lost its Ray cluster; "
            "start it again\n"
        )
        psutil.wait_procs(started)
        while [*Path(folder).iterdir()]:
            time.sleep(0.01)
