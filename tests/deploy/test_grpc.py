"""Every role as a process of its own, without Ray: addresses on stdout, exit codes, draining."""

import asyncio
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from actors.settings import load_pipeline
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.security import Security
from tests.support.forked import forked
from tests.support.ports import free_port

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-tests"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
LONG = SamplingParams(max_tokens=32, ignore_eos=True)
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)
CONFIG = """
engine:
  preset: tiny
  target: {device: cpu, max_sequences: 2, max_model_len: 512}
  drafter: {device: cpu}
  drafters: {lookup: {kind: pld}, recycling: {kind: token_recycling}}
deadlines: {start_seconds: 60, drain_seconds: 5}
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "pipeline.yaml"
    path.write_text(CONFIG)
    return path


class Role:
    """A process that serves a role."""

    address: str
    metrics_port: str

    def __init__(self, config: Path, *arguments: str, token: str | None = TOKEN) -> None:
        command = forked("-m", "deploy.grpc", "--config", config, *arguments)
        environment = {k: v for k, v in os.environ.items() if k != "DIFFUSPEC_TOKEN"}
        if token is not None:
            environment["DIFFUSPEC_TOKEN"] = token
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> str:
        """Wait for the next line on stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Return the exit code and the text on stderr."""
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.fixture(scope="module")
def roles(config) -> Iterator[dict[str, Role]]:
    with ExitStack() as stack:

        def start(name: str, *arguments: str) -> tuple[Role, str]:
            role = stack.enter_context(Role(config, "--role", name, *arguments))
            return role, role.line()

        verifier, verifier_address = start("verifier")
        to_verifier = ("--verifier", verifier_address)
        scorer, scorer_address = start("path_scorer", *to_verifier)
        drafter, drafter_address = start("drafter", *to_verifier, "--path-scorer", scorer_address)
        metrics = ("--metrics-port", str(free_port()))
        to_drafter = ("--drafter", drafter_address)
        coordinator, address = start("coordinator", *to_verifier, *to_drafter, *metrics)
        coordinator.address, coordinator.metrics_port = address, metrics[1]
        names = ("verifier", "path_scorer", "drafter", "coordinator")
        yield dict(zip(names, (verifier, scorer, drafter, coordinator), strict=True))


async def answer(address: str, drafter: str) -> tuple[list[int], int]:
    """Return an answer's tokens and the number of its steps."""
    client = await RemoteCoordinator.connect(address, Security(TOKEN))
    drafted = replace(DRAFTED, drafter=drafter)
    steps = [step async for step in client.stream(MESSAGES, LONG, drafted)]
    await client.close()
    return [i for step in steps for i in step.token_ids], len(steps)


async def recovered(address: str) -> None:
    """Wait until no role is degraded."""
    client = await RemoteCoordinator.connect(address, Security(TOKEN))
    while (await client.status()).degraded_reasons:
        await asyncio.sleep(0.1)
    await client.close()


async def test_roles_in_processes_of_their_own_answer_as_one_process_does(roles, config):
    address = roles["coordinator"].address
    await recovered(address)
    plain = load_pipeline(config).engine.model_copy(update={"drafter": None, "drafters": {}})
    with Engine.from_config(plain) as engine:
        expected = await engine.complete(MESSAGES, LONG)
    for drafter in ("diffuspec", "lookup", "recycling"):
        tokens, num_steps = await answer(address, drafter)
        assert tuple(tokens) == expected.token_ids
        assert num_steps < len(tokens), drafter


def test_metrics_are_served_at_the_metrics_port(roles):
    url = f"http://127.0.0.1:{roles['coordinator'].metrics_port}/metrics"
    with urllib.request.urlopen(url, timeout=10) as response:
        assert "diffuspec_generation_tokens_total" in response.read().decode()


def test_check_exits_with_0_only_if_that_role_serves_at_the_address(roles, config):
    address = roles["coordinator"].address
    probes = [("coordinator", address), ("verifier", address), ("coordinator", "127.0.0.1:1")]
    with ExitStack() as stack:
        roles = [stack.enter_context(Role(config, "--role", r, "--check", a)) for r, a in probes]
        assert [role.end() for role in roles] == [
            (0, ""),
            (1, f"error: no verifier serves at {address}\n"),
            (1, "error: no coordinator serves at 127.0.0.1:1\n"),
        ]


@pytest.mark.parametrize("name", ["coordinator", "drafter", "path_scorer", "verifier"])
def test_sigterm_drains_a_role_and_ends_it_with_0(roles, name):
    roles[name].process.send_signal(signal.SIGTERM)
    code, said = roles[name].end()
    assert code == 0 and "Traceback" not in said


def refusal(config: Path, *arguments: object, token: str | None = TOKEN) -> str:
    """Return what a role says that does not start."""
    with Role(config, *map(str, arguments), token=token) as role:
        code, said = role.end()
    assert (code, said.count("\n")) == (2, 1)
    return said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--role", "verifier", "--host", "0.0.0.0"), "without TLS"),
        (("--role", "path_scorer", "--verifier", "foo"), "--verifier must be HOST:PORT, got 'foo'"),
        (("--role", "coordinator", "--check", "foo"), "--check must be HOST:PORT, got 'foo'"),
        (("--role", "driver"), "'driver' is not one of"),
    ],
)
def test_wrong_options_are_refused_in_one_line(config, arguments, message):
    assert message in refusal(config, *arguments)


def test_a_port_in_use_is_refused_before_models_are_loaded(config):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = refusal(config, "--role", "verifier", "--port", port)
    assert said.startswith(
        f"error: --host and --port: cannot listen at 127.0.0.1:{port}: address already in use; "
        f"process {os.getpid()} ("
    )


def test_without_a_token_nothing_starts(config, tmp_path):
    verifier = ("--role", "verifier")
    assert "set DIFFUSPEC_TOKEN, or give --token-file" in refusal(config, *verifier, token=None)
    missing = ("--token-file", tmp_path / "none")
    assert "cannot read the token" in refusal(config, *verifier, *missing, token=None)


def test_unknown_keys_of_the_configuration_are_named(tmp_path):
    path = tmp_path / "pipeline.yaml"
    path.write_text("engine: {preset: tiny}\nplacements: {}\n")
    assert "unknown key `placements`" in refusal(path, "--role", "verifier")


def test_a_waiting_role_ends_on_sigterm(config):
    with Role(config, "--role", "path_scorer", "--verifier", "127.0.0.1:1") as role:
        assert role.process.stderr is not None
        while "waiting for 127.0.0.1:1" not in role.process.stderr.readline():
            pass
        role.process.send_signal(signal.SIGTERM)
        assert role.end()[0] == 0
