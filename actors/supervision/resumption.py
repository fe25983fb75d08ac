"""Answers that outlive the coordinator that gives them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias, TypeVar

from diffuspec.core.errors import OverloadedError, RequestCancelledError
from diffuspec.core.types import RequestOutput
from diffuspec.rpc.messages.status import TransportError

logger = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[], Awaitable[AsyncGenerator[RequestOutput]]]
Wait: TypeAlias = Callable[[TransportError], Awaitable[None]]
Result = TypeVar("Result")

_PAUSE_SECONDS = 0.5  # before a coordinator whose queue is full is asked again


class ResumedAnswer:
    """An answer that is asked for again when the way to it is lost, and goes on where it was.

    What `ask` asks for must be the same every time. `wait_for_another` waits for the next
    coordinator, or raises what says that there is none. Belongs to one event loop.
    """

    def __init__(self, ask: Ask, wait_for_another: Wait, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask, self._wait_for_another = ask, wait_for_another
        self._num_yielded = 0
        self._is_over = False  # there is nothing left to cancel
        self._is_cancelled = False
        self._waiting: asyncio.Timeout | None = None

    def cancel(self) -> bool:
        """End it with RequestCancelledError, whatever it waits for; return whether it ran."""
        if self._is_over:
            return False
        if self._waiting is not None and not self._is_cancelled:
            self._waiting.reschedule(0.0)
        self._is_cancelled = True
        return True

    async def stream(self) -> AsyncGenerator[RequestOutput]:
        """Yield it, once. Raises what the two raise, and what ends an answer.

        An answer that was begun stands its turn again when the next coordinator's queue is full.
        """
        was_lost = False
        try:
            while not self._is_over:
                try:
                    async with contextlib.aclosing(self._from_one_coordinator()) as rest:
                        async for increment in rest:
                            yield increment
                except TransportError as error:
                    num_tokens = self._num_yielded
                    logger.warning(
                        "an answer is begun again after %d tokens: %s", num_tokens, error
                    )
                    was_lost = True
                    await self._unless_cancelled(partial(self._wait_for_another, error))
                except OverloadedError:
                    if not was_lost:
                        raise
                    await self._unless_cancelled(partial(asyncio.sleep, _PAUSE_SECONDS))
        finally:
            self._is_over = True
            self.closed.set_result(None)

    async def _from_one_coordinator(self) -> AsyncGenerator[RequestOutput]:
        """Yield what is missing, as far as one coordinator gives it."""
        stream = await self._unless_cancelled(self._ask)
        async with contextlib.aclosing(_after(stream, self._num_yielded)) as rest:
            more = partial(anext, rest, None)
            while (increment := await self._unless_cancelled(more)) is not None:
                self._num_yielded += len(increment.token_ids)
                self._is_over = increment.finish_reason is not None
                yield increment
                if self._is_over:
                    return  # what comes after it may be lost
        self._is_over = True

    async def _unless_cancelled(self, wait: Callable[[], Awaitable[Result]]) -> Result:
        """Return what is waited for. Raises RequestCancelledError once that was asked for."""
        cancelled = RequestCancelledError(f"{self.request_id!r} was cancelled")
        if self._is_cancelled:
            raise cancelled
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await wait()
        except TimeoutError:
            if not self._is_cancelled:
                raise
            raise cancelled from None
        finally:
            self._waiting = None


async def _after(
    stream: AsyncGenerator[RequestOutput], num_tokens: int
) -> AsyncGenerator[RequestOutput]:
    """Yield what a stream yields after so many tokens."""
    async with contextlib.aclosing(stream):
        async for increment in stream:
            num_skipped = min(num_tokens, len(increment.token_ids))
            num_tokens -= num_skipped
            if num_skipped < len(increment.token_ids):
                yield _without(increment, num_skipped) if num_skipped else increment


def _without(increment: RequestOutput, num_tokens: int) -> RequestOutput:
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
