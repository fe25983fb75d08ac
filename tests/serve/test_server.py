"""The server: connections that are slow, large or too many, and the end by a signal."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from diffuspec.core.errors import ConfigError
from diffuspec.serve.server import Server, bind, is_loopback
from diffuspec.serve.settings import ServeSettings
from tests.support.forked import forked
from tests.support.service import Service, events, fake_engine, serving

ROOT = Path(__file__).parents[2]
HEAD = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    settings = ServeSettings(header_seconds=0.2, max_connections=3)
    with serving(fake_engine, settings) as service:
        yield service


def connect(service: Service) -> socket.socket:
    url = httpx2.URL(service.url)
    return socket.create_connection((url.host, url.port), timeout=20)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection."""
    try:
        while connection.recv(4096):
            pass
        return True
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("begun", [b"", b"GET ", HEAD])
def test_a_connection_whose_headers_do_not_end_is_closed(service: Service, begun: bytes):
    with connect(service) as connection:
        connection.sendall(begun)
        assert is_closed(connection)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_a_request_that_offers_another_protocol_is_answered_all_the_same(
    service: Service, protocol: bytes
):
    body = b'{"prompt": "hello", "max_tokens": 2}'
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\n"
        b"Upgrade: %b\r\ncontent-length: %d\r\n\r\n" % (protocol, len(body))
    )
    with connect(service) as connection:
        for parts in ((head + body,), (head, body)):  # one after the other on one connection
            for part in parts:
                connection.sendall(part)
            response = HTTPResponse(connection)
            response.begin()
            assert (response.status, b"choices" in response.read()) == (200, True)


def test_a_head_that_offers_another_protocol_may_come_in_pieces(service: Service):
    head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    place = head.index(b"Upgrade: ")
    for cut in (place, place + 1, place + 4, place + 9, place + 11):
        with connect(service) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for part in (head[:cut], head[cut:]):
                connection.sendall(part)
                time.sleep(0.01)  # two segments
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n", b"403"),
        (b"GET http://localhost:80/v1/models HTTP/1.1\r\nhost: evil.example\r\n", b"200"),
        (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n", b"400"),
        (
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ntransfer-encoding: gzip, chunked\r\n",
            b"501",
        ),
    ],
    ids=["target's host", "host of a good target", "two hosts", "transfer coding"],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(service: Service, head, status):
    with connect(service) as connection:
        connection.sendall(head + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 " + status)


def test_headers_that_do_not_end_are_cut_at_their_size(service: Service):
    with connect(service) as connection:
        try:
            connection.sendall(HEAD + b"x: " + b"y" * 1_000_000)
        except (ConnectionResetError, BrokenPipeError):
            return
        assert is_closed(connection)


def test_slow_headers_of_a_second_request_are_not_waited_for_either(service: Service):
    with connect(service) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET ")
        assert is_closed(connection)


def test_one_connection_too_many_is_closed_and_the_others_are_not(service: Service):
    open_ones = [connect(service) for _ in range(3)]
    for connection in open_ones:
        connection.sendall(HEAD + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    with connect(service) as connection:
        assert is_closed(connection)
    for connection in open_ones:
        connection.close()


def test_a_large_body_is_answered_before_the_connection_is_closed(service: Service):
    content = b" " * (8 * 1024 * 1024)
    headers = {"content-type": "application/json"}
    response = httpx2.post(f"{service.url}/v1/completions", content=content, headers=headers)
    assert response.status_code == 413


def ask_in_http_1_0(service: Service, request: str, body: str = "") -> tuple[str, bytes]:
    """Return the headers of the answer, in lower case, and all that follows until the end."""
    head = f"{request} HTTP/1.0\r\ncontent-type: application/json\r\n"
    with connect(service) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    headers, _, content = received.partition(b"\r\n\r\n")
    return headers.decode().lower(), content


def test_a_stream_in_http_1_0_has_no_chunks_and_ends_with_the_connection(service: Service):
    asked = '{"prompt": "hello", "max_tokens": 8, "temperature": 0, "stream": true}'
    headers, content = ask_in_http_1_0(service, "POST /v1/completions", asked)
    assert headers.startswith("http/1.1 200") and "connection: close" in headers
    assert "transfer-encoding" not in headers and "content-length" not in headers
    assert events(content.decode())[-1]["choices"][0]["finish_reason"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_answer_in_http_1_0_has_its_length(service: Service, method: str):
    headers, content = ask_in_http_1_0(service, f"{method} /v1/models")
    length = int(headers.partition("content-length: ")[2].split()[0])
    assert headers.startswith("http/1.1 200") and length
    assert len(content) == (length if method == "GET" else 0)


def test_requests_in_http_1_0_are_answered_one_for_each_connection(service: Service):
    with connect(service) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" * 2)
        assert b"".join(iter(lambda: connection.recv(4096), b"")).count(b"HTTP/1.1 200") == 1


def test_addresses_are_bound_or_refused():
    with bind("127.0.0.1", 0) as bound:
        assert is_loopback(bound)
        with pytest.raises(ConfigError, match="another program listens there: stop it"):
            bind("127.0.0.1", bound.getsockname()[1])
    with bind("0.0.0.0", 0) as bound:
        assert not is_loopback(bound)
    with pytest.raises(ConfigError, match="is not an address here"):
        bind("no such host", 0)


@pytest.mark.parametrize(("host", "named"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "127.0.0.1")])
def test_the_url_of_a_server_can_be_called_on_its_machine(host, named):
    async def drain() -> None:
        pass

    with bind(host, 0) as bound:
        server = Server(FastAPI(), bound, ServeSettings(), drain, print)
        assert server.url == f"http://{named}:{bound.getsockname()[1]}"


async def test_a_second_interrupt_does_not_wait_for_running_requests():
    ended: list[str] = []

    def interrupt(url: str = "") -> None:
        server.handle_exit(signal.SIGINT, None)

    async def drain() -> None:
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    with bind("127.0.0.1", 0) as bound:
        server = Server(FastAPI(), bound, ServeSettings(), drain, interrupt)
        await asyncio.wait_for(server.run_until_stopped(), 20)
    assert ended == ["cancelled"]


@pytest.mark.process
def test_the_command_says_where_it_serves_and_lets_a_request_finish_after_sigterm():
    command = forked("-m", "diffuspec", "serve", "--port", "0", "--model-name", "m")
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    asked = {"prompt": "Hi", "max_tokens": 40, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as response:
        lines = response.iter_raw()
        text = next(lines)
        process.send_signal(signal.SIGTERM)
        text += b"".join(lines)
    chunks = events(text.decode())
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert process.wait(60) == 0
    process.stdout.close()
