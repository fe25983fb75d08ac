"""The client's end of a stream of steps: many are in flight at once, each with its own deadline."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from diffuspec.core.errors import (
    DiffuspecError,
    InvalidRequestError,
    OverloadedError,
    StalePrefixError,
)
from diffuspec.rpc.client.connection import BytesStream, Connection
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.messages.status import (
    IdleStreamError,
    LostAnswerError,
    TransportError,
    from_step_error,
)

logger = logging.getLogger(__name__)

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)

_MAX_QUEUED_MESSAGES = 1024  # steps and releases that the network has not taken yet


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Response]):
    """A streaming method and its messages."""

    service: str
    name: str
    request: type[Request]
    response: type[Response]


@dataclass(frozen=True, slots=True)
class Step(Generic[Response]):
    """A response, and the part of its round-trip time that the worker did not need."""

    response: Response
    transport_seconds: float


class StepClient(Generic[Request, Response]):
    """Sends steps on one stream, which is opened on demand and reopened after a loss.

    A cancelled or late step does not affect the others. When the server goes away, all waiting
    steps fail at once.
    """

    def __init__(
        self,
        connection: Connection,
        method: Method[Request, Response],
        meet: Callable[[], Awaitable[None]],
    ) -> None:
        """`meet` raises unless the server after a lost stream is the same one as before."""
        self.num_bytes_sent = 0
        self.num_bytes_received = 0
        self._connection = connection
        self._method = method
        self._meet = meet
        self._step_ids = itertools.count(1)
        self._stream: _Stream | None = None

    async def step(
        self,
        fill: Callable[[Request, PrefixStore], None],
        request_ids: Iterable[str],
        deadline_seconds: float,
    ) -> Step[Response]:
        """Send a batch and wait for its response.

        Sends it again with whole prefixes if the server lacks one of them, or was closing the
        stream because it had been idle.

        Raises the error in the response, LostAnswerError if the server is lost meanwhile,
        TransportError if it cannot be reached or is late, OverloadedError for too many steps in
        flight, and InvalidRequestError for requests that cannot be sent.
        """
        deadline = asyncio.get_running_loop().time() + deadline_seconds
        try:
            return await self._attempt(fill, deadline)
        except StalePrefixError:
            if self._stream is not None:
                for request_id in request_ids:
                    self._stream.prefixes.forget(request_id)
        except IdleStreamError:
            logger.debug("%s: the stream was idle and is opened again", self._method.name)
        return await self._attempt(fill, deadline)

    def release(self, request_id: str) -> None:
        """Tell the server that a request has ended. Does nothing if no stream is open."""
        stream = self._stream
        if stream is None or stream.error is not None:
            return
        stream.prefixes.forget(request_id)
        message: Any = self._method.request()
        message.released_request_ids.append(request_id)
        self._send(stream, message)

    async def close(self) -> None:
        """Close the stream. Waiting steps fail."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def _attempt(
        self, fill: Callable[[Request, PrefixStore], None], deadline: float
    ) -> Step[Response]:
        stream = await self._opened()
        if len(stream.waiting) >= self._connection.limits.max_calls_in_flight:
            raise OverloadedError(f"{len(stream.waiting)} steps are waiting for an answer")
        started = time.perf_counter()
        step_id = next(self._step_ids)
        message: Any = self._method.request(step_id=step_id)
        try:
            fill(message, stream.prefixes)
        except ValueError as error:  # numbers out of a field's range
            raise InvalidRequestError(f"a batch cannot be sent: {error}") from error
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        timer = loop.call_at(deadline, _expire, answer, self._connection.address)
        stream.waiting[step_id] = answer
        try:
            self._send(stream, message)
            response = await answer
        finally:
            timer.cancel()
            stream.waiting.pop(step_id, None)
        if response.WhichOneof("result") == "error":
            raise from_step_error(response.error)
        seconds = time.perf_counter() - started
        return Step(response, max(seconds - response.worker_seconds, 0.0))

    async def _opened(self) -> _Stream:
        if self._stream is not None and self._stream.error is not None:
            await self._meet()
        if self._stream is None or self._stream.error is not None:
            self._stream = _Stream(self._connection, self._method, self._received)
        return self._stream

    def _send(self, stream: _Stream, message: Message) -> None:
        data = message.SerializeToString()
        limit = self._connection.limits.max_message_bytes
        if len(data) > limit:
            raise InvalidRequestError(f"a batch must be at most {limit} bytes, got {len(data)}")
        self.num_bytes_sent += len(data)
        stream.send(data)

    def _received(self, num_bytes: int) -> None:
        self.num_bytes_received += num_bytes


