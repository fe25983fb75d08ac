"""Connections: each has a timer at every moment, and each address has a bound."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from uvicorn.protocols.http import httptools_impl

from diffuspec.serve.connections import Connections
from diffuspec.serve.http import edge
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.settings import ServeSettings
from tests.support.service import Service, fake_engine, serving

HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"
LENGTH = b"content-length: 2\r\n\r\n"
CHUNKS = b"transfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    settings = ServeSettings(
        header_seconds=0.2, body_seconds=0.2, max_connections_per_address=2, max_body_bytes=1024
    )
    with pytest.MonkeyPatch.context() as patch, serving(fake_engine, settings) as service:
        patch.setattr(edge, "_LINGER_SECONDS", 0.1)
        yield service


def connect(service: Service) -> socket.socket:
    url = httpx2.URL(service.url)
    return socket.create_connection((url.host, url.port), timeout=20)


def answer(connection: socket.socket) -> bytes:
    """Receive one whole response, whose body may come in segments of its own."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(connection)
    head, body = received.split(b"\r\n\r\n", 1)
    [size] = re.findall(rb"(?i)content-length: (\d+)", head)
    while len(body) < int(size):
        body += _some(connection)
    return received


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(4096)
    assert data, "the connection was closed amid a response"
    return data


def is_answered(connection: socket.socket) -> bool:
    return answer(connection).startswith(b"HTTP/1.1 200")


@pytest.fixture
def answers_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer a GET without a look at its body."""
    monkeypatch.setattr(edge, "_has_body", lambda headers: False)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection, without another answer."""
    try:
        return not connection.recv(4096)
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "rest",
    [b"\r\n", b"G", LENGTH[:-2] + b"x: y\r\n", LENGTH + b"{", CHUNKS + b"2\r\n{"],
    ids=["an empty line", "a byte", "a head", "a body", "chunks"],
)
@pytest.mark.usefixtures("answers_first")
def test_after_an_answer_what_begins_and_does_not_end_closes_the_connection(
    service: Service, rest: bytes
):
    with connect(service) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert is_answered(connection)
        begins_a_body = rest.startswith((LENGTH, CHUNKS))
        connection.sendall(HEAD + rest if len(rest) > 2 else rest)
        assert not begins_a_body or is_answered(connection)
        assert is_closed(connection)


@pytest.mark.parametrize(
    ("body", "end"),
    [(LENGTH + b"{", b"}"), (CHUNKS + b"2\r\n{", b"}\r\n0\r\n\r\n")],
    ids=["length", "chunks"],
)
@pytest.mark.usefixtures("answers_first")
def test_a_body_that_ends_after_its_answer_keeps_the_connection_for_the_next_request(
    service: Service, body: bytes, end: bytes
):
    with connect(service) as connection:
        for _ in range(3):
            connection.sendall(HEAD + body)
            assert is_answered(connection)
            connection.sendall(end)
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):  # longer than a head or a body may take
            connection.recv(1)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (HEAD, 200),
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\n",
            408,
        ),
    ],
    ids=["GET", "POST"],
)
def test_a_body_that_does_not_end_is_answered_before_the_connection_is_closed(
    service: Service, head: bytes, status: int
):
    with connect(service) as connection:
        connection.sendall(head + LENGTH + b"{")
        received = b"".join(iter(lambda: connection.recv(4096), b""))
        assert received.startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize("trailer", [b"x: " + b"y" * 1_000_000, b"x: y\r\n" * 100_000])
def test_fields_after_a_body_are_cut_at_the_size_of_a_head(service: Service, trailer: bytes):
    with connect(service) as connection:
        try:
            connection.sendall(HEAD + CHUNKS + b"0\r\n" + trailer)
        except (ConnectionResetError, BrokenPipeError):
            return
        assert is_closed(connection)


def test_a_key_after_a_body_is_none(tmp_path: Path):
    key = add_key(tmp_path / "keys.yaml", "alice").encode()
    head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n"
    with (
        serving(fake_engine, ServeSettings(api_keys=tmp_path / "keys.yaml")) as keyed,
        connect(keyed) as connection,
    ):
        connection.sendall(head + b"x-api-key: " + key + b"\r\n\r\n")
        assert is_answered(connection)
        connection.sendall(head + CHUNKS + b"0\r\nx-api-key: " + key + b"\r\n\r\n")
        assert answer(connection).startswith(b"HTTP/1.1 401")


def test_connections_of_an_address_are_bounded_but_not_those_of_loopback(
    service: Service, monkeypatch: pytest.MonkeyPatch
):
    addresses = iter([("192.0.2.7", 1)] * 3 + [("192.0.2.8", 1), ("127.0.0.1", 1)])
    monkeypatch.setattr(httptools_impl, "get_remote_addr", lambda _: next(addresses))
    opened = [connect(service) for _ in range(5)]
    for connection in opened:
        connection.settimeout(20)
    assert is_closed(opened[2])
    for place in (0, 1, 3, 4):
        opened[place].sendall(HEAD + b"\r\n")
        assert is_answered(opened[place])
    for connection in opened:
        connection.close()


@pytest.mark.parametrize(
    ("first", "second", "are_one"),
    [
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("2001:db8::1", "2001:db8::2:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_an_address_is_its_network_of_64_bits(first: str, second: str, are_one: bool):
    connections = Connections(1)
    assert connections.add(first)
    assert connections.add(second) is not are_one
    connections.remove(first)
    assert connections.add(second) is are_one


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_and_unix_sockets_have_no_bound(address: str):
    connections = Connections(1)
    assert all(connections.add(address) for _ in range(3))
