"""Remote roles: each implements its Protocol over a stream of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

from diffuspec.core.errors import (
    ConfigError,
    DiffuspecError,
    DrafterError,
    DrafterLostError,
    InvalidRequestError,
    OverloadedError,
    VerifierError,
    VerifierLostError,
    VerifierUnavailableError,
    WorkerError,
)
from diffuspec.core.interfaces import HostedDrafter, TargetInfo
from diffuspec.core.types import Draft, DraftRequest, Lattice, Verdict, VerifyRequest
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.client.stream import Method, Step, StepClient
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages import values as convert
from diffuspec.rpc.messages.batches import encode_draft_rows, encode_verify_rows
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.messages.status import LostAnswerError, TransportError
from diffuspec.rpc.security import Security
from diffuspec.rpc.services import DRAFTER_SERVICE, PATH_SCORER_SERVICE, VERIFIER_SERVICE
from diffuspec.v1 import drafter_pb2, path_scorer_pb2, verifier_pb2

Result = TypeVar("Result")

_DEADLINE_SECONDS = 60.0
_MAX_GREETING_SECONDS = 10.0

_DRAFT = Method(DRAFTER_SERVICE, "Draft", drafter_pb2.DraftRequest, drafter_pb2.DraftResponse)
_SEARCH = Method(
    PATH_SCORER_SERVICE, "Search", path_scorer_pb2.SearchRequest, path_scorer_pb2.SearchResponse
)
_VERIFY = Method(
    VERIFIER_SERVICE, "Verify", verifier_pb2.VerifyRequest, verifier_pb2.VerifyResponse
)


class _RemoteRole:
    """A role behind a connection. Belongs to the event loop that connected it."""

    method: ClassVar[Method[Any, Any]]
    failure: ClassVar[type[WorkerError]]  # raised if the role reports a failure
    unavailable: ClassVar[type[WorkerError]]  # raised if the role cannot be reached, or is late
    lost: ClassVar[type[WorkerError]]  # raised if the role was lost while it worked on the call

    def __init__(self, connection: Connection, deadline_seconds: float) -> None:
        self.address = connection.address
        self.transport_seconds = 0.0  # time of the last call minus the worker's own
        self._connection = connection
        self._deadline_seconds = deadline_seconds
        self._greeting_seconds = min(deadline_seconds, _MAX_GREETING_SECONDS)
        self._steps: StepClient[Any, Any] = StepClient(connection, self.method, self._meet)

    @classmethod
    async def connect(
        cls,
        address: str,
        security: Security,
        *,
        deadline_seconds: float = _DEADLINE_SECONDS,
        limits: RpcLimits = DEFAULT_LIMITS,
    ) -> Self:
        """Connect to a running server.

        deadline_seconds: limit on every call. Raises ConfigError if it refuses the token, and the
        role's error if it cannot be reached.
        """
        remote = cls(Connection(address, security, limits), deadline_seconds)
        try:
            await remote._meet()
        except BaseException as error:
            await remote.close()
            if isinstance(error, DiffuspecError):
                raise remote._role_error(error) from error
            raise
        return remote

    async def close(self) -> None:
        """Close the stream and the connection. Waiting calls fail."""
        await self._steps.close()
        await self._connection.close()

    async def check_health(self, timeout: float) -> bool:
        """Return whether the role is SERVING; False if there is no answer in time."""
        return await self._connection.check_health(self.method.service, timeout)

    @property
    def num_bytes_sent(self) -> int:
        return self._steps.num_bytes_sent

    @property
    def num_bytes_received(self) -> int:
        return self._steps.num_bytes_received

    async def _meet(self) -> None:
        """Raise unless the server answers, accepts the token and is the same one as before."""
        await self._connection.health(self.method.service, self._greeting_seconds)

    async def _step(
        self,
        fill: Callable[[Any, PrefixStore], None],
        requests: Sequence[DraftRequest] | Sequence[VerifyRequest],
    ) -> Step[Any]:
        ids = (request.request_id for request in requests)
        try:
            step = await self._steps.step(fill, ids, self._deadline_seconds)
        except DiffuspecError as error:
            raise self._role_error(error) from error
        self.transport_seconds = step.transport_seconds
        return step

    def _drafts(self, step: Step[Any], num_rows: int) -> list[Draft]:
        return self._read(convert.draft_from_proto, step.response.drafts.drafts, step, num_rows)

    def _read(
        self,
        read: Callable[[Any, float], Result],
        results: Sequence[Any],
        step: Step[Any],
        num_rows: int,
    ) -> list[Result]:
        """Read one result per row. Raises the role's error for a malformed response."""
        try:
            if len(results) != num_rows:
                raise InvalidRequestError(f"{len(results)} results for {num_rows} rows")
            return [read(result, step.transport_seconds) for result in results]
        except InvalidRequestError as error:
            raise self.failure(f"{self.address} gave a wrong answer: {error}") from error

    def _role_error(self, error: DiffuspecError) -> DiffuspecError:
        """Convert an error to one that the role's Protocol names."""
        if isinstance(error, self.failure | ConfigError):
            return error
        if isinstance(error, LostAnswerError):
            return self.lost(str(error))
        if isinstance(error, TransportError | OverloadedError):
            return self.unavailable(str(error))
        return self.failure(str(error))


