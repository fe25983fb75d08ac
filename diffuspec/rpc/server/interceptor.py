"""What every call meets first: the token, bytes that may be no message, errors as statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from diffuspec.core.errors import InvalidRequestError
from diffuspec.rpc.messages import status
from diffuspec.rpc.security import TOKEN_KEY, Security

Handler = Any  # grpc.RpcMethodHandler; what is in it depends on the method


class Malformed:
    """Stands for bytes that are no message of the method's."""


class Guard(grpc.aio.ServerInterceptor):
    """Refuses calls without the token; makes statuses of what handlers raise.

    Handlers are coroutines: those that stream write to their context.
    """

    def __init__(self, security: Security) -> None:
        self._security = security

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        metadata = dict(handler_call_details.invocation_metadata)
        if not self._security.accepts(metadata.get(TOKEN_KEY)):
            return grpc.stream_stream_rpc_method_handler(_refuse)
        handler = await continuation(handler_call_details)
        return None if handler is None else _guarded(handler)


async def _refuse(requests: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "the deployment's token is missing or wrong"
    )


def _guarded(handler: Handler) -> Handler:
    deserializer = _tolerant(handler.request_deserializer)
    serializer = handler.response_serializer
    if handler.unary_unary:
        behaviour = _translate_errors(handler.unary_unary)
        return grpc.unary_unary_rpc_method_handler(behaviour, deserializer, serializer)
    if handler.unary_stream:
        behaviour = _translate_errors(handler.unary_stream)
        return grpc.unary_stream_rpc_method_handler(behaviour, deserializer, serializer)
    assert handler.stream_stream, "there are no methods of another kind"
    behaviour = _translate_errors(handler.stream_stream)
    return grpc.stream_stream_rpc_method_handler(behaviour, deserializer, serializer)


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """gRPC itself would answer a failure to deserialise with INTERNAL."""

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return Malformed()

    return read


def refuse_malformed(request: object) -> None:
    """Raises InvalidRequestError for bytes that were no message."""
    if isinstance(request, Malformed):
        raise InvalidRequestError("the bytes received are no message of this method")


def _translate_errors(
    behaviour: Callable[[Any, Any], Awaitable[Any]],
) -> Callable[[Any, Any], Awaitable[Any]]:
    async def translated(request: Any, context: Any) -> Any:
        try:
            refuse_malformed(request)
            return await behaviour(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            return await status.abort(context, error)

    return translated
