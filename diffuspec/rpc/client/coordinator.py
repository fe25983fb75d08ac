"""A coordinator in another process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Self

from grpc_health.v1.health_pb2 import HealthCheckResponse

from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import GREEDY, SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.answers import (
    generate_request,
    request_output_from_proto,
    status_from_proto,
)
from diffuspec.rpc.security import Security
from diffuspec.rpc.services import COORDINATOR_SERVICE, TRACEPARENT_KEY
from diffuspec.telemetry import context as telemetry
from diffuspec.v1 import coordinator_pb2

_CALL_SECONDS = 10.0

# Bytes that a server may send ahead of a slow reader: about 100 outputs. The default is 64 KiB.
_OPTIONS = (("grpc.http2.lookahead_bytes", 16 * 1024),)


class RemoteCoordinator:
    """A `Frontend` in another process. Raises TransportError when it cannot be reached."""

    def __init__(self, connection: Connection, deadline_seconds: float) -> None:
        self.address = connection.address
        self._connection = connection
        self._deadline_seconds = deadline_seconds

    @classmethod
    async def connect(
        cls,
        address: str,
        security: Security,
        *,
        deadline_seconds: float = 600.0,
        limits: RpcLimits = DEFAULT_LIMITS,
    ) -> Self:
        """Connect to a running server. deadline_seconds: limit on every answer.

        Raises ConfigError if it refuses the token, TransportError if it cannot be reached.
        """
        remote = cls(Connection(address, security, limits, _OPTIONS), deadline_seconds)
        try:
            await remote._connection.health(COORDINATOR_SERVICE, _CALL_SECONDS)
        except BaseException:
            await remote.close()
            raise
        return remote

    async def close(self) -> None:
        """Close the connection. Running answers end with TransportError."""
        await self._connection.close()

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams = GREEDY,
        speculation: SpeculationParams | None = None,
        request_id: str | None = None,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        """Yield the tokens of each step; see `Frontend.stream`. Closing it cancels the request.

        Raises LostAnswerError, a TransportError, if the coordinator was lost after the request had
        left its queue.
        """
        request = generate_request(
            prompt, sampling, speculation, request_id, committed_token_ids, num_losses
        )
        responses = self._connection.stream(
            COORDINATOR_SERVICE,
            "Generate",
            request,
            coordinator_pb2.GenerateResponse,
            self._deadline_seconds,
            [(TRACEPARENT_KEY, telemetry.traceparent.get())] if telemetry.traceparent.get() else [],
        )
        async with aclosing(responses):
            async for response in responses:
                yield request_output_from_proto(response)

    async def cancel(self, request_id: str) -> bool:
        """See `Frontend.cancel`."""
        response = await self._connection.call(
            COORDINATOR_SERVICE,
            "Cancel",
            coordinator_pb2.CancelRequest(request_id=request_id),
            coordinator_pb2.CancelResponse,
            _CALL_SECONDS,
        )
        return response.was_running

    async def status(self) -> ServiceStatus:
        """See `Frontend.status`."""
        response = await self._connection.call(
            COORDINATOR_SERVICE,
            "GetStatus",
            coordinator_pb2.GetStatusRequest(),
            coordinator_pb2.GetStatusResponse,
            _CALL_SECONDS,
        )
        return status_from_proto(response)

    async def is_serving(self, timeout: float) -> bool:
        """Return whether the service reports SERVING. Raises WorkerError if it is silent."""
        status = await self._connection.health(COORDINATOR_SERVICE, timeout)
        return bool(status == HealthCheckResponse.SERVING)

    async def check_health(self, timeout: float) -> bool:
        """Return whether the service is SERVING; False if there is no answer in time."""
        return await self._connection.check_health(COORDINATOR_SERVICE, timeout)
