"""All outputs of a job as one stream, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import TypeAlias

from diffuspec.core.types import RequestOutput
from diffuspec.serve.backend import TokenSource
from diffuspec.serve.openai.jobs import Generation

Indexed: TypeAlias = tuple[int, RequestOutput]
Places: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]

_MAX_UNREAD = 64  # outputs of all generations; the backend waits for a slower client


async def outputs(
    backend: TokenSource,
    generations: Sequence[Generation],
    request_id: str,
    max_seconds: float,
    places: Places = nullcontext,
) -> AsyncGenerator[Indexed]:
    """Yield the outputs of all generations as they arrive, with their index.

    Each waits for a place, a context that `places` returns, and holds it until it ends. Closing the
    generator cancels those still running. The first error ends all. Raises TimeoutError if they do
    not finish in time.
    """
    deadline = asyncio.get_running_loop().time() + max_seconds
    streams = [_indexed(backend, generation, request_id, places) for generation in generations]
    merged = streams[0] if len(streams) == 1 else _merge(streams)
    async with aclosing(merged):
        while True:
            async with asyncio.timeout_at(deadline):
                output = await anext(merged, None)
            if output is None:
                return
            yield output


async def _indexed(
    backend: TokenSource, generation: Generation, request_id: str, places: Places
) -> AsyncGenerator[Indexed]:
    stream = backend.stream(
        generation.prompt_token_ids, generation.sampling, generation.speculation, request_id
    )
    async with places(), aclosing(stream):
        async for output in stream:
            yield generation.index, output


async def _merge(streams: Sequence[AsyncGenerator[Indexed]]) -> AsyncGenerator[Indexed]:
    queue: asyncio.Queue[Indexed | BaseException | None] = asyncio.Queue(_MAX_UNREAD)

    async def pump(stream: AsyncGenerator[Indexed]) -> None:
        end: BaseException | None = None
        async with aclosing(stream):
            try:
                async for output in stream:
                    await queue.put(output)
            except Exception as error:
                end = error
        await queue.put(end)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        num_running = len(tasks)
        while num_running:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
