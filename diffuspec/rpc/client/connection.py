"""A connection to one server, on which every call carries the deployment's token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from diffuspec.core.errors import DiffuspecError
from diffuspec.rpc.limits import Options, RpcLimits
from diffuspec.rpc.messages.status import (
    BEGUN_KEY,
    LostAnswerError,
    TransportError,
    from_rpc_error,
    is_task_cancelled,
)
from diffuspec.rpc.security import Security
from diffuspec.rpc.services import HEALTH_SERVICE

BytesStream: TypeAlias = "grpc.aio.StreamStreamCall[bytes, bytes]"
Response = TypeVar("Response", bound=Message)


class Connection:
    """A channel. Reconnects automatically; a call made while the server is gone fails at once."""

    def __init__(
        self, address: str, security: Security, limits: RpcLimits, options: Options = ()
    ) -> None:
        """`options`: gRPC options in addition to those of the limits."""
        self.address = address
        self.limits = limits
        self._metadata = security.metadata
        self._channel = _open(address, security, [*limits.channel_options(), *options])

    async def call(
        self, service: str, method: str, request: Message, kind: type[Response], timeout: float
    ) -> Response:
        """Make a unary call. Raises the error that `failure` returns for its status."""
        path = f"/{service}/{method}"
        stub: Any = self._channel.unary_unary(
            path, type(request).SerializeToString, kind.FromString
        )
        try:
            response: Response = await stub(request, timeout=timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from error
        except grpc.aio.UsageError as error:
            raise self._closed() from error
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            raise self._closed() from None
        return response

    async def stream(
        self,
        service: str,
        method: str,
        request: Message,
        kind: type[Response],
        timeout: float,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> AsyncGenerator[Response]:
        """Yield the responses of a server-streaming call; closing the iterator cancels it."""
        stub: Any = self._channel.unary_stream(
            f"/{service}/{method}", type(request).SerializeToString, kind.FromString
        )
        try:
            call = stub(request, timeout=timeout, metadata=(*self._metadata, *metadata))
        except grpc.aio.UsageError as error:
            raise self._closed() from error
        metadata_sent = asyncio.ensure_future(call.initial_metadata())
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                yield response
        except grpc.aio.AioRpcError as error:
            raise self.failure(error) from error
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            loss = LostAnswerError if _has_begun(metadata_sent) else TransportError
            raise loss(f"{self.address} cancelled the call") from None
        finally:
            metadata_sent.cancel()
            call.cancel()

    def open_stream(self, service: str, method: str) -> BytesStream:
        """Open a bidirectional stream of serialised messages. Raises TransportError when closed."""
        stub: Any = self._channel.stream_stream(f"/{service}/{method}")
        try:
            stream: BytesStream = stub(metadata=self._metadata)
        except grpc.aio.UsageError as error:
            raise self._closed() from error
        return stream

    async def check_health(self, service: str, timeout: float) -> bool:
        """Return whether a service is SERVING; False if there is no answer in time."""
        try:
            return bool(await self.health(service, timeout) == HealthCheckResponse.SERVING)
        except DiffuspecError:
            return False

    async def health(self, service: str, timeout: float) -> int:
        request = HealthCheckRequest(service=service)
        response = await self.call(HEALTH_SERVICE, "Check", request, HealthCheckResponse, timeout)
        return int(response.status)

    async def close(self) -> None:
        await self._channel.close()

    def failure(self, error: grpc.aio.AioRpcError) -> DiffuspecError:
        """Return the error that ended a call; a TransportError names the address."""
        found = from_rpc_error(error)
        if isinstance(found, TransportError) and self.address not in str(found):
            return type(found)(f"{self.address}: {found}")
        return found

    def _closed(self) -> TransportError:
        return TransportError(f"the connection to {self.address} was closed")


def _has_begun(initial_metadata: asyncio.Future[Any]) -> bool:
    """Return whether a server has said that it works on a call."""
    if not initial_metadata.done() or initial_metadata.cancelled():
        return False
    return any(key == BEGUN_KEY for key, _ in initial_metadata.result() or ())


def _open(
    address: str, security: Security, options: list[tuple[str, int | str]]
) -> grpc.aio.Channel:
    credentials = security.channel_credentials()
    if credentials is None:
        return grpc.aio.insecure_channel(address, options)
    assert security.tls is not None
    if security.tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", security.tls.server_name))
    return grpc.aio.secure_channel(address, credentials, options)
