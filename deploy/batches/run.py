"""The run of a batch: a bounded number of rows in flight, each result on disk before the next row.

A row fails only if the row itself is at fault: after two losses of a service that recovers, it is
sent once more with no other row in flight. While the service is busy or down, rows wait; after a
long time without any answer the run stops, and the same command continues it later.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from deploy.batches.inputs import MAX_LINE_BYTES, Line
from deploy.batches.outputs import OnResult, Result
from deploy.batches.results import (
    BatchStoppedError,
    Reply,
    Service,
    ServiceBusyError,
    ServiceLostError,
    answered,
    conversation,
    failed,
)
from deploy.batches.rows import BadRowError, Row, parse_row
from deploy.batches.turns import Turns
from diffuspec.core.backoff import Backoff
from diffuspec.core.losses import FATAL_LOSSES, SUSPECT_LOSSES

_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Options:
    """How rows are sent."""

    concurrency: int | None  # rows in flight; None: as many as keep the service busy
    patience_seconds: float  # time without any answer after which the run stops
    defaults: Mapping[str, Any]  # default parameters of plain rows and questions
    speculation: Mapping[str, Any]  # default speculation of rows


class Results(Protocol):
    """A destination of results; see `Output`."""

    async def append(self, result: Result, on_written: OnResult) -> None: ...

    async def flush(self) -> None: ...


class _LostRowError(Exception):
    """The service fails on every attempt at this row, and answers others."""


class Run:
    """One run over the rows that have no result yet."""

    def __init__(
        self,
        service: Service,
        output: Results,
        options: Options,
        on_result: OnResult,
    ) -> None:
        """on_result is called with every result that is on disk, even during cancellation."""
        self._service = service
        self._output = output
        self._options = options
        self._on_result = on_result
        self._turns = Turns()
        self._answered_at = 0.0  # monotonic time of the service's latest reply

    async def finish(self, lines: Iterator[Line]) -> None:
        """Answer all lines. On cancellation, complete results are written first.

        Raises BatchStoppedError when the service has been down for too long.
        """
        self._answered_at = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._options.concurrency or self._service.concurrency):
                    group.create_task(self._work(lines))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._output.flush()

    async def _work(self, lines: Iterator[Line]) -> None:
        for line in lines:
            await self._output.append(await self._answer(line), self._on_result)

    async def _answer(self, line: Line) -> Result:
        """Return the result of a line, whether the line is valid or not."""
        place = (line.number, line.digest, line.custom_id)
        if line.is_too_long:
            return failed(*place, "invalid_json", f"the line is above {MAX_LINE_BYTES} bytes")
        try:
            row = parse_row(line.content, self._options.defaults)
            return answered(*place, await self._converse(row, line))
        except BadRowError as error:
            return failed(*place, error.code, str(error), error.param)
        except _LostRowError as error:
            return failed(*place, "service_lost", str(error))

    async def _converse(self, row: Row, line: Line) -> Reply:
        """Send all turns of a row, each with the answers to the turns before it."""
        body = dict(row.body)
        if self._options.speculation:
            body.setdefault("speculation", self._options.speculation)
        replies: list[Reply] = []
        for turn, text in enumerate((None, *row.later_turns), start=1):
            if text is not None:
                said = _answer_of(replies[-1])
                body["messages"] = [*body["messages"], said, {"role": "user", "content": text}]
            request_id = f"batch-{line.number}-{turn}-{line.digest:016x}"
            replies.append(await self._ask(row.url, body, request_id))
            if not replies[-1].is_ok:
                break
        return conversation(row.question, replies)

    async def _ask(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        """Send a request until there is a reply; the module says when to give up."""
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        num_losses = 0  # number of losses after which the service was still up
        while True:
            try:
                async with self._turns.taken(alone=num_losses >= SUSPECT_LOSSES):
                    reply = await self._service.ask(url, body, request_id)
            except (ServiceBusyError, ServiceLostError) as error:
                failed_at = time.monotonic()
                pause = max(backoff.failed(), _wanted_pause(error)) * random.uniform(0.75, 1.25)
                self._check_patience(pause, error)
                await asyncio.sleep(pause)
                if isinstance(error, ServiceLostError):
                    num_losses += self._answered_at > failed_at or await self._service.is_up()
                    if num_losses >= FATAL_LOSSES:
                        raise _LostRowError(
                            f"lost {num_losses} times, at last while no other row was in flight: "
                            f"{error}"
                        ) from error
            else:
                self._answered_at = time.monotonic()
                return reply

    def _check_patience(self, pause: float, error: Exception) -> None:
        patience = self._options.patience_seconds
        if time.monotonic() + pause - self._answered_at > patience:
            raise BatchStoppedError(f"no answer for {patience:g} seconds; the last error: {error}")


def _wanted_pause(error: Exception) -> float:
    return error.retry_after_seconds if isinstance(error, ServiceBusyError) else 0.0


def _answer_of(reply: Reply) -> dict[str, str]:
    """Return the model's message in a reply, in the form that a later turn needs."""
    [choice, *_] = reply.body["choices"]
    return {"role": "assistant", "content": choice["message"]["content"] or ""}
