"""Addresses on the command line are checked before anything starts."""

import socket

import pytest

from actors.settings import PipelineConfig, parse_pipeline
from deploy.addresses import Addresses, check_listenable, check_reachable
from diffuspec.core.errors import ConfigError

VERIFIER = "127.0.0.1:1"
SMALL = {"kind": "sps", "path": "m"}


@pytest.fixture(scope="module")
def config() -> PipelineConfig:
    return parse_pipeline({"engine": {"preset": "tiny"}})


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
def test_a_role_names_the_option_that_it_lacks_or_cannot_use(config, role, given, message):
    with pytest.raises(ConfigError, match=message):
        Addresses(**given).check(role, config)


def test_complete_addresses_pass(config):
    Addresses().check("verifier", config)
    Addresses(verifier=VERIFIER, path_scorer=VERIFIER).check("drafter", config)
    Addresses(verifier=VERIFIER, drafters=["[::1]:7003"]).check("coordinator", config)


def test_a_drafter_that_searches_no_lattice_takes_no_path_scorer():
    config = parse_pipeline({"engine": {"preset": "tiny", "drafter": SMALL}})
    Addresses(verifier=VERIFIER).check("drafter", config)
    with pytest.raises(ConfigError, match="--path-scorer has no effect on --role drafter"):
        Addresses(verifier=VERIFIER, path_scorer=VERIFIER).check("drafter", config)


@pytest.fixture(scope="module")
def several() -> PipelineConfig:
    """Of three drafters, two have processes, and one of these two of them."""
    drafters = {"small": SMALL, "pld": {"kind": "pld"}}
    placement = {"drafters": {"small": {"count": 2}}}
    engine = {"preset": "tiny", "drafters": drafters}
    return parse_pipeline({"engine": engine, "placement": placement})


def test_of_several_drafters_each_is_named(several):
    Addresses(verifier=VERIFIER, name="small").check("drafter", several)
    given = ["small=a:1", "diffuspec=b:2", "small=c:3"]
    assert Addresses(verifier=VERIFIER, drafters=given).drafter_roles(several) == {
        "drafter small 0": "a:1",
        "drafter diffuspec 0": "b:2",
        "drafter small 1": "c:3",
    }


@pytest.mark.parametrize(
    ("role", "given", "message"),
    [
        ("drafter", {}, "--role drafter needs --name, one of diffuspec, small"),
        ("drafter", {"name": "pld"}, "--name must be one of diffuspec, small, got 'pld'"),
        ("verifier", {"name": "small"}, "--name has no effect on --role verifier"),
        ("coordinator", {"drafters": ("a:1",)}, "must begin with diffuspec= or small=, got 'a:1'"),
        ("coordinator", {"drafters": ("pld=a:1",)}, "must begin with .*, got 'pld=a:1'"),
        ("coordinator", {"drafters": ("small=a:1",) * 3}, r"each of the 3 .*\(drafter diffuspec 0"),
    ],
)
def test_names_of_drafters_that_do_not_fit_are_refused(several, role, given, message):
    verifier = "" if role == "verifier" else VERIFIER
    with pytest.raises(ConfigError, match=message):
        Addresses(verifier=verifier, **given).check(role, several)


def test_without_a_drafter_in_a_process_there_is_none_to_serve():
    config = parse_pipeline({"engine": {"preset": "tiny", "drafter": {"kind": "pld"}}})
    with pytest.raises(ConfigError, match="no drafter that is configured has its own process"):
        Addresses(verifier=VERIFIER).check("drafter", config)
    with pytest.raises(ConfigError, match=r"has no effect: no drafter .* its own process"):
        Addresses(verifier=VERIFIER, drafters=["a:1"]).check("coordinator", config)


def test_ports_are_tried(config):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable("--address", f"127.0.0.1:{port}")
        reason = f"--port: cannot listen at 127.0.0.1:{port}: address already in use"
        with pytest.raises(ConfigError, match=reason):
            check_listenable("--port", "127.0.0.1", port)
        both = Addresses(verifier=VERIFIER, drafters=[VERIFIER], metrics_port=port)
        with pytest.raises(ConfigError, match="--metrics-port: cannot listen at"):
            both.check("coordinator", config)
    with pytest.raises(ConfigError, match=f"--address: cannot reach 127.0.0.1:{port}: conn"):
        check_reachable("--address", f"127.0.0.1:{port}")
    check_listenable("--port", "127.0.0.1", port)
