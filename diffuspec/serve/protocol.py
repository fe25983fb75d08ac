"""uvicorn's connections with what it lacks: limits on time, size and number, and HTTP/1.0."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from diffuspec.serve.settings import ServeSettings

_MAX_HEADER_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"^upgrade:", re.IGNORECASE | re.MULTILINE)


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed if headers are slow or large, or if there are too many.

    The kernel drops it if its peer takes no data for `write_seconds`, even after its end.
    """

    def __init__(self, settings: ServeSettings, **options: Any) -> None:
        super().__init__(**options)
        self._settings = settings
        self._waiting: asyncio.TimerHandle | None = None  # limits the wait for headers
        self._num_header_bytes = 0
        self._is_in_body = False
        self._held_back = b""  # possible beginning of a header name

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            transport.abort()
            return
        self._drop_stalled(transport.get_extra_info("socket"))
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_header_bytes += len(data)
        if not self._is_in_body:
            data, self._held_back = _without_upgrade(self._held_back + data)
        super().data_received(data)
        if self._waiting is not None and self._num_header_bytes > _MAX_HEADER_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._waiting is None:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._have_headers()
        self._is_in_body = True
        super().on_headers_complete()
        self._use_host_of_target()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnchunkedCycle  # its application has not started

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def _use_host_of_target(self) -> None:
        """Let the host in a proxy-style target override the header (RFC 9112, 3.2.2)."""
        target = httptools.parse_url(self.url)
        if target.host is not None:
            host = target.host if target.port is None else b"%s:%d" % (target.host, target.port)
            others = [header for header in self.scope["headers"] if header[0] != b"host"]
            self.scope["headers"] = [*others, (b"host", host)]

    def _await_headers(self) -> None:
        self._num_header_bytes = 0
        seconds = self._settings.header_seconds
        self._waiting = self.loop.call_later(seconds, self.transport.abort)

    def _have_headers(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _drop_stalled(self, connected: Any) -> None:
        milliseconds = round(self._settings.write_seconds * 1000)
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # only on Linux
        with contextlib.suppress(OSError, AttributeError):
            if option is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, milliseconds)


def _without_upgrade(data: bytes) -> tuple[bytes, bytes]:
    """Return data without the header that requests another protocol, which servers may ignore.

    Java's client offers HTTP/2 in this way, and httptools accepts no body for such a request. Also
    returns the beginning of a line at the end of the data, if it may become that header.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    line = b"" if end else head[head.rfind(b"\n") + 1 :]
    held_back = line if b"upgrade:".startswith(line.lower()) else b""
    head = head.removesuffix(held_back)
    return _UPGRADE.sub(b"x-upgrade:", head) + end + rest, held_back


class UnchunkedCycle(RequestResponseCycle):
    """A response without chunks, which HTTP/1.0 does not support.

    Without a content-length it ends with the connection, which uvicorn then closes.
    """

    async def send(self, message: Any) -> None:
        """See uvicorn, which would announce chunks if the length is unknown."""
        if not self.response_started:
            self.chunked_encoding = False
        elif message["type"] == "http.response.body":
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)