class RemoteDrafter(_RemoteRole):
    """A `Drafter` in another process."""

    method = _DRAFT
    failure = unavailable = DrafterError
    lost = DrafterLostError

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        """See `Drafter.draft`. Raises DrafterError, also if the drafter is gone or late."""

        def fill(batch: drafter_pb2.DraftRequest, store: PrefixStore) -> None:
            encode_draft_rows(batch, requests, store)

        return self._drafts(await self._step(fill, requests), len(requests))

    async def release(self, request_id: str) -> None:
        self._steps.release(request_id)


class RemotePathScorer(_RemoteRole):
    """A `PathScorer` in another process."""

    method = _SEARCH
    failure = unavailable = DrafterError
    lost = DrafterLostError

    async def search(
        self, requests: Sequence[DraftRequest], lattices: Sequence[Lattice]
    ) -> list[Draft]:
        """See `PathScorer.search`. Raises DrafterError, also if the scorer is gone or late."""

        def fill(batch: path_scorer_pb2.SearchRequest, store: PrefixStore) -> None:
            encode_draft_rows(batch, requests, store)
            batch.lattices.extend([convert.lattice_to_proto(lattice) for lattice in lattices])

        return self._drafts(await self._step(fill, requests), len(requests))


class RemoteVerifier(_RemoteRole):
    """A `Verifier` in another process."""

    method = _VERIFY
    failure = VerifierError
    unavailable = VerifierUnavailableError
    lost = VerifierLostError
    problem = ""  # why it is known to be out of service: nothing is

    def __init__(self, connection: Connection, deadline_seconds: float) -> None:
        super().__init__(connection, deadline_seconds)
        # drafters in its process, as of the last connection
        self.drafters: tuple[HostedDrafter, ...] = ()
        self._info: TargetInfo | None = None

    @property
    def info(self) -> TargetInfo:
        assert self._info is not None, "connect() asks for it"
        return self._info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """See `Verifier.verify`.

        Raises VerifierUnavailableError if the verifier cannot be reached or is late,
        VerifierLostError if it is lost during the call.
        """

        def fill(batch: verifier_pb2.VerifyRequest, store: PrefixStore) -> None:
            encode_verify_rows(batch, requests, store)

        step = await self._step(fill, requests)
        return self._read(
            convert.verdict_from_proto, step.response.verdicts.verdicts, step, len(requests)
        )

    async def release(self, request_id: str) -> None:
        self._steps.release(request_id)

    async def _meet(self) -> None:
        response = await self._connection.call(
            VERIFIER_SERVICE,
            "GetInfo",
            verifier_pb2.GetInfoRequest(),
            verifier_pb2.GetInfoResponse,
            self._greeting_seconds,
        )
        info = convert.info_from_proto(response)
        known = self._info or info
        if replace(known, num_pages=info.num_pages) != info:  # its memory may have changed
            raise VerifierError(f"the target at {self.address} is now {info}, was {self._info}")
        self._info, self.drafters = info, convert.hosted_from_proto(response)

    def _role_error(self, error: DiffuspecError) -> DiffuspecError:
        return error if isinstance(error, InvalidRequestError) else super()._role_error(error)
