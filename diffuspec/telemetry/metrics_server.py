"""An HTTP server on loopback for a process without one: Prometheus metrics, and its health."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_TEXT = [("Content-Type", "text/plain")]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing: probes come every few seconds."""


@contextlib.contextmanager
def serving_metrics(
    port: int, registry: CollectorRegistry, is_healthy: Callable[[], bool]
) -> Iterator[None]:
    """Serve /health, 200 or 503, and metrics at every other path, in threads.

    `is_healthy` is called in those threads.
    """
    metrics: WSGIApplication = make_wsgi_app(registry)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/health":
            return metrics(environ, start_response)
        is_well = is_healthy()
        start_response("200 OK" if is_well else "503 Service Unavailable", _TEXT)
        return [b"healthy\n" if is_well else b"drafting fails\n"]

    with make_server("127.0.0.1", port, app, _Server, _Handler) as server:
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
