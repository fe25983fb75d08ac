"""What a client does to its connection: go away, or stop reading."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from diffuspec.core.errors import RequestCancelledError

T = TypeVar("T")


class ClientGoneError(RequestCancelledError):
    """The client closed its connection, or stopped reading. No response is sent."""


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return what `work` returns; cancel it when the client disconnects.

    Raises ClientGoneError then. The request's body must have been read.
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
            if one.cancel():  # awaiting a finished one again would drop the frames of its error
                with contextlib.suppress(BaseException):
                    await one


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
