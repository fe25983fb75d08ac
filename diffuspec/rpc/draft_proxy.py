"""One address in front of several draft servers: each engine's stream goes to one of them.

Messages are passed on unchanged. An engine whose server dies gets UNAVAILABLE, reconnects, and is
then sent to another server; so do the engines of a server that is removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from diffuspec.core.errors import ShuttingDownError
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.status import IdleStreamError, abort, from_rpc_error
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.interceptor import write_within
from diffuspec.rpc.server.servicers import RoleServicer
from diffuspec.rpc.services import DRAFT_SERVICE

_UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@dataclass(slots=True, eq=False)
class _Server:
    """A draft server, and its engines."""

    connection: Connection
    streams: set[asyncio.Event] = field(default_factory=set)  # set one to end its stream
    has_failed: bool = False  # it has ended or could not be reached since the last `use`


class DraftProxy(RoleServicer):
    """Serves the draft service through other servers, choosing the one with the fewest engines."""

    service = DRAFT_SERVICE

    def __init__(self, security: Security) -> None:
        """`security`: the credentials that the servers require."""
        self._security = security
        self._limits = DEFAULT_LIMITS
        self._servers: dict[str, _Server] = {}
        self._is_draining = False

    async def use(self, addresses: Iterable[str]) -> None:
        """Use these servers from now on. Engines of others get UNAVAILABLE, and reconnect."""
        wanted = {*addresses}
        for address in self._servers.keys() - wanted:
            server = self._servers.pop(address)
            for stream in server.streams:
                stream.set()
            await server.connection.close()
        for address in wanted:
            if address not in self._servers:
                connection = Connection(address, self._security, self._limits)
                self._servers[address] = _Server(connection)
            self._servers[address].has_failed = False

    def num_engines(self) -> dict[str, int]:
        """Return the number of engines of each server, by address."""
        return {address: len(server.streams) for address, server in self._servers.items()}

    def balance(self) -> None:
        """End streams of the server with the most engines until it has no more than the others.

        These engines reconnect, and are sent to the servers with the fewest engines.
        """
        servers = [one for one in self._servers.values() if not one.has_failed]
        if len(servers) < 2:
            return
        most, fewest = (f(servers, key=lambda one: len(one.streams)) for f in (max, min))
        for stream in [*most.streams][: (len(most.streams) - len(fewest.streams)) // 2]:
            stream.set()

    def add_to(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(self._connect, bytes, bytes)
        handlers = grpc.method_handlers_generic_handler(DRAFT_SERVICE, {"Connect": handler})
        server.add_generic_rpc_handlers((handlers,))

    def begin(self, limits: RpcLimits) -> None:
        self._limits = limits

    def is_healthy(self) -> bool:
        return any(not server.has_failed for server in self._servers.values())

    def drain(self) -> None:
        self._is_draining = True
        for server in self._servers.values():
            for stream in server.streams:
                stream.set()

    async def finish(self) -> None:
        for server in self._servers.values():
            await server.connection.close()

    async def _connect(self, requests: object, context: Any) -> None:
        """Pass on the messages of one engine, in both directions, until its stream ends."""
        if self._is_draining or not self._servers:
            await context.abort(_UNAVAILABLE, "there is no draft server at present")
        server = min(self._servers.values(), key=lambda one: (one.has_failed, len(one.streams)))
        end = asyncio.Event()
        server.streams.add(end)
        stream = server.connection.open_stream(DRAFT_SERVICE, "Connect")
        tasks = [
            asyncio.create_task(work)
            for work in (self._send(context, stream), self._receive(stream, context), end.wait())
        ]
        _, receiving, ending = tasks
        try:
            await asyncio.wait({receiving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if end.is_set():
                await abort(context, ShuttingDownError("the server is taken away; connect again"))
            await receiving
        except grpc.aio.AioRpcError as error:
            is_idle = isinstance(from_rpc_error(error), IdleStreamError)
            server.has_failed = error.code() == _UNAVAILABLE and not is_idle
            metadata = tuple(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "", metadata)
        finally:
            server.streams.discard(end)
            stream.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, context: Any, stream: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await stream.write(message)
        await stream.done_writing()

    async def _receive(self, stream: Any, context: Any) -> None:
        while (message := await stream.read()) is not grpc.aio.EOF:
            await write_within(self._limits.max_stall_seconds, context, message)
