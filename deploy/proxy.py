"""Middleware of Serve's proxies: checks and limits for every request.

A proxy loads this by RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deploy.proxy:middlewares, which
deploy/cluster/node.env sets: by itself, Serve lets clients lift its time-out and keep requests
running after they disconnect, buffers headers and bodies of any size, fails on its own headers if
they are not UTF-8, takes the fields after a chunked body for headers, returns request ids
unchecked, and reports its own errors as plain text, such as
404 while no application has a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffuspec.serve.http.edge import given_id
from diffuspec.serve.http.errors import respond
from diffuspec.serve.openai.errors import BadRequestError, HttpError
from diffuspec.serve.protocol import drop_trailers

Header: TypeAlias = tuple[bytes, bytes]

CALLBACK_VARIABLE = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
CALLBACK = "deploy.proxy:middlewares"
MAX_BODY_BYTES = 16 * 1024 * 1024  # limit in a proxy; the application's own limit is lower
MAX_HEADER_BYTES = 64 * 1024

_TOO_LONG = HttpError(
    431,
    f"the headers must have at most {MAX_HEADER_BYTES} bytes",
    "headers_too_large",
    headers={"connection": "close"},
)
_OWN_PATHS = "/-/"  # paths of Serve's proxies: health and routes
_ROUTES = "/-/routes"
_RETRY = {"retry-after": "1"}
_CANNOT_ANSWER = "the service cannot answer now; try again later"
NO_APPLICATION = "no application has this path now: it may be starting, or be deleted"
_HEADERS_OF_SERVE = (
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    b"x-session-id",
    b"serve-multiplexed-model-id",
)


def middlewares() -> list[Middleware]:
    """Return the middleware around the application in each proxy."""
    drop_trailers()
    return [Middleware(ProxyGuard)]


class ProxyGuard:
    """ASGI middleware: removes headers that control Serve, and limits headers and bodies."""

    def __init__(self, app: ASGIApp, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            headers = _checked(scope["headers"])
        except (HttpError, BadRequestError) as error:
            await respond(error, scope)(scope, receive, send)
            return
        await _Exchange(self._app, self._max_body_bytes).run(
            {**scope, "headers": headers}, receive, send
        )


def _checked(headers: Sequence[Header]) -> list[Header]:
    """Return the headers without those for Serve. Raises HttpError, BadRequestError."""
    if sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise _TOO_LONG
    kept = [one for one in headers if one[0].lower().replace(b"_", b"-") not in _HEADERS_OF_SERVE]
    given_id(Headers(raw=kept))
    return kept


def _is_serves_own(message: Message, path: str) -> bool:
    """Return whether a response is one of Serve's own errors.

    The application's own errors are never plain text.
    """
    kind = Headers(raw=message.get("headers", ())).get("content-type", "")
    is_error = message["status"] >= 400 and kind.startswith("text/plain")
    return is_error and not path.startswith(_OWN_PATHS)


def _with_one_id(headers: Sequence[Header]) -> list[Header]:
    """Return a response's headers without Serve's request id beside the application's."""
    ids = [one for one in headers if one[0].lower() == b"x-request-id"]
    return [one for one in headers if one not in ids] + ids[:1]


class _Exchange:
    """One request, cut off when its body is too large."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._left = max_body_bytes
        self._limit = max_body_bytes
        self._is_too_large = asyncio.Event()
        self._has_begun = False  # whether the response has begun
        self._is_replaced = False  # whether the response was replaced by one in OpenAI's format

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted() -> Message:
            message = await receive()
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                self._is_too_large.set()
                await asyncio.Event().wait()  # wait forever: `run` cancels this
            return message

        async def noted(message: Message) -> None:
            self._has_begun = True
            if self._is_replaced:
                return
            if message["type"] == "http.response.start":
                if _is_serves_own(message, scope["path"]):
                    self._is_replaced = True
                    error = await self._instead_of(message["status"], scope)
                    await respond(error, scope)(scope, receive, send)
                    return
                message = {**message, "headers": _with_one_id(message.get("headers", ()))}
            await send(message)

        answering = asyncio.ensure_future(self._app(scope, counted, noted))
        excess = asyncio.create_task(self._is_too_large.wait())
        try:
            await asyncio.wait({answering, excess}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
                return
        finally:
            for task in (answering, excess):
                task.cancel()
        await asyncio.wait({answering})
        if not self._has_begun:
            await respond(self._refusal(), scope)(scope, receive, send)

    async def _instead_of(self, status: int, scope: Scope) -> HttpError:
        """Return the error to send instead of Serve's: 503 if the request may succeed later.

        500 means that a replica was lost; 404 may mean that a proxy does not know the application
        yet.
        """
        if status == 404 and await self._knows_applications(scope):
            return HttpError(404, NO_APPLICATION, "not_found")
        if status == 408:
            return HttpError(408, _CANNOT_ANSWER, "timeout", kind="server_error")
        message = NO_APPLICATION if status == 404 else _CANNOT_ANSWER
        return HttpError(503, message, "unavailable", kind="server_error", headers=_RETRY)

    async def _knows_applications(self, scope: Scope) -> bool:
        """Query the proxy for its routes, as `GET /-/routes` does."""
        body = b""

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal body
            body += message.get("body", b"")

        routes = {"path": _ROUTES, "raw_path": _ROUTES.encode(), "query_string": b""}
        await self._app({**scope, "method": "GET", **routes, "headers": []}, receive, send)
        return body.strip().startswith(b'{"')

    def _refusal(self) -> HttpError:
        return HttpError(
            413,
            f"the body must have at most {self._limit} bytes",
            "body_too_large",
            headers={"connection": "close"},
        )
