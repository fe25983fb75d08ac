"""The roles as gRPC services: convert, call, convert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from diffuspec.core.interfaces import Drafter, HostedDrafter, PathScorer, TargetInfo, Verifier
from diffuspec.core.types import DraftRequest, Lattice, VerifyRequest
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.messages import values as convert
from diffuspec.rpc.messages.batches import BatchReader
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.stream import StepService
from diffuspec.rpc.services import DRAFTER_SERVICE, PATH_SCORER_SERVICE, VERIFIER_SERVICE
from diffuspec.v1 import (
    drafter_pb2,
    drafter_pb2_grpc,
    path_scorer_pb2,
    path_scorer_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)

Context = grpc.aio.ServicerContext[Any, Any]


class RoleServicer:
    """What a server needs to know about a servicer."""

    service: str
    steps: Sequence[StepService[Any]] = ()
    health: StepHealth

    def add_to(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    def begin(self, limits: RpcLimits) -> None:
        """Called when a server starts to serve it."""
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
        """Wait until the role has released the requests of ended streams."""
        for service in self.steps:
            await service.finish()


class DrafterServicer(RoleServicer, drafter_pb2_grpc.DrafterServiceServicer):
    """Serves a drafter."""

    service = DRAFTER_SERVICE

    def __init__(self, drafter: Drafter, target: TargetInfo) -> None:
        self._drafter = drafter
        self._drafting = StepService(
            drafter_pb2.DraftResponse,
            lambda message, reader: reader.draft_requests(message),
            self._draft,
            drafter.release,
            target,
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

    def __init__(self, scorer: PathScorer, target: TargetInfo) -> None:
        self._scorer = scorer
        self._searching = StepService(
            path_scorer_pb2.SearchResponse, _read_search, self._search, _hold_nothing, target
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

    def __init__(self, verifier: Verifier, drafters: Sequence[HostedDrafter] = ()) -> None:
        """`drafters`: those in this process, which have their own servers."""
        self._verifier = verifier
        self._drafters = drafters
        self._verifying = StepService(
            verifier_pb2.VerifyResponse,
            lambda message, reader: reader.verify_requests(message),
            self._verify,
            verifier.release,
            verifier.info,
        )
        self.steps = (self._verifying,)

    def add_to(self, server: grpc.aio.Server) -> None:
        verifier_pb2_grpc.add_VerifierServiceServicer_to_server(self, server)

    async def Verify(self, requests: object, context: Context) -> None:
        await self._verifying.serve(context)

    async def GetInfo(
        self, request: verifier_pb2.GetInfoRequest, context: Context
    ) -> verifier_pb2.GetInfoResponse:
        return convert.info_to_proto(self._verifier.info, self._drafters)

    async def _verify(self, requests: list[VerifyRequest]) -> verifier_pb2.VerifyResponse:
        verdicts = await self._verifier.verify(requests)
        messages = [convert.verdict_to_proto(verdict) for verdict in verdicts]
        return verifier_pb2.VerifyResponse(verdicts=verifier_pb2.Verdicts(verdicts=messages))


def _read_search(
    message: path_scorer_pb2.SearchRequest, reader: BatchReader
) -> tuple[list[DraftRequest], list[Lattice]]:
    return reader.draft_requests(message), reader.lattices(message)


async def _hold_nothing(request_id: str) -> None:
    """Do nothing: a path search keeps nothing between calls."""
