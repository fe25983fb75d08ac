"""A stream of server-sent events, as the APIs' clients read it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from diffuspec.core.errors import RequestCancelledError

T = TypeVar("T")


DONE = b"data: [DONE]\n\n"
# Characters at which clients that split lines by Unicode's rules would break an event.
_ESCAPED = {ord(one): f"\\u{ord(one):04x}" for one in "\x7f\x85\u2028\u2029"}


class ClientGoneError(RequestCancelledError):
    """The client closed its connection, or stopped reading. No response is sent."""


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return the result of `work`; cancel it when the client disconnects.

    Raises ClientGoneError in that case. The request's body must have been read before.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError("the client closed its connection")
    finally:
        for one in (task, watcher):
            if one.cancel():  # awaiting a finished task again would drop the frames of its error
                with contextlib.suppress(BaseException):
                    await one


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: Mapping[str, object]) -> bytes:
    """Return one event, named after its `type` if it has one.

    The JSON contains no line breaks of any kind, and no control characters.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    name = f"event: {data['type']}\n" if "type" in data else ""
    written = f"{name}data: {text.translate(_ESCAPED)}\n\n"
    return written.encode("utf-8", "replace")


class EventStream(Response):
    """Sends events as they arrive; closes their generator when the client goes or stops reading."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes], write_seconds: float) -> None:
        """`events` must not raise: errors are events too."""
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._write_seconds = write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGoneError):
            await unless_gone(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._events):
            await self._write(
                send,
                {
                    "type": "http.response.start",
                    "status": self.status_code,
                    "headers": self.raw_headers,
                },
            )
            async for data in self._events:
                message = {"type": "http.response.body", "body": data, "more_body": True}
                await self._write(send, message)
            await self._write(send, {"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._write_seconds):
                await send(message)
        except (TimeoutError, OSError) as error:
            raise ClientGoneError("the client stopped reading") from error
