"""Metrics and a log line for every request: route, status, time, sizes and errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, generate_latest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffuspec.serve.http.paths import route_of
from diffuspec.serve.openai.objects import ErrorCode
from diffuspec.telemetry import context
from diffuspec.telemetry.series import SeriesTable

if TYPE_CHECKING:
    from diffuspec.telemetry.request_spans import RequestSpans

logger = logging.getLogger(__name__)

_BYTES = tuple(4**exponent for exponent in range(3, 13))  # 64 bytes to 16 MiB
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_QUIET = ("/health", "/load", "/metrics", "/ping", "/ready")  # called every few seconds
_ABORTED = 499  # the client left, or stopped reading, before the end

_told: ContextVar[list[str]] = ContextVar("errors told to the client of this request")


class HttpSeries:
    """Prometheus series of one application, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.table = table = SeriesTable(self.registry)
        self.requests = table.counter(
            "http_requests_total",
            "HTTP requests by route, method and status; 499: the client disconnected.",
            ["route", "method", "status"],
        )
        self.seconds = table.histogram(
            "http_request_duration_seconds",
            "From the head of a request to the end of its response.",
            ["route"],
        )
        self.body_bytes = table.histogram(
            "http_request_body_bytes",
            "Bytes of a request's body that were read.",
            ["route"],
            _BYTES,
        )
        self.errors = table.counter(
            "http_errors_total",
            "Errors sent to clients, also within streams, by code, or else by type.",
            ["code"],
            [(code,) for code in (*get_args(ErrorCode), "invalid_request_error")],
        )
        self.num_open = 0
        open_requests = table.gauge("http_requests_open", "HTTP requests in progress.")
        open_requests.read = lambda: self.num_open

    def expect(self, route: str, method: str, statuses: Iterable[int | str]) -> None:
        """Start the counts of a route's requests at 0, for its possible statuses."""
        for status in statuses:
            self.requests.at(route, method, str(status))

    def text(self) -> str:
        """Return the series in Prometheus's text format."""
        return str(generate_latest(self.registry).decode())


def note_error(code: str) -> None:
    """Count an error that is sent to the client of the current request."""
    told = _told.get(None)
    if told is not None:
        told.append(code)


class Observer:
    """ASGI middleware around all that answers. It sees a HEAD as the GET that answers it."""

    def __init__(self, app: ASGIApp, series: HttpSeries, spans: RequestSpans | None) -> None:
        self._app = app
        self._series = series
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        one = _Observed(receive, send)
        _told.set(one.errors)
        context.follow_trace(Headers(scope=scope).get("traceparent", ""))
        self._series.num_open += 1
        try:
            if self._spans is None:
                await self._app(scope, one.receive, one.send)
            else:
                await self._traced(scope, one, self._spans)
        finally:
            self._series.num_open -= 1
            self._count(scope, one)

    async def _traced(self, scope: Scope, one: _Observed, spans: RequestSpans) -> None:
        with spans.serving("http") as span:
            try:
                await self._app(scope, one.receive, one.send)
            finally:
                method, route = _method(scope), _route(scope)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.request.method", method)
                span.set_attribute("http.route", route)
                span.set_attribute("http.response.status_code", one.final_status)
                span.set_attribute("diffuspec.request_id", context.request_id.get())

    def _count(self, scope: Scope, one: _Observed) -> None:
        route = _route(scope)
        method, status = _method(scope), one.final_status
        seconds = time.monotonic() - one.started_at
        series = self._series
        series.requests.inc(route, method, str(status))
        series.seconds.at(route).observe(seconds)
        series.body_bytes.at(route).observe(one.num_bytes)
        for code in one.errors:
            series.errors.inc(code)
        level = logging.DEBUG if route in _QUIET else logging.INFO
        logger.log(level, "%s %s: %d in %.3f s", method, route, status, seconds)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in _METHODS else "other"


def _route(scope: Scope) -> str:
    """Return the path of one of the application's routes; "other" for any other path."""
    matched = scope.get("route")
    if matched is not None:
        return str(matched.path)
    known = {getattr(route, "path", "") for route in scope["app"].routes}
    path = route_of(scope)
    return path if path in known else "other"


class _Observed:
    """One request and its response, as observed."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.started_at = time.monotonic()
        self.num_bytes = 0
        self.status = 500
        self.is_complete = False
        self.errors: list[str] = []

    @property
    def final_status(self) -> int:
        return self.status if self.is_complete else _ABORTED

    async def receive(self) -> Message:
        message = await self._receive()
        self.num_bytes += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.is_complete = True
