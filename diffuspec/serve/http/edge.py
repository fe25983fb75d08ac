"""What surrounds every request: an id, and headers of every response."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffuspec.serve.http.errors import respond
from diffuspec.serve.openai.errors import BadRequestError

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}


class Edge:
    """ASGI middleware: checks or makes the request id, and adds headers to responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id")
        is_wrong = given is not None and not _REQUEST_ID.fullmatch(given)
        request_id = uuid.uuid4().hex if given is None or is_wrong else given
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if is_wrong:
            error = BadRequestError("x-request-id must be at most 128 of A-Z a-z 0-9 . _ -")
            await respond(error)(scope, receive, send_with_headers)
        else:
            await self._app(scope, receive, send_with_headers)
