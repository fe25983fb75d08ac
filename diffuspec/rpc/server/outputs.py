"""Sends the outputs of a request to a client that may be slower than the coordinator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Any, TypeAlias

from diffuspec.core.errors import RequestCancelledError, WorkerError
from diffuspec.core.losses import on_begin
from diffuspec.core.types import RequestOutput
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.messages.answers import put_output
from diffuspec.rpc.messages.status import BEGUN_KEY, TransportError, is_task_cancelled
from diffuspec.rpc.server.interceptor import begin_response, write_within
from diffuspec.v1 import coordinator_pb2

_FULL_SECONDS = 1.0  # time for the client to take an output when the maximum is unread


class _News(Enum):
    """Entries of a queue besides outputs and errors."""

    BEGUN = "the request has left the coordinator's queue"
    END = "there are no more outputs"


_Queue: TypeAlias = "asyncio.Queue[RequestOutput | BaseException | _News]"


class ClientStalledError(RequestCancelledError):
    """The client stopped reading, so its request was cancelled."""


async def send_outputs(
    outputs: AsyncGenerator[RequestOutput], context: Any, limits: RpcLimits
) -> None:
    """Send all outputs, in order, and close their generator.

    They are taken from the generator as they arrive, so that the coordinator is never more than
    `max_unread_outputs` and a second ahead of the client. Raises the generator's error after the
    outputs before it, and ClientStalledError.
    """
    unsent: _Queue = asyncio.Queue(limits.max_unread_outputs)
    on_begin.set(lambda: unsent.put_nowait(_News.BEGUN))  # nothing is in the queue before
    tasks = [
        asyncio.create_task(_take(outputs, unsent)),
        asyncio.create_task(_send(unsent, context, limits.max_stall_seconds)),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _take(outputs: AsyncGenerator[RequestOutput], unsent: _Queue) -> None:
    end: BaseException | _News = _News.END
    async with contextlib.aclosing(outputs):
        try:
            async for output in outputs:
                await _put(output, unsent)
        except ClientStalledError:
            raise
        except Exception as error:
            end = error
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            end = WorkerError("the coordinator cancelled the request")
    await _put(end, unsent)


async def _put(output: RequestOutput | BaseException | _News, unsent: _Queue) -> None:
    if not unsent.full():
        unsent.put_nowait(output)
        return
    try:
        async with asyncio.timeout(_FULL_SECONDS):
            await unsent.put(output)
    except TimeoutError as error:
        raise ClientStalledError(
            f"the client stopped reading: {unsent.qsize()} outputs are waiting for it"
        ) from error


async def _send(unsent: _Queue, context: Any, max_seconds: float) -> None:
    has_begun = False
    while (output := await unsent.get()) is not _News.END:
        if isinstance(output, BaseException):
            raise output
        if not has_begun:
            has_begun = True
            await begin_response(context, [(BEGUN_KEY, "1")])
        if output is _News.BEGUN:
            continue
        # The first message of the next step is sent in the next turn of the event loop, and workers
        # wait for it; informing a client about the last step takes 0.1 to 0.2 ms.
        await asyncio.sleep(0)
        response = coordinator_pb2.GenerateResponse()
        put_output(response, output)
        try:
            await write_within(max_seconds, context, response)
        except TransportError as error:
            raise ClientStalledError(f"the client stopped reading: {error}") from error
