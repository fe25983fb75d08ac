"""Certificates for nodes, signed on the head: the authority's key never leaves it.

    python -m deploy.cluster.certificates serve ~/authority      # on the head
    python -m deploy.cluster.certificates fetch HEAD_IP ~/tls    # on every other node

A node sends a signing request over plain HTTP, since neither the request nor the answer is secret.
Both carry an HMAC keyed with Ray's token, which all nodes have, so a node can trust the authority's
answer. The certificate names the address that the request came from, whatever the request says.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from diffuspec.cli.command import Commands
from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import ConfigError, WorkerError

logger = logging.getLogger(__name__)

_SCRIPT = Path(__file__).with_name("certificates.sh")
_PORT = 6378  # Ray uses 6379
_MAC_HEADER = "X-Hmac-Sha256"
# prefixes that keep a request from being taken for an answer
_REQUEST, _ANSWER = b"request\0", b"answer\0"
_MAX_REQUEST_BYTES = 65_536
_IO_SECONDS = 10.0
# without proxies: the head signs for the address that it sees
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_WAIT_SECONDS = 120.0  # time to wait for the head to start serving
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 5.0

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Certificates for the nodes of a cluster, signed on the head node.",
)

_Token = Annotated[
    Path,
    typer.Option(
        help="The file with Ray's token.", metavar="FILE", show_default="~/.ray/auth_token"
    ),
]
_Port = Annotated[int, typer.Option(help="Port of the signing server on the head node.")]
_TOKEN = Path.home() / ".ray" / "auth_token"


class SigningServer(ThreadingHTTPServer):
    """Signs requests of nodes that have the token."""

    def __init__(self, address: tuple[str, int], authority: Path, token: Path) -> None:
        """Take the paths of files, which are read anew for each request."""
        super().__init__(address, _Handler)
        self.authority = authority
        self.token = token


class _Handler(BaseHTTPRequestHandler):
    server: SigningServer
    timeout = _IO_SECONDS

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        num_bytes = int(length) if length.isdecimal() else 0
        if not 0 < num_bytes <= _MAX_REQUEST_BYTES:
            self.send_error(413)
            return
        request = self.rfile.read(num_bytes)
        token, shown = read_token(self.server.token), self.headers.get(_MAC_HEADER, "")
        if not hmac.compare_digest(shown.encode(), _mac(token, _REQUEST, request).encode()):
            self.send_error(403, "the request was not made with this cluster's token")
            return
        try:
            answer = _sign(self.server.authority, request, self.client_address[0])
        except subprocess.CalledProcessError as error:
            logger.warning("a request of %s was not signed: %s", self.client_address[0], error)
            self.send_error(400, "this is no signing request")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header(_MAC_HEADER, _mac(token, _ANSWER, request, answer))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        logger.info("%s: " + format, self.client_address[0], *args)


@app.command()
def serve(
    authority: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of ca.pem and ca.key.")],
    port: _Port = _PORT,
    token: _Token = _TOKEN,
) -> None:
    """Sign the requests of nodes until the command is ended."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    read_token(token)  # fails at once if there is no token
    try:
        server = SigningServer(("", port), authority, token)
    except OSError as error:
        raise ConfigError(f"cannot listen at port {port}: {error.strerror}") from error
    with server:
        server.serve_forever()


@app.command()
def fetch(
    head: Annotated[str, typer.Argument(metavar="HEAD_IP", help="Address of the head node.")],
    out: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for ca.pem, node.pem and node.key.")
    ],
    port: _Port = _PORT,
    token: _Token = _TOKEN,
) -> None:
    """Create a key for this node and have the head sign its certificate."""
    fetch_certificate(f"http://{head}:{port}/", out, read_token(token))


def fetch_certificate(url: str, out: Path, token: bytes) -> None:
    """Write ca.pem, node.pem and node.key, or none of them; wait for the server if need be.

    Raises ConfigError if the tokens differ, and WorkerError if there is no server.
    """
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as name:
        directory = Path(name)
        request = _run("request", directory)
        answer = _ask(url, request, token)
        (directory / "node.pem").write_text(answer["certificate"])
        (directory / "ca.pem").write_text(answer["authority"])
        for file in ("node.key", "node.pem", "ca.pem"):
            os.replace(directory / file, out / file)


def read_token(path: Path) -> bytes:
    """Return Ray's token. Raises ConfigError."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cannot read Ray's token from {path}: {error.strerror}") from error
    if not token:
        raise ConfigError(f"{path} is empty: `ray get-auth-token --generate` makes a token")
    return token


def _ask(url: str, request: bytes, token: bytes) -> dict[str, str]:
    backoff, ends_at = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS), time.monotonic()
    ends_at += _WAIT_SECONDS
    while True:
        message = urllib.request.Request(
            url, request, {_MAC_HEADER: _mac(token, _REQUEST, request)}
        )
        try:
            with _DIRECT.open(message, timeout=_IO_SECONDS) as response:
                shown, answer = response.headers.get(_MAC_HEADER, ""), response.read()
        except urllib.error.HTTPError as error:
            raise ConfigError(f"{url} signs no certificate: {error.reason}") from error
        except OSError as error:
            if time.monotonic() > ends_at:
                raise WorkerError(f"{url} does not answer: {error}") from error
            time.sleep(backoff.failed())
            continue
        expected = _mac(token, _ANSWER, request, answer)
        if not hmac.compare_digest(shown.encode(), expected.encode()):
            raise ConfigError(f"the answer of {url} was not made with this cluster's token")
        certificates: dict[str, str] = json.loads(answer)
        return certificates


def _sign(authority: Path, request: bytes, address: str) -> bytes:
    certificate = _run("sign", authority, address, text=request).decode()
    ca = (authority / "ca.pem").read_text()
    return json.dumps({"certificate": certificate, "authority": ca}).encode()


def _run(*arguments: str | Path, text: bytes = b"") -> bytes:
    command = ["bash", _SCRIPT, *arguments]
    return subprocess.run(command, input=text, check=True, capture_output=True).stdout


def _mac(token: bytes, *message: bytes) -> str:
    return hmac.digest(token, b"".join(message), "sha256").hex()


if __name__ == "__main__":
    app()
