"""uvicorn's connections with what it lacks: limits on time, size and number, and HTTP/1.0."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from diffuspec.serve.connections import Connections
from diffuspec.serve.settings import ServeSettings

_MAX_HEAD_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"^upgrade:", re.IGNORECASE | re.MULTILINE)


class BoundedProtocol(HttpToolsProtocol):
    """A connection that is closed if a head or a body is slow or large, or if there are too many.

    One timer runs at any time: for a head, from its first byte or from the connection's beginning;
    for a body, even of a request that has its answer; for the next request. While an answer is
    made, the application's own limit takes their place. The kernel drops the connection if its peer
    takes no data for `write_seconds`, even after its end.
    """

    def __init__(self, settings: ServeSettings, addresses: Connections, **options: Any) -> None:
        """`addresses`: the connections of all clients of the server."""
        super().__init__(**options)
        self._settings = settings
        self._addresses = addresses
        self._address: str | None = None  # the client's, while it is counted
        self._timer: asyncio.TimerHandle | None = None  # limits the wait for a head or a body
        self._num_framing_bytes = 0  # since a head was complete, or since a part of a body
        self._is_in_body = False
        self._held_back = b""  # possible beginning of a header name

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = "" if self.client is None else self.client[0]
        self._address = host if self._addresses.add(host) else None
        if self._address is None or len(self.connections) > self._settings.max_connections:
            transport.abort()
            return
        self._drop_stalled(transport.get_extra_info("socket"))
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self._unset_keepalive_if_required()  # uvicorn forgets it after an error
        if self._address is not None:
            self._addresses.remove(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._num_framing_bytes += len(data)
        if not self._is_in_body:
            data, self._held_back = _without_upgrade(self._held_back + data)
        super().data_received(data)
        if self._is_idle and self._timer is None and self.timeout_keep_alive_task is None:
            self._await_head()  # the bytes began no request: an empty line
        if self._num_framing_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._num_framing_bytes = 0
        self._is_in_body = True
        self._wait(self._settings.body_seconds, self._give_up_body)
        super().on_headers_complete()
        self.headers = []  # see drop_trailers
        self._use_host_of_target()
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnchunkedCycle  # its application has not started

    def on_body(self, body: bytes) -> None:
        self._num_framing_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        self._end_wait()
        super().on_message_complete()
        if self._is_idle:
            self._await_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._timer is not None:  # a body or the next head is arriving already
            self._unset_keepalive_if_required()

    @property
    def _is_idle(self) -> bool:
        """Whether all requests that have begun are answered."""
        return not self.pipeline and (self.cycle is None or self.cycle.response_complete)

    def _use_host_of_target(self) -> None:
        """Let the host in a proxy-style target override the header (RFC 9112, 3.2.2)."""
        target = httptools.parse_url(self.url)
        if target.host is not None:
            host = target.host if target.port is None else b"%s:%d" % (target.host, target.port)
            others = [header for header in self.scope["headers"] if header[0] != b"host"]
            self.scope["headers"] = [*others, (b"host", host)]

    def _await_head(self) -> None:
        self._num_framing_bytes = 0
        self._wait(self._settings.header_seconds, self.transport.abort)

    def _await_request(self) -> None:
        seconds, handler = self.timeout_keep_alive, self.timeout_keep_alive_handler
        self.timeout_keep_alive_task = self.loop.call_later(seconds, handler)

    def _give_up_body(self) -> None:
        """Close the connection, or let it end with the answer that is being made."""
        self._timer = None
        if self._is_idle:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _wait(self, seconds: float, give_up: Callable[[], None]) -> None:
        self._end_wait()
        self._timer = self.loop.call_later(seconds, give_up)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _drop_stalled(self, connected: Any) -> None:
        milliseconds = round(self._settings.write_seconds * 1000)
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # only on Linux
        with contextlib.suppress(OSError, AttributeError):
            if option is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, milliseconds)


def drop_trailers() -> None:
    """Let uvicorn's own connections in this process, too, drop the fields after a chunked body.

    Without this they become headers of the request, which no gateway in front has seen as such.
    """
    complete = HttpToolsProtocol.on_headers_complete

    def on_headers_complete(self: HttpToolsProtocol) -> None:
        complete(self)
        self.headers = []  # the request keeps its own list

    HttpToolsProtocol.on_headers_complete = on_headers_complete  # type: ignore[method-assign]


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
