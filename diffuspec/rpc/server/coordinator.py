"""The coordinator as a gRPC service: prompts in, outputs out."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator

import grpc

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Frontend
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import RequestOutput
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.answers import check_sizes, status_to_proto, take_request
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.outputs import ClientStalledError, send_outputs
from diffuspec.rpc.server.servicers import Context, RoleServicer
from diffuspec.rpc.services import COORDINATOR_SERVICE, TRACEPARENT_KEY
from diffuspec.telemetry import context as telemetry
from diffuspec.v1 import coordinator_pb2, coordinator_pb2_grpc

logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(r"[A-Za-z0-9._#:-]{0,128}")
_DEFAULT_SPECULATION = SpeculationParams()


class CoordinatorServicer(RoleServicer, coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Serves prompts."""

    service = COORDINATOR_SERVICE

    def __init__(
        self,
        frontend: Frontend,
        speculation: SpeculationParams = _DEFAULT_SPECULATION,
        health: StepHealth | None = None,
    ) -> None:
        """`speculation`: the default of requests. `health` records the frontend's steps.

        Without `health` the service is always SERVING.
        """
        self._frontend = frontend
        self._speculation = speculation
        self._limits = DEFAULT_LIMITS
        self.health = health or StepHealth(DEFAULT_LIMITS.max_step_seconds)

    def add_to(self, server: grpc.aio.Server) -> None:
        coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server(self, server)

    def begin(self, limits: RpcLimits) -> None:
        self._limits = limits

    async def Generate(self, request: coordinator_pb2.GenerateRequest, context: Context) -> None:
        """Stream outputs. The request is cancelled when the client goes away or stops reading."""
        metadata = dict(context.invocation_metadata() or ())
        telemetry.follow_trace(str(metadata.get(TRACEPARENT_KEY, "")))
        try:
            await send_outputs(self._outputs(request), context, self._limits)
        except ClientStalledError as error:
            logger.warning("the request was cancelled: %s", error)
            raise

    async def Cancel(
        self, request: coordinator_pb2.CancelRequest, context: Context
    ) -> coordinator_pb2.CancelResponse:
        if not request.request_id:
            raise InvalidRequestError("request_id must name what to cancel")
        was_running = self._frontend.cancel(request.request_id)
        return coordinator_pb2.CancelResponse(was_running=was_running)

    async def GetStatus(
        self, request: coordinator_pb2.GetStatusRequest, context: Context
    ) -> coordinator_pb2.GetStatusResponse:
        status = await self._frontend.status()
        return status_to_proto(status, self._limits.max_message_bytes)

    def _outputs(self, request: coordinator_pb2.GenerateRequest) -> AsyncGenerator[RequestOutput]:
        """Yield outputs. Raises InvalidRequestError if malformed; the frontend checks the rest."""
        if not _REQUEST_ID.fullmatch(request.request_id):
            raise InvalidRequestError(
                "request_id must be at most 128 of A-Z a-z 0-9 . _ # : -, "
                f"got {request.request_id!r:.80}"
            )
        telemetry.request_id.set(request.request_id)
        telemetry.key_name.set(request.key_name)
        check_sizes(request, self._limits)
        return self._frontend.stream(*take_request(request, self._speculation))
