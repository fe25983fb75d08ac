"""HOST:PORT and unix:PATH, as all command lines read them."""

import pytest

from diffuspec.core.addresses import parse_address, parse_listen_address
from diffuspec.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:1", ("localhost", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]:7001", ("::1", 7001)),
        ("a-drafter.default.svc:80", ("a-drafter.default.svc", 80)),
    ],
)
def test_host_and_port_are_read(text, expected):
    assert parse_address("--verifier", text) == expected


@pytest.mark.parametrize(
    "text",
    ["foo", "foo:", ":7001", "foo:bar", "foo:0", "foo:65536", "::1:7001", "http://foo:80", ""],
)
def test_addresses_that_can_never_be_reached_are_refused(text):
    with pytest.raises(ConfigError, match=f"--verifier must be HOST:PORT, got '{text}'"):
        parse_address("--verifier", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[::1]:0", ("::1", 0)), ("unix:/run/drafts", ("unix:/run/drafts", 0))],
)
def test_a_server_listens_at_any_free_port_or_at_a_socket(text, expected):
    assert parse_listen_address("--listen", text) == expected


def test_a_host_with_colons_needs_brackets_to_be_listened_at():
    with pytest.raises(ConfigError, match="--listen must be HOST:PORT or unix:PATH, got '::1:70'"):
        parse_listen_address("--listen", "::1:70")
