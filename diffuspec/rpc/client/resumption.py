"""Answers that survive the loss of the process that produces them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import OverloadedError, RequestCancelledError
from diffuspec.core.losses import Losses
from diffuspec.core.types import RequestOutput
from diffuspec.rpc.messages.status import LostAnswerError, TransportError

logger = logging.getLogger(__name__)

Ask: TypeAlias = Callable[[Sequence[int], Losses], Awaitable[AsyncGenerator[RequestOutput]]]
Wait: TypeAlias = Callable[[TransportError], Awaitable[None]]
Result = TypeVar("Result")

# pauses after a full queue has refused the request
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.25, 2.0
# interrupted answers that have begun are retried for this long before the others
_TURN_SECONDS = 0.5
_MAX_INTERRUPTIONS = 16  # times that an answer may be asked for again, whatever the reasons


class ResumedAnswer:
    """An answer that is requested again when the connection is lost, from where it stopped.

    `ask` requests the rest of the answer after the given tokens, which have been yielded.
    `wait_for_another` waits for another usable process, or raises the reason why there is none.
    A request at which processes are lost is asked for as a suspect, and at last not again: see
    Losses. Belongs to one event loop.
    """

    def __init__(
        self,
        ask: Ask,
        wait_for_another: Wait,
        request_id: str | None = None,
        num_losses: int = 0,
    ) -> None:
        self.request_id = request_id
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ask, self._wait_for_another = ask, wait_for_another
        self._losses = Losses(num_losses)
        self._token_ids: list[int] = []  # tokens yielded so far
        self._is_over = False  # nothing is left to cancel
        self._is_cancelled = False
        self._waiting: asyncio.Task[object] | None = None  # waits for an output, or for a turn

    def cancel(self) -> bool:
        """End the answer with RequestCancelledError; return whether it was still running."""
        if self._is_over:
            return False
        if self._waiting is not None and not self._is_cancelled:
            self._waiting.cancel()
        self._is_cancelled = True
        return True

    async def stream(self) -> AsyncGenerator[RequestOutput]:
        """Yield the answer, once. Raises the errors of `ask`, `wait_for_another` and the answer.

        Raises FatalRequestError if too many processes were lost while they worked on it. An answer
        that was interrupted before its first token is retried as long as the next process's queue
        is full.
        """
        num_interruptions, backoff = 0, Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        try:
            while not self._is_over:
                try:
                    async with contextlib.aclosing(self._from_one_process()) as rest:
                        async for increment in rest:
                            yield increment
                except TransportError as error:
                    logger.warning(
                        "an answer was interrupted after %d tokens: %s", len(self._token_ids), error
                    )
                    num_interruptions += 1
                    if isinstance(error, LostAnswerError):
                        self._losses.add(str(error), len(self._token_ids))
                    if num_interruptions > _MAX_INTERRUPTIONS:
                        raise
                    await self._unless_cancelled(partial(self._wait_for_another, error))
                    if not self._token_ids:  # answers that have begun go first
                        await self._unless_cancelled(partial(asyncio.sleep, _TURN_SECONDS))
                except OverloadedError:
                    if not num_interruptions:
                        raise
                    await self._unless_cancelled(partial(asyncio.sleep, backoff.failed()))
        finally:
            self._is_over = True
            self.closed.set_result(None)

    async def _from_one_process(self) -> AsyncGenerator[RequestOutput]:
        """Yield the outputs that one process adds to the answer."""
        ask = partial(self._ask, tuple(self._token_ids), self._losses)
        stream = await self._unless_cancelled(ask)
        async with contextlib.aclosing(stream):
            more = partial(anext, stream, None)
            while (increment := await self._unless_cancelled(more)) is not None:
                self._token_ids += increment.token_ids
                self._is_over = increment.finish_reason is not None
                yield increment
                if self._is_over:
                    return  # an error after the last increment does not matter
        self._is_over = True

    async def _unless_cancelled(self, wait: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `wait`. Raises RequestCancelledError once cancel() is called."""
        task = self._waiting = asyncio.current_task()
        assert task is not None
        num_cancelling = task.cancelling()
        try:
            if not self._is_cancelled:
                return await wait()
        except asyncio.CancelledError:  # raised by cancel(), unless the task itself is cancelled
            if not self._is_cancelled or task.uncancel() > num_cancelling:
                raise
        finally:
            self._waiting = None
        raise RequestCancelledError(f"{self.request_id!r} was cancelled")
