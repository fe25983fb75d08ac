"""Answers that outlive the coordinator that gives them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace

from diffuspec.errors import OverloadedError
from diffuspec.rpc.status import TransportError
from diffuspec.sequence import Increment

logger = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.5  # before a coordinator whose queue is full is asked again


async def resumed(
    ask: Callable[[], Awaitable[AsyncGenerator[Increment]]],
    wait_for_another: Callable[[TransportError], Awaitable[None]],
) -> AsyncGenerator[Increment]:
    """Yield an answer; ask for it again when the way to it is lost, and go on where it was.

    What is asked for must be the same every time. An answer that was begun stands its turn again
    when the next coordinator's queue is full. Raises what the two raise, and what ends an answer.
    """
    num_yielded, was_lost = 0, False
    while True:
        try:
            async with contextlib.aclosing(_after(await ask(), num_yielded)) as rest:
                async for increment in rest:
                    num_yielded += len(increment.token_ids)
                    yield increment
                    if increment.finish_reason is not None:
                        return  # what comes after it may be lost
            return
        except TransportError as error:
            logger.warning("an answer is begun again after %d tokens: %s", num_yielded, error)
            was_lost = True
            await wait_for_another(error)
        except OverloadedError:
            if not was_lost:
                raise
            await asyncio.sleep(_PAUSE_SECONDS)


async def _after(stream: AsyncGenerator[Increment], num_tokens: int) -> AsyncGenerator[Increment]:
    """Yield what a stream yields after so many tokens."""
    async with contextlib.aclosing(stream):
        async for increment in stream:
            num_skipped = min(num_tokens, len(increment.token_ids))
            num_tokens -= num_skipped
            if num_skipped < len(increment.token_ids):
                yield _without(increment, num_skipped) if num_skipped else increment


def _without(increment: Increment, num_tokens: int) -> Increment:
    """Return an increment without its first tokens."""
    pieces = increment.pieces[num_tokens:]
    return replace(
        increment,
        token_ids=increment.token_ids[num_tokens:],
        num_accepted_tokens=max(increment.num_accepted_tokens - num_tokens, 0),
        pieces=pieces,
        text="".join(pieces),
        logprobs=increment.logprobs and increment.logprobs[num_tokens:],
    )
