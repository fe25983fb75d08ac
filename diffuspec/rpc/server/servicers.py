"""The roles as gRPC services: convert, call, convert."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import grpc

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import Drafter, Frontend, PathScorer, Verifier
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import DraftRequest, Lattice, RequestOutput, VerifyRequest
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages import values as convert
from diffuspec.rpc.messages.answers import (
    request_output_to_proto,
    speculation_from_proto,
    status_to_proto,
    take_prompt,
)
from diffuspec.rpc.messages.batches import BatchReader
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.stream import StepService
from diffuspec.rpc.services import (
    COORDINATOR_SERVICE,
    DRAFTER_SERVICE,
    PATH_SCORER_SERVICE,
    VERIFIER_SERVICE,
)
from diffuspec.v1 import (
    coordinator_pb2,
    coordinator_pb2_grpc,
    drafter_pb2,
    drafter_pb2_grpc,
    path_scorer_pb2,
    path_scorer_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)

Context = grpc.aio.ServicerContext[Any, Any]


_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{0,128}")
_DEFAULT_SPECULATION = SpeculationParams()


class RoleServicer:
    """What a server needs to know of a servicer."""

    service: str
    steps: Sequence[StepService[Any]] = ()
    health: StepHealth

    def add_to(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    def begin(self, limits: RpcLimits) -> None:
        """Called when a server begins to serve it."""
        self.health = StepHealth(limits.max_step_seconds)
        for service in self.steps:
            service.begin(limits, self.health)

    def is_healthy(self) -> bool:
        return self.health.is_healthy

    def drain(self) -> None:
        """End every stream once its running steps are answered."""
        for service in self.steps:
            service.draining.set()

    async def finish(self) -> None:
        """Wait until what the role holds for streams that ended is let go."""
        for service in self.steps:
            await service.finish()


class DrafterServicer(RoleServicer, drafter_pb2_grpc.DrafterServiceServicer):
    """Serves a drafter."""

    service = DRAFTER_SERVICE

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._drafting = StepService(
            drafter_pb2.DraftResponse, _read_drafts, self._draft, drafter.release
        )
        self.steps = (self._drafting,)

    def add_to(self, server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(self, server)

    async def Draft(self, requests: object, context: Context) -> None:
        await self._drafting.serve(context)

    async def _draft(self, requests: list[DraftRequest]) -> drafter_pb2.DraftResponse:
        response = drafter_pb2.DraftResponse()
        convert.put_drafts(response.drafts, await self._drafter.draft(requests))
        return response


class PathScorerServicer(RoleServicer, path_scorer_pb2_grpc.PathScorerServiceServicer):
    """Serves a path search."""

    service = PATH_SCORER_SERVICE

    def __init__(self, scorer: PathScorer) -> None:
        self._scorer = scorer
        self._searching = StepService(
            path_scorer_pb2.SearchResponse, _read_search, self._search, _hold_nothing
        )
        self.steps = (self._searching,)

    def add_to(self, server: grpc.aio.Server) -> None:
        path_scorer_pb2_grpc.add_PathScorerServiceServicer_to_server(self, server)

    async def Search(self, requests: object, context: Context) -> None:
        await self._searching.serve(context)

    async def _search(
        self, batch: tuple[list[DraftRequest], list[Lattice]]
    ) -> path_scorer_pb2.SearchResponse:
        response = path_scorer_pb2.SearchResponse()
        convert.put_drafts(response.drafts, await self._scorer.search(*batch))
        return response


class VerifierServicer(RoleServicer, verifier_pb2_grpc.VerifierServiceServicer):
    """Serves a target."""

    service = VERIFIER_SERVICE

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self._verifying = StepService(
            verifier_pb2.VerifyResponse, _read_verify, self._verify, verifier.release
        )
        self.steps = (self._verifying,)

    def add_to(self, server: grpc.aio.Server) -> None:
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, server)

    async def Verify(self, requests: object, context: Context) -> None:
        await self._verifying.serve(context)

    async def GetInfo(
        self, request: verifier_pb2.GetInfoRequest, context: Context
    ) -> verifier_pb2.GetInfoResponse:
        return convert.info_to_proto(self._verifier.info)

    async def _verify(self, requests: list[VerifyRequest]) -> verifier_pb2.VerifyResponse:
        verdicts = await self._verifier.verify(requests)
        messages = [convert.verdict_to_proto(verdict) for verdict in verdicts]
        return verifier_pb2.VerifyResponse(verdicts=verifier_pb2.Verdicts(verdicts=messages))


def _read_drafts(message: Any, reader: BatchReader) -> list[DraftRequest]:
    return reader.draft_requests(message)


def _read_search(
    message: path_scorer_pb2.SearchRequest, reader: BatchReader
) -> tuple[list[DraftRequest], list[Lattice]]:
    requests = reader.draft_requests(message)
    if len(message.lattices) != len(requests):
        raise InvalidRequestError(f"{len(message.lattices)} lattices for {len(requests)} rows")
    return requests, [convert.lattice_from_proto(lattice) for lattice in message.lattices]


def _read_verify(message: verifier_pb2.VerifyRequest, reader: BatchReader) -> list[VerifyRequest]:
    return reader.verify_requests(message)


class CoordinatorServicer(RoleServicer, coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Serves prompts."""

    service = COORDINATOR_SERVICE

    def __init__(
        self,
        frontend: Frontend,
        speculation: SpeculationParams = _DEFAULT_SPECULATION,
        health: StepHealth | None = None,
    ) -> None:
        """speculation: what a request gets where it does not ask for something else.

        health hears of the frontend's steps; None: it is always well.
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
        """Stream increments. The request is cancelled when the client goes or reads no more."""
        increments = self._stream(request)
        async with contextlib.aclosing(increments):
            async for increment in increments:
                await _let_the_next_step_begin()
                await self._write(context, request_output_to_proto(increment))

    async def _write(self, context: Context, response: coordinator_pb2.GenerateResponse) -> None:
        seconds = self._limits.max_stall_seconds
        try:
            async with asyncio.timeout(seconds):
                await context.write(response)
        except TimeoutError as error:
            raise TransportError(f"the client has taken nothing for {seconds} seconds") from error

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

    async def _stream(
        self, request: coordinator_pb2.GenerateRequest
    ) -> AsyncGenerator[RequestOutput]:
        if not _REQUEST_ID.fullmatch(request.request_id):
            raise InvalidRequestError(
                "request_id must be at most 128 of A-Z a-z 0-9 . _ -, "
                f"got {request.request_id!r:.80}"
            )
        speculation = None
        if request.HasField("speculation"):
            speculation = speculation_from_proto(request.speculation, self._speculation)
        stream = self._frontend.stream(
            take_prompt(request),
            convert.sampling_from_proto(request.sampling),
            speculation,
            request.request_id or None,
            list(request.committed_token_ids),
        )
        try:
            async for increment in stream:
                yield increment
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()


async def _let_the_next_step_begin() -> None:
    """Its first message is sent in the second turn of the event loop from now.

    To tell a client of the last step takes 0.1 to 0.2 ms, for which workers would wait.
    """
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _hold_nothing(request_id: str) -> None:
    """A path search keeps nothing from one call to the next."""
