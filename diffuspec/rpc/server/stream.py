"""The server's end of streams of steps: many run at once, and are answered as they finish."""

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
from diffuspec.core.interfaces import TargetInfo
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.batches import BatchReader
from diffuspec.rpc.messages.bounds import Bounds, check_id
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.messages.status import (
    IdleStreamError,
    TransportError,
    is_task_cancelled,
    step_error,
)
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.interceptor import refuse_malformed

logger = logging.getLogger(__name__)

Batch = TypeVar("Batch")

Release = Callable[[str], Awaitable[None]]


class StepService(Generic[Batch]):
    """One streaming method of a role.

    `read` converts a message to a batch, immediately and in order, because each message changes the
    base of the next one; `work` returns a response without id and times. `target` limits batches.
    """

    def __init__(
        self,
        response: type[Message],
        read: Callable[[Any, BatchReader], Batch],
        work: Callable[[Batch], Awaitable[Any]],
        release: Release,
        target: TargetInfo,
    ) -> None:
        self.response: Any = response
        self.read = read
        self.work = work
        self.release = release
        self.target = target
        self._stream_numbers = itertools.count(1)
        self._cleanups: set[asyncio.Task[None]] = set()
        self.begin(DEFAULT_LIMITS, StepHealth(DEFAULT_LIMITS.max_step_seconds))

    def begin(self, limits: RpcLimits, health: StepHealth) -> None:
        """Prepare to serve with these limits, and report every step to `health`."""
        self.limits = limits
        self.health = health
        self.draining = asyncio.Event()

    async def finish(self) -> None:
        """Wait, within the grace time, until requests of ended streams are released."""
        if self._cleanups:
            await asyncio.wait(self._cleanups, timeout=self.limits.grace_seconds)

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve one stream to its end.

        Raises InvalidRequestError for a message that violates the protocol, TransportError for a
        client that takes no responses, and IdleStreamError.
        """
        stream = _Stream(self, context, f"{next(self._stream_numbers)}/")
        try:
            await stream.run()
        finally:
            cleanup = asyncio.create_task(stream.release_all())
            self._cleanups.add(cleanup)
            cleanup.add_done_callback(self._cleanups.discard)


class _Stream:
    def __init__(self, service: StepService[Any], context: Any, scope: str) -> None:
        limits = service.limits
        self._service = service
        self._context = context
        self._prefixes = PrefixStore(limits.max_prefixes, limits.max_prefix_tokens)
        bounds = Bounds(service.target, limits.max_id_length)
        self._reader = BatchReader(self._prefixes, bounds, scope)
        self._last_step_id = 0
        self._steps: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._write_lock = asyncio.Lock()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._active_at = time.monotonic()  # time of the last message or end of a step

    async def run(self) -> None:
        """Read until the client is done or the server drains, then let running steps finish."""
        draining = asyncio.create_task(self._service.draining.wait())
        tasks: list[asyncio.Task[Any]] = [draining]
        tasks += [asyncio.create_task(self._read()), asyncio.create_task(self._idle())]
        try:
            await _first_of(*tasks, self._broken)
            grace = self._service.limits.grace_seconds if draining.done() else None
            tasks.append(asyncio.create_task(self._finish_steps(grace)))
            await _first_of(tasks[-1], self._broken)
        finally:
            for task in (*tasks, *self._steps, self._broken):
                task.cancel()

    async def _finish_steps(self, seconds: float | None) -> None:
        if self._steps:
            await asyncio.wait(self._steps, timeout=seconds)

    async def release_all(self) -> None:
        """Let the role release the requests of this stream, unless that takes too long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._service.limits.max_step_seconds):
                await asyncio.gather(*self._releases)
                for request_id in self._prefixes.request_ids():
                    await self._release(request_id)

    async def _idle(self) -> None:
        """Raise IdleStreamError after too long without messages and steps."""
        limit = self._service.limits.max_idle_seconds
        while self._steps or time.monotonic() - self._active_at < limit:
            left = limit if self._steps else self._active_at + limit - time.monotonic()
            await asyncio.sleep(left)
        raise IdleStreamError(f"the stream was closed after {limit:g} s without a message")

    # ---- messages of the client

    async def _read(self) -> None:
        while (message := await self._context.read()) is not grpc.aio.EOF:
            refuse_malformed(message)
            self._active_at = time.monotonic()
            self._check_step_id(message)
            self._check_releases(message.released_request_ids)
            self._begin_releases(message.released_request_ids)
            if message.step_id:
                self._begin(message)
                self._begin_releases(self._reader.take_forgotten())
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Stop reading while too much is in progress, including refusals of steps."""
        limits = self._service.limits
        while len(self._steps) >= 2 * limits.max_calls_in_flight:
            await asyncio.wait(self._steps, return_when=asyncio.FIRST_COMPLETED)
        if len(self._releases) > limits.max_prefixes:
            await asyncio.wait(self._releases)

    def _check_step_id(self, message: Any) -> None:
        """Raise InvalidRequestError for a missing id, or one whose response would be ambiguous."""
        if message.step_id:
            if message.step_id <= self._last_step_id:
                raise InvalidRequestError(
                    f"step_id must be above {self._last_step_id}, the last of this stream, got "
                    f"{message.step_id}"
                )
            self._last_step_id = message.step_id
        elif message.rows or message.prefixes:
            raise InvalidRequestError("step_id must be 1 or more in a message with rows, got 0")

    def _check_releases(self, request_ids: Sequence[str]) -> None:
        """Raise InvalidRequestError for more than a stream can hold, before any work."""
        limits = self._service.limits
        if len(request_ids) > limits.max_prefixes:
            raise InvalidRequestError(
                f"a message must release at most {limits.max_prefixes} requests, got "
                f"{len(request_ids)}"
            )
        for request_id in request_ids:
            check_id(request_id, limits.max_id_length)

    def _begin_releases(self, request_ids: Iterable[str]) -> None:
        """Start releases. They are not awaited: a role may release only after its current step."""
        for request_id in request_ids:
            self._prefixes.forget(request_id)
            task = asyncio.create_task(self._release(request_id))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, request_id: str) -> None:
        try:
            await self._service.release(self._reader.scope + request_id)
        except Exception as error:
            logger.warning("request %s could not be released: %s", request_id, error)

    # ---- steps

    def _begin(self, message: Any) -> None:
        received = time.perf_counter()
        try:
            batch = self._service.read(message, self._reader)
            limit = self._service.limits.max_calls_in_flight
            if len(self._steps) >= limit:
                raise OverloadedError(f"{limit} steps of this stream are being worked on")
        except Exception as error:
            work = self._respond_error(message.step_id, error)
        else:
            work = self._work(message.step_id, batch, received)
        task = asyncio.create_task(work)
        self._steps.add(task)
        task.add_done_callback(self._end)

    def _end(self, step: asyncio.Task[None]) -> None:
        self._active_at = time.monotonic()
        self._steps.discard(step)
        if not step.cancelled() and step.exception() is not None:  # the client has gone meanwhile
            logger.debug("a response could not be sent: %s", step.exception())

    async def _work(self, step_id: int, batch: Any, received: float) -> None:
        try:
            with self._service.health.step():
                response = await self._service.work(batch)
        except Exception as error:
            await self._respond_error(step_id, error)
            return
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            await self._respond_error(step_id, WorkerError("the role cancelled the step"))
            return
        response.step_id = step_id
        response.worker_seconds = time.perf_counter() - received
        await self._write(response)

    async def _respond_error(self, step_id: int, error: Exception) -> None:
        await self._write(self._service.response(step_id=step_id, error=step_error(error)))

    async def _write(self, response: Any) -> None:
        limits = self._service.limits
        size = response.ByteSize()
        if size > limits.max_message_bytes:
            error = WorkerError(
                f"a response must be at most {limits.max_message_bytes} bytes, got {size}"
            )
            response = self._service.response(step_id=response.step_id, error=step_error(error))
        async with self._write_lock:
            # Cheaper than a timeout that cancels the task, of which every step would need one.
            loop = asyncio.get_running_loop()
            timer = loop.call_later(limits.max_stall_seconds, self._break)
            try:
                await self._context.write(response)
            finally:
                timer.cancel()

    def _break(self) -> None:
        """End the stream of a client that does not take a response."""
        if not self._broken.done():
            seconds = self._service.limits.max_stall_seconds
            error = TransportError(
                f"the client stopped reading: no response taken in {seconds:g} s"
            )
            logger.warning("a stream was closed: %s", error)
            self._broken.set_exception(error)


async def _first_of(*ends: asyncio.Future[Any]) -> None:
    """Wait until the first of these has ended; raise its error if it has one."""
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in ends:
        if end.done():
            end.result()