def _expire(answer: asyncio.Future[Any], address: str) -> None:
    """Fail a late step. Cheaper than a timeout that cancels a task, which every step would need."""
    if not answer.done():
        answer.set_exception(TransportError(f"{address} did not answer before the deadline"))


class _Stream:
    """One open stream. When it fails, `error` holds the reason, and all waiting steps get it."""

    def __init__(
        self, connection: Connection, method: Method[Any, Any], received: Callable[[int], None]
    ) -> None:
        limits = connection.limits
        self.prefixes = PrefixStore(limits.max_prefixes, limits.max_prefix_tokens)
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.error: DiffuspecError | None = None
        self._address = connection.address
        self._failure = connection.failure
        self._response = method.response
        self._received = received
        self._outgoing: deque[bytes] = deque()
        self._has_outgoing: asyncio.Future[None] | None = None  # the writer waits for this
        self._is_writing = False
        # Only the tasks refer to the call, and they are dropped when it ends: the traceback of a
        # failed step may keep this stream alive, and a live call would keep its connection open.
        call = connection.open_stream(method.service, method.name)
        # Separate tasks, since cancelling a read or a write would end the call for every step.
        writer = asyncio.create_task(self._write(call))
        self._tasks = [writer, asyncio.create_task(self._read(call, writer))]

    def send(self, data: bytes) -> None:
        """Queue a message to be sent. Raises OverloadedError if the network takes nothing."""
        if len(self._outgoing) >= _MAX_QUEUED_MESSAGES:
            raise OverloadedError(f"{self._address} takes no messages")
        self._outgoing.append(data)
        if self._has_outgoing is not None and not self._has_outgoing.done():
            self._has_outgoing.set_result(None)

    async def close(self) -> None:
        self._fail(TransportError(f"the connection to {self._address} was closed"))
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: BytesStream, writer: asyncio.Task[None]) -> None:
        error: DiffuspecError = TransportError(f"{self._address} ended the stream")
        try:
            while (data := await call.read()) is not grpc.aio.EOF:
                assert isinstance(data, bytes)
                self._take(data)
        except grpc.aio.AioRpcError as status:
            error = self._failure(status)
            # gRPC's error for a write that meets the server's end of the stream.
            if self._is_writing and status.code() is grpc.StatusCode.INTERNAL:
                error = IdleStreamError(f"{self._address} ended the stream during a write")
        except DecodeError:
            error = TransportError(f"{self._address} sent bytes that are no response")
        finally:  # close() and the server may also cancel
            self._fail(error)
            self._tasks = []
            writer.cancel()
            call.cancel()

    def _take(self, data: bytes) -> None:
        self._received(len(data))
        response = self._response.FromString(data)
        answer = self.waiting.get(response.step_id)
        if answer is not None and not answer.done():
            answer.set_result(response)

    async def _write(self, call: BytesStream) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                self._is_writing = True
                while self._outgoing:
                    await call.write(self._outgoing.popleft())
                self._is_writing = False
                self._has_outgoing = asyncio.get_running_loop().create_future()
                await self._has_outgoing

    def _fail(self, error: DiffuspecError) -> None:
        if self.error is None:
            self.error = error
        if type(error) is TransportError:  # the server could be reached when the stream was opened
            error = LostAnswerError(str(error))
        for answer in self.waiting.values():
            if not answer.done():
                answer.set_exception(error)
