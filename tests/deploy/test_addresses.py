"""Addresses on the command line are checked before anything starts."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from actors.settings import PipelineConfig, parse_pipeline
from deploy.addresses import Addresses, Role, check_listenable, check_reachable, parse_address
from diffuspec.core.errors import ConfigError

VERIFIER = "127.0.0.1:1"


@pytest.fixture(scope="module")
def config() -> PipelineConfig:
    return parse_pipeline({"engine": {"preset": "tiny"}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:7001", ("::1", 7001)),
        ("a-drafter.default.svc:80", ("a-drafter.default.svc", 80)),
    ],
)
def test_host_and_port_are_read(text: str, expected: tuple[str, int]) -> None:
    assert parse_address("--verifier", text) == expected


@pytest.mark.parametrize(
    "text",
    ["foo", "foo:", ":7001", "foo:bar", "foo:0", "foo:65536", "::1:7001", "http://foo:80", ""],
)
def test_addresses_that_can_never_be_reached_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--verifier must be HOST:PORT, got '{text}'"):
        parse_address("--verifier", text)


@pytest.mark.parametrize(
    ("role", "given", "message"),
    [
        ("drafter", {"verifier": VERIFIER}, "--role drafter needs --path-scorer HOST:PORT"),
        ("path_scorer", {}, "--role path_scorer needs --verifier HOST:PORT"),
        ("coordinator", {"verifier": VERIFIER}, "--drafter must be given once for each of the 1"),
        (
            "coordinator",
            {"verifier": VERIFIER, "drafters": ("foo",)},
            "--drafter must be HOST:PORT",
        ),
        ("verifier", {"rank": 1}, "--rank must be below placement.verifier.tensor_parallel, 1"),
        ("verifier", {"meeting_point": VERIFIER}, "--meeting-point needs --rank above 0"),
        ("verifier", {"metrics_port": 9000}, "--metrics-port has no effect on --role verifier"),
        ("verifier", {"verifier": VERIFIER}, "--verifier has no effect on --role verifier"),
        ("path_scorer", {"verifier": VERIFIER, "rank": 1}, "--rank has no effect on --role path_s"),
    ],
)
def test_a_role_names_the_option_that_it_lacks_or_cannot_use(
    config: PipelineConfig, role: Role, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Addresses(**given).check(role, config)


def test_complete_addresses_pass(config: PipelineConfig) -> None:
    Addresses().check("verifier", config)
    Addresses(verifier=VERIFIER, path_scorer=VERIFIER).check("drafter", config)
    Addresses(verifier=VERIFIER, drafters=("[::1]:7003",)).check("coordinator", config)


def test_a_drafter_that_searches_no_lattice_takes_no_path_scorer() -> None:
    config = parse_pipeline({"engine": {"preset": "tiny", "drafter": {"kind": "pld"}}})
    Addresses(verifier=VERIFIER).check("drafter", config)
    with pytest.raises(ConfigError, match="--path-scorer has no effect on --role drafter"):
        Addresses(verifier=VERIFIER, path_scorer=VERIFIER).check("drafter", config)


def test_ports_are_tried(config: PipelineConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable("--address", f"127.0.0.1:{port}")
        reason = f"--port: cannot listen at 127.0.0.1:{port}: address already in use"
        with pytest.raises(ConfigError, match=reason):
            check_listenable("--port", "127.0.0.1", port)
        both = Addresses(verifier=VERIFIER, drafters=(VERIFIER,), metrics_port=port)
        with pytest.raises(ConfigError, match="--metrics-port: cannot listen at"):
            both.check("coordinator", config)
    with pytest.raises(ConfigError, match=f"--address: cannot reach 127.0.0.1:{port}: conn"):
        check_reachable("--address", f"127.0.0.1:{port}")
    check_listenable("--port", "127.0.0.1", port)
