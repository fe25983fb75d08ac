"""The guard of every call: token, number of open calls, time for messages, errors as statuses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from diffuspec.core.errors import InvalidRequestError, OverloadedError
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.messages import status
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import TOKEN_KEY, Security
from diffuspec.rpc.services import COORDINATOR_SERVICE, HEALTH_SERVICE

logger = logging.getLogger(__name__)

Handler = Any  # grpc.RpcMethodHandler; its fields depend on the method
Behaviour = Callable[[Any], Awaitable[None]]  # serves a call, given its context, to its end

_GENERATE = f"/{COORDINATOR_SERVICE}/Generate"
_HEALTH_CHECK = f"/{HEALTH_SERVICE}/Check"  # answered under any load, and so not counted


class Malformed:
    """Represents bytes that are not a valid message of the method."""


class Guard(grpc.aio.ServerInterceptor):
    """Refuses calls without the token, and calls beyond the limit of their method.

    Every call is served as a stream, so that its wait for messages of the client is limited from
    the first byte. Errors of handlers become statuses. Handlers are coroutines; streaming ones
    write to their context.
    """

    def __init__(self, security: Security, limits: RpcLimits) -> None:
        self._security = security
        self._limits = limits
        self._num_open: Counter[str] = Counter()  # running calls, by method

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        metadata = dict(handler_call_details.invocation_metadata)
        if not self._security.accepts(metadata.get(TOKEN_KEY)):
            return grpc.stream_stream_rpc_method_handler(_refuse)
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        return self._guarded(handler, handler_call_details.method)

    def _guarded(self, handler: Handler, method: str) -> Handler:
        serve = self._behaviour(handler, method)

        async def guarded(requests: object, context: Any) -> None:
            try:
                with self._counted(method):
                    await serve(context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await _end(context, error)

        return grpc.stream_stream_rpc_method_handler(
            guarded, _tolerant(handler.request_deserializer), handler.response_serializer
        )

    def _behaviour(self, handler: Handler, method: str) -> Behaviour:
        async def answer(context: Any) -> None:
            response = await handler.unary_unary(await self._request(context), context)
            await write_within(self._limits.max_stall_seconds, context, response)

        async def stream(context: Any) -> None:
            request = await self._request(context)
            if method != _GENERATE:  # Generate sends metadata of its own
                await begin_response(context)
            await handler.unary_stream(request, context)

        async def exchange(context: Any) -> None:
            await begin_response(context)
            await handler.stream_stream(None, context)

        if handler.unary_unary:
            return answer
        if handler.unary_stream:
            return stream
        assert handler.stream_stream, "there are no methods of another kind"
        return exchange

    @contextlib.contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        """Count an open call. Raises OverloadedError if the method has too many."""
        limit = self._limits.max_calls_per_method
        if self._num_open[method] >= limit and method != _HEALTH_CHECK:
            raise OverloadedError(f"{limit} calls of {method} are open, which is the limit")
        self._num_open[method] += 1
        try:
            yield
        finally:
            self._num_open[method] -= 1

    async def _request(self, context: Any) -> Any:
        """Return the message of a unary request. Raises InvalidRequestError, TransportError."""
        seconds = self._limits.max_stall_seconds
        try:
            async with asyncio.timeout(seconds):
                request = await context.read()
        except TimeoutError as error:
            raise TransportError(f"no request within {seconds:g} s of the call") from error
        if request is grpc.aio.EOF:
            raise InvalidRequestError("the call ended without a request")
        refuse_malformed(request)
        return request


async def write_within(seconds: float, context: Any, message: Any) -> None:
    """Write a message of a call. Raises TransportError if the client does not take it in time."""
    try:
        async with asyncio.timeout(seconds):
            await context.write(message)
    except TimeoutError as error:
        raise TransportError(f"no response taken in {seconds:g} s") from error


async def _refuse(requests: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the deployment's token is missing or wrong"
    )


async def begin_response(context: Any, metadata: Sequence[tuple[str, str]] = ()) -> None:
    """Send the metadata first: a status cannot be sent while the first message is blocked."""
    await context.send_initial_metadata(tuple(metadata))


async def _end(context: Any, error: Exception) -> None:
    """End a call with the status of an error, unless the client is gone."""
    try:
        if not isinstance(error, grpc.aio.InternalError):
            await status.abort(context, error)
    except grpc.aio.InternalError as failure:
        error = failure
    # A gRPC operation failed because the call no longer exists; gRPC logs a traceback for every
    # other error.
    logger.debug("the client of a call has gone: %s", error)
    raise asyncio.CancelledError


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return Malformed instead of raising an error, which gRPC would answer with INTERNAL."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return Malformed()

    return read


def refuse_malformed(request: object) -> None:
    """Raise InvalidRequestError for Malformed."""
    if isinstance(request, Malformed):
        raise InvalidRequestError("the bytes received are no message of this method")
