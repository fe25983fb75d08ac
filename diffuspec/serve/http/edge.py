"""The edge: checks the request's id, host, API key and the number of requests; adds headers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Iterator

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffuspec.core.errors import OverloadedError
from diffuspec.serve.http.allowance import Allowance
from diffuspec.serve.http.errors import log_failure, respond
from diffuspec.serve.http.events import ClientGoneError
from diffuspec.serve.http.keys import Keys
from diffuspec.serve.http.paths import route_of
from diffuspec.serve.messages.objects import is_anthropics
from diffuspec.serve.openai.errors import BadRequestError, HttpError
from diffuspec.serve.openai.validation import check_request_id
from diffuspec.serve.settings import ServeSettings
from diffuspec.telemetry import context

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_PROBES = ("/health", "/ping", "/ready")
_KEYED = (
    "/metrics",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
)  # paths that need a key, besides all under /v1
_LINGER_SECONDS = 2.0  # time to drain a refused body: clients send everything before they read
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


class Load:
    """Counts the requests in progress that have a body."""

    def __init__(self) -> None:
        self.num_requests = 0

    @contextlib.contextmanager
    def one_request(self) -> Iterator[None]:
        """Count a request while the context is open."""
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1


class Edge:
    """ASGI middleware: refuses requests before a body is read; adds headers to every response."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, keys: Keys | None, load: Load
    ) -> None:
        self._app = app
        self._load = load
        self._max_requests = settings.max_requests
        self._keys = keys
        hosts = settings.allowed_hosts
        if hosts is None and self._keys is None:
            hosts = _LOOPBACK
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            exchange.check_id()
            _check_framing(Headers(scope=scope))
            self._check_host(scope)
            allowance = self._authenticate(scope)
            scope["state"]["allowance"] = allowance
            context.key_name.set("" if allowance is None else allowance.name)
            with self._counted(scope, allowance):
                await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            if not exchange.is_begun:
                await respond(error, scope)(scope, exchange.receive, exchange.send)
            elif not isinstance(error, ClientGoneError):
                log_failure(error)  # the server closes the connection

    def _check_host(self, scope: Scope) -> None:
        """Refuse unknown host names, against DNS rebinding by foreign pages."""
        if self._hosts is None or route_of(scope) in _PROBES:
            return
        headers = Headers(scope=scope)
        if scope["http_version"] == "1.0" and "host" not in headers:
            return  # HTTP/1.0 needs no host, and every browser sends one
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else re.sub(r":\d*$", "", host)
        if name not in self._hosts:
            raise HttpError(
                403,
                "this service does not answer to this host name: allowed_hosts lists its names, by "
                "default only loopback's own while it has no API keys",
                "host_not_allowed",
            )

    def _authenticate(self, scope: Scope) -> Allowance | None:
        """Return the allowance of the caller's key; None if no key is needed."""
        path = route_of(scope)
        if self._keys is None or not (path.startswith("/v1/") or path in _KEYED):
            return None
        given = _given_keys(Headers(scope=scope))
        found = (self._keys.find(key) for key in given)
        allowance = next((one for one in found if one is not None), None)
        if allowance is None:
            raise HttpError(
                401,
                "this service has no such API key"
                if given
                else "an API key is needed: authorization: Bearer KEY, or x-api-key: KEY",
                "invalid_api_key",
                kind="authentication_error",
                headers={"www-authenticate": "Bearer"},
            )
        return allowance

    @contextlib.contextmanager
    def _counted(self, scope: Scope, allowance: Allowance | None) -> Iterator[None]:
        """Count a request with a body while it runs. Raises OverloadedError, HttpError."""
        if scope["method"] != "POST":
            yield
            return
        if self._load.num_requests >= self._max_requests:
            raise OverloadedError(f"{self._load.num_requests} requests are in progress")
        with (
            allowance.one_request() if allowance is not None else contextlib.nullcontext(),
            self._load.one_request(),
        ):
            yield


def _check_framing(headers: Headers) -> None:
    """Refuse requests that two servers might read differently. Raises HttpError."""
    coding = ", ".join(headers.getlist("transfer-encoding")).strip().lower()
    if coding not in ("", "chunked"):
        raise HttpError(501, "transfer-encoding must be chunked", "unsupported_transfer_encoding")
    if len(headers.getlist("host")) > 1:
        raise HttpError(400, "there must be one host header", "several_hosts")


def _has_body(headers: Headers) -> bool:
    """Return whether a request announces a body, which requests of any method may."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _given_keys(headers: Headers) -> list[str]:
    """Return the API keys of a request, from OpenAI's header and from Anthropic's."""
    kind, _, key = headers.get("authorization", "").partition(" ")
    keys = [key.strip() if kind.lower() == "bearer" else "", headers.get("x-api-key", "").strip()]
    return [key for key in keys if key]


def given_id(headers: Headers) -> str | None:
    """Return the request id given by a client. Raises BadRequestError."""
    given = headers.get("x-request-id")
    try:
        return None if given is None else check_request_id(given)
    except ValueError as error:
        raise BadRequestError(f"x-request-id {error}") from None


def use_id(scope: Scope, request_id: str) -> None:
    """Set a request's id: in its handlers, its response and the log."""
    scope["state"]["request_id"] = request_id
    context.request_id.set(request_id)


class HeadAsGet:
    """ASGI middleware: answers HEAD like GET. The server sends only the headers of the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope = scope
        self._headers = Headers(scope=scope)
        self._receive = receive
        self._send = send
        self._is_read = not _has_body(self._headers)
        self.is_begun = False  # whether the response has begun
        scope.setdefault("state", {})
        use_id(scope, uuid.uuid4().hex)

    def check_id(self) -> None:
        """Use the client's request id, if there is one. Raises BadRequestError."""
        given = given_id(self._headers)
        if given is not None:
            use_id(self._scope, given)

    async def receive(self) -> Message:
        message = await self._receive()
        self._is_read |= not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_begun = True
            await self._linger()
            headers = MutableHeaders(scope=message)
            request_id = self._scope["state"]["request_id"]
            headers["x-request-id"] = request_id
            if is_anthropics(route_of(self._scope)):
                headers["request-id"] = request_id
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if not self._is_read:
                headers["connection"] = "close"
        await self._send(message)

    async def _linger(self) -> None:
        """Read and discard the rest of the body, for at most _LINGER_SECONDS."""
        if self._is_read or "expect" in self._headers:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._is_read:
                    await self.receive()
