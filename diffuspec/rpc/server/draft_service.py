"""The draft service over gRPC: one stream per engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import grpc

from diffuspec.core.errors import InvalidRequestError, OverloadedError, ShuttingDownError
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.status import IdleStreamError
from diffuspec.rpc.server.interceptor import refuse_malformed, write_within
from diffuspec.rpc.server.servicers import RoleServicer
from diffuspec.rpc.services import DRAFT_SERVICE
from diffuspec.v1 import draft_service_pb2_grpc
from diffuspec.v1.draft_service_pb2 import (
    ConnectRequest,
    ConnectResponse,
    EngineStep,
    Hello,
    OutcomeTable,
    StepDrafts,
    Welcome,
)

logger = logging.getLogger(__name__)

_MAX_TABLES = 16  # unread outcomes of an engine; older ones are of no use


class EngineSession(Protocol):
    """Answers one engine."""

    lost_place: asyncio.Event  # set when the session is over, since another engine has its place
    on_outcomes: Callable[[OutcomeTable], None] | None

    def step(self, step: EngineStep) -> Awaitable[StepDrafts]: ...

    def draft_ahead(self) -> None: ...


class EngineSessions(Protocol):
    """Opens sessions for engines."""

    def open(self, hello: Hello) -> tuple[Any, Welcome]: ...

    def close(self, session: Any) -> None: ...

    def is_healthy(self) -> bool: ...


class DraftServicer(RoleServicer, draft_service_pb2_grpc.DraftServiceServicer):
    """Serves the draft service."""

    service = DRAFT_SERVICE

    def __init__(self, sessions: EngineSessions) -> None:
        self._sessions = sessions
        self.limits = DEFAULT_LIMITS
        self._draining = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        draft_service_pb2_grpc.add_DraftServiceServicer_to_server(self, server)

    def begin(self, limits: RpcLimits) -> None:
        self.limits = limits

    def is_healthy(self) -> bool:
        return self._sessions.is_healthy()

    def drain(self) -> None:
        self._draining.set()

    async def Connect(self, requests: object, context: Any) -> None:
        """Serve one engine until its stream ends."""
        hello = await self.read(context, self.limits.max_stall_seconds, asyncio.Event())
        if hello is None:
            return
        if hello.WhichOneof("message") != "hello":
            raise InvalidRequestError("the first message of an engine must be its hello")
        session, welcome = self._sessions.open(hello.hello)
        stream = _Stream(self, session, context)
        try:
            await stream.write(ConnectResponse(welcome=welcome))
            await stream.run(hello.hello.wants_outcomes)
        finally:
            self._sessions.close(session)

    async def read(
        self, context: Any, limit: float, lost_place: asyncio.Event
    ) -> ConnectRequest | None:
        """Return the next message; None: the engine has finished.

        Raises IdleStreamError if there is none within `limit` seconds, ShuttingDownError, and
        OverloadedError if the engine has lost its place.
        """
        reading = asyncio.ensure_future(context.read())
        draining = asyncio.ensure_future(self._draining.wait())
        losing = asyncio.ensure_future(lost_place.wait())
        try:
            await asyncio.wait(
                [reading, draining, losing], timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if lost_place.is_set():
                raise OverloadedError(
                    "this engine was silent and had no requests, and all places are taken: another "
                    "engine has got its place"
                )
            if not reading.done():
                if draining.done():
                    raise ShuttingDownError("the draft server is shutting down")
                raise IdleStreamError(f"the stream was closed after {limit:g} s without a message")
            message = reading.result()
        finally:
            for task in (reading, draining, losing):
                task.cancel()
        if message is grpc.aio.EOF:
            return None
        refuse_malformed(message)
        assert isinstance(message, ConnectRequest)
        return message


class _Stream:
    """The exchange with one engine after its hello."""

    def __init__(self, servicer: DraftServicer, session: EngineSession, context: Any) -> None:
        self._servicer = servicer
        self._session = session
        self._context = context
        self._writing = asyncio.Lock()
        self._tables: asyncio.Queue[OutcomeTable] = asyncio.Queue(_MAX_TABLES)

    async def run(self, wants_outcomes: bool) -> None:
        pushing = None
        if wants_outcomes:
            self._session.on_outcomes = self._put
            pushing = asyncio.create_task(self._push())
        try:
            limit = self._servicer.limits.max_idle_seconds
            while message := await self._servicer.read(
                self._context, limit, self._session.lost_place
            ):
                if message.WhichOneof("message") != "step":
                    raise InvalidRequestError("a message after the hello must be a step")
                await self.write(ConnectResponse(drafts=await self._session.step(message.step)))
                self._session.draft_ahead()
        finally:
            self._session.on_outcomes = None
            if pushing is not None:
                pushing.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await pushing

    def _put(self, table: OutcomeTable) -> None:
        if self._tables.full():
            self._tables.get_nowait()
        self._tables.put_nowait(table)

    async def _push(self) -> None:
        while True:
            await self.write(ConnectResponse(outcomes=await self._tables.get()))

    async def write(self, response: ConnectResponse) -> None:
        async with self._writing:
            seconds = self._servicer.limits.max_stall_seconds
            await write_within(seconds, self._context, response)
