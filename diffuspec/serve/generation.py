"""All outputs of a job as one stream, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    nullcontext,
)
from typing import TypeAlias

from diffuspec.core.types import RequestOutput
from diffuspec.serve.backend import TokenSource
from diffuspec.serve.openai.jobs import Generation

Indexed: TypeAlias = tuple[int, RequestOutput]
Take: TypeAlias = Callable[[], Awaitable[Indexed | None]]  # the next output; None: all have ended
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
    opened = _single if len(generations) == 1 else _several
    async with AsyncExitStack() as stack:
        async with asyncio.timeout_at(deadline):
            source = opened(backend, generations, request_id, places)
            take = await stack.enter_async_context(source)
        while True:
            async with asyncio.timeout_at(deadline):
                output = await take()
            if output is None:
                return
            yield output


@asynccontextmanager
async def _single(
    backend: TokenSource, generations: Sequence[Generation], request_id: str, places: Places
) -> AsyncGenerator[Take]:
    [generation] = generations

    async def take() -> Indexed | None:
        output = await anext(stream, None)
        return None if output is None else (generation.index, output)

    async with places(), aclosing(_stream(backend, generation, request_id)) as stream:
        yield take


@asynccontextmanager
async def _several(
    backend: TokenSource, generations: Sequence[Generation], request_id: str, places: Places
) -> AsyncGenerator[Take]:
    """Join several generations in one bounded channel."""
    channel: asyncio.Queue[Indexed | BaseException | None] = asyncio.Queue(_MAX_UNREAD)
    num_running = len(generations)

    async def pump(generation: Generation) -> None:
        end: BaseException | None = None
        try:
            async with places(), aclosing(_stream(backend, generation, request_id)) as stream:
                async for output in stream:
                    await channel.put((generation.index, output))
        except Exception as error:
            end = error
        await channel.put(end)

    async def take() -> Indexed | None:
        nonlocal num_running
        while num_running:
            item = await channel.get()
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                return item
            num_running -= 1
        return None

    tasks = [asyncio.create_task(pump(generation)) for generation in generations]
    try:
        yield take
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _stream(
    backend: TokenSource, generation: Generation, request_id: str
) -> AsyncGenerator[RequestOutput]:
    prompt, sampling = generation.prompt_token_ids, generation.sampling
    return backend.stream(prompt, sampling, generation.speculation, request_id)
