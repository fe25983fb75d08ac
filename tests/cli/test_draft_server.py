"""`diffuspec draft-server`: what it would serve, and what it refuses before anything is loaded."""

import socket

import pytest

from diffuspec.core.beside_loop import is_in_loop
from diffuspec.core.errors import ConfigError
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.pairs.tiny import DRAFTER, TARGET
from tests.cli.conftest import error_line, printed

IN_USE = "another program listens there: stop it, or choose another port"


def test_it_explains_what_it_would_serve(diffuspec):
    said = printed(diffuspec("draft-server", "--pair", "tiny", "--explain", "--max-requests", "7"))
    lines = dict(line.split(None, 1) for line in said.splitlines())
    assert lines["address"] == "127.0.0.1:9500"
    assert lines["drafter"] == f"diffuspec, {DRAFTER}"
    assert lines["requests"].startswith("7 at a time")
    assert lines["vocabulary"].startswith("4095 tokens, digest ")


def test_a_file_is_overridden_by_options_and_its_shares_are_checked(diffuspec, tmp_path):
    file, text = tmp_path / "drafts.yaml", f"drafter: {{kind: pld}}\ntokenizer: {TARGET}\n"
    file.write_text(f"{text}tenants: {{a: 2}}\n")
    result = diffuspec("draft-server", "--config", file, "--drafter-kind", "samd", "--explain")
    assert "samd" in result.stdout and "a 2" in result.stdout
    file.write_text(f"{text}tenants: {{a: 0}}\n")
    line = error_line(diffuspec("draft-server", "--config", file))
    assert "the share of 'a' must be above 0, got 0" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name what drafts: --drafter DIR with --tokenizer DIR"),
        (["--drafter", "x"], "--tokenizer DIR is needed"),
        (["--pair", "tiny", "--config", "x.yaml"], "--pair and --config exclude each other"),
        (["--pair", "tiny", "--listen", "9500"], "--listen must be HOST:PORT or unix:PATH"),
        (["--pair", "tiny", "--listen", "unix:"], "--listen unix:PATH needs a path"),
        (
            ["--pair", "tiny", "--listen", "0.0.0.0:1"],
            "0.0.0.0 can be reached by others: give --token-file FILE",
        ),
        (["--pair", "tiny", "--tls-ca", "x"], "--tls-ca, --tls-certificate and --tls-key belong"),
        (
            ["--drafter", "x", "--drafter-kind", "eagle", "--tokenizer", "y", "--explain"],
            "drafter.kind must draft from tokens alone, as diffuspec, sps, pld, samd do",
        ),
        (["--pair", "tiny", "--drafter-block-size", "8"], "has no effect without a drafter"),
        (["--pair", "tiny", "--token-file", "none.txt"], "cannot read the token in none.txt"),
    ],
)
def test_what_cannot_be_served_is_refused(diffuspec, arguments, message):
    result = diffuspec("draft-server", *arguments)
    assert result.exit_code in (1, 2) and message in error_line(result, result.exit_code)


@pytest.mark.parametrize("option", ["--listen", "--metrics-port"])
def test_an_address_in_use_is_refused_before_models_are_loaded(diffuspec, option):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        address = f"127.0.0.1:{port}"
        given = address if option == "--listen" else port
        line = error_line(diffuspec("draft-server", "--pair", "tiny", option, given))
    assert line.endswith(f"cannot serve on {address}: {IN_USE}")


def test_a_socket_that_cannot_be_made_is_refused(diffuspec, tmp_path):
    path = tmp_path / "none" / "drafts.sock"
    line = error_line(diffuspec("draft-server", "--pair", "tiny", "--listen", f"unix:{path}"))
    assert line.endswith(f"cannot serve on unix:{path}: No such file or directory")


def test_models_are_loaded_outside_the_event_loop_where_ctrl_c_ends_it(diffuspec, monkeypatch):
    def load(config: DraftServerConfig) -> None:
        raise ConfigError("in a loop" if is_in_loop() else "outside")

    monkeypatch.setattr("diffuspec.draft_server.service.load_service", load)
    result = diffuspec("draft-server", "--pair", "tiny", "--listen", "127.0.0.1:0")
    assert error_line(result) == "outside"
