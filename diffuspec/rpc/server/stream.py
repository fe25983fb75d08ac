"""The server's end of streams of steps: many at once, answered as they are done."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from diffuspec.core.errors import InvalidRequestError, OverloadedError, WorkerError
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.batches import BatchReader, check_id
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.messages.status import TransportError, is_task_cancelled, step_error
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.interceptor import refuse_malformed

logger = logging.getLogger(__name__)

_NOT_TAKEN = "the client has taken no response for too long"

Batch = TypeVar("Batch")

Release = Callable[[str], Awaitable[None]]


class StepService(Generic[Batch]):
    """One streaming method of a role.

    read makes a batch of a message, at once and in order, because each message changes what the
    next one builds on; work answers it with a response that lacks id and times.
    """

    def __init__(
        self,
        response: type[Message],
        read: Callable[[Any, BatchReader], Batch],
        work: Callable[[Batch], Awaitable[Any]],
        release: Release,
    ) -> None:
        self.response: Any = response
        self.read = read
        self.work = work
        self.release = release
        self._stream_numbers = itertools.count(1)
        self._cleanups: set[asyncio.Task[None]] = set()
        self.begin(DEFAULT_LIMITS, StepHealth(DEFAULT_LIMITS.max_step_seconds))

    def begin(self, limits: RpcLimits, health: StepHealth) -> None:
        """Called when a server begins to serve it. health hears of every step."""
        self.limits = limits
        self.health = health
        self.draining = asyncio.Event()

    async def finish(self) -> None:
        """Wait until what the role holds for streams that ended is let go, if it does not hang."""
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=self.limits.grace_seconds)

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve one stream to its end. Raises InvalidRequestError for bytes that are no message."""
        stream = _Stream(self, context, f"{next(self._stream_numbers)}/")
        try:
            await stream.run()
        finally:
            cleanup = asyncio.create_task(stream.let_go())
            self._cleanups.add(cleanup)
            cleanup.add_done_callback(self._cleanups.discard)


class _Stream:
    def __init__(self, service: StepService[Any], context: Any, scope: str) -> None:
        limits = service.limits
        self._service = service
        self._context = context
        self._prefixes = PrefixStore(limits.max_prefixes, limits.max_prefix_tokens)
        self._reader = BatchReader(self._prefixes, limits, scope)
        self._steps: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Read until the client is done or the server drains, then let running steps finish.

        Raises TransportError when the client takes no answers.
        """
        reading = asyncio.create_task(self._read())
        draining = asyncio.create_task(self._service.draining.wait())
        ends: set[asyncio.Future[Any]] = {reading, draining, self._broken}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (reading, self._broken):
                if end.done():
                    await end
            if self._steps:
                grace = self._service.limits.grace_seconds if draining.done() else None
                await asyncio.wait(self._steps, timeout=grace)
        finally:
            for task in (*ends, *self._steps):
                task.cancel()

    async def let_go(self) -> None:
        """Release what the role holds for requests of this stream, if it does not hang."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._service.limits.max_step_seconds):
                await asyncio.gather(*self._releases)
                for request_id in self._prefixes.request_ids():
                    await self._release(request_id)

    async def _read(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            refuse_malformed(message)
            self._check_releases(message.released_request_ids)
            self._begin_releases(message.released_request_ids)
            if message.step_id:
                self._begin(message)
                self._begin_releases(self._reader.take_forgotten())
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Read no further while too much is under way, refusals of too many steps included."""
        limits = self._service.limits
        while len(self._steps) >= 2 * limits.max_calls_in_flight:
            await asyncio.wait(self._steps, return_when=asyncio.FIRST_COMPLETED)
        if len(self._releases) > limits.max_prefixes:
            await asyncio.wait(self._releases)

    def _check_releases(self, request_ids: Sequence[str]) -> None:
        """Raises InvalidRequestError for more than a stream can hold, before work for any."""
        limits = self._service.limits
        if len(request_ids) > limits.max_prefixes:
            raise InvalidRequestError(
                f"a message must release at most {limits.max_prefixes} requests, got "
                f"{len(request_ids)}"
            )
        for request_id in request_ids:
            check_id(request_id, limits)

    def _begin_releases(self, request_ids: Iterable[str]) -> None:
        """Not awaited here: a role may let go only after the step that it is working on."""
        for request_id in request_ids:
            self._prefixes.forget(request_id)
            task = asyncio.create_task(self._release(request_id))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    def _begin(self, message: Any) -> None:
        received = time.perf_counter()
        try:
            batch = self._service.read(message, self._reader)
            limit = self._service.limits.max_calls_in_flight
            if len(self._steps) >= limit:
                raise OverloadedError(f"{limit} steps of this stream are being worked on")
        except Exception as error:
            work = self._answer_error(message.step_id, error)
        else:
            work = self._answer(message.step_id, batch, received)
        task = asyncio.create_task(work)
        self._steps.add(task)
        task.add_done_callback(self._end)

    def _end(self, step: asyncio.Task[None]) -> None:
        self._steps.discard(step)
        if not step.cancelled() and step.exception() is not None:  # the client has gone meanwhile
            logger.debug("a response could not be sent: %s", step.exception())

    async def _answer(self, step_id: int, batch: Any, received: float) -> None:
        try:
            with self._service.health.step():
                response = await self._service.work(batch)
        except Exception as error:
            await self._answer_error(step_id, error)
            return
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            await self._answer_error(step_id, WorkerError("the role cancelled the step"))
            return
        response.step_id = step_id
        response.worker_seconds = time.perf_counter() - received
        await self._write(response)

    async def _answer_error(self, step_id: int, error: Exception) -> None:
        await self._write(self._service.response(step_id=step_id, error=step_error(error)))

    async def _write(self, response: Any) -> None:
        limit = self._service.limits.max_message_bytes
        size = response.ByteSize()
        if size > limit:
            error = WorkerError(f"a response must be at most {limit} bytes, got {size}")
            response = self._service.response(step_id=response.step_id, error=step_error(error))
        async with self._write_lock:
            # Cheaper than a timeout that cancels the task: there is one for every step.
            loop, seconds = asyncio.get_running_loop(), self._service.limits.max_stall_seconds
            timer = loop.call_later(seconds, self._give_up)
            try:
                await self._context.write(response)
            finally:
                timer.cancel()

    def _give_up(self) -> None:
        if not self._broken.done():
            self._broken.set_exception(TransportError(_NOT_TAKEN))

    async def _release(self, request_id: str) -> None:
        try:
            await self._service.release(self._reader.scope + request_id)
        except Exception as error:
            logger.warning("request %s could not be released: %s", request_id, error)
