"""Draft servers: the command for the embedded pair, and scripted ones with a client."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from diffuspec_client import DraftClient, Settings
from diffuspec_client.draft_service_pb2 import StepDrafts
from tests.support.draft_streams import SECONDS, VOCABULARY, Scripted
from tests.support.forked import forked

StartServer: TypeAlias = Callable[[], subprocess.Popen[str]]


def kill(server: subprocess.Popen[str]) -> None:
    """Kill a server, and wait until its output ends: the process here only stands for it."""
    server.kill()
    assert server.stdout is not None
    server.stdout.read()
    server.wait()


@pytest.fixture
def draft_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start `diffuspec draft-server` for the embedded pair at the socket d, and wait for it."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        command = forked("-m", "diffuspec", "draft-server", "--pair", "tiny")
        command += ["--threads", "1", "--listen", f"unix:{tmp_path / 'd'}"]
        command += ["--num-draft-tokens", "4"]  # whether they pay on a busy machine or not
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("drafting on unix:")
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Callable[..., tuple[Scripted, DraftClient]]]:
    """Start a server that answers each step by a function, and a client; both end with the test."""
    address = f"unix:{tmp_path / 's'}"
    with contextlib.ExitStack() as stack:

        def start(
            answer: Callable[[Any], StepDrafts | None], deadline: float = 1.0, **given: Any
        ) -> tuple[Scripted, DraftClient]:
            server = Scripted(address, answer)
            stack.callback(server.stop)
            limits = {"max_model_len": 99, "max_requests": 4, "max_draft_tokens": 3, **given}
            settings = Settings(server=address, deadline_seconds=deadline)
            client = DraftClient(settings, vocabulary=VOCABULARY, **limits)
            stack.callback(client.close)
            assert client.wait_until_connected(SECONDS)
            return server, client

        yield start
