"""Real servers and clients on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from diffuspec.core.interfaces import Verifier
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import RoleServicer, VerifierServicer


class Wire:
    """A server, and clients of it that are closed with it."""

    def __init__(self, server: RoleServer, security: Security, limits: RpcLimits) -> None:
        self.server = server
        self.address = server.address
        self.security = security
        self.limits = limits
        self.clients: list[Any] = []

    async def connect(self, kind: type[Any], **options: Any) -> Any:
        options = {"limits": self.limits} | options
        client = await kind.connect(self.address, self.security, **options)
        self.clients.append(client)
        return client

    def channel(self) -> Any:
        """Open a channel for calls that no client of ours makes."""
        channel = grpc.aio.insecure_channel(self.address)
        self.clients.append(channel)
        return channel


@asynccontextmanager
async def serving(
    *servicers: RoleServicer, security: Security, limits: RpcLimits = DEFAULT_LIMITS, port: int = 0
) -> AsyncIterator[Wire]:
    async with RoleServer(servicers, security, port=port, limits=limits) as server:
        wire = Wire(server, security, limits)
        try:
            yield wire
        finally:
            for client in wire.clients:
                await client.close()


@asynccontextmanager
async def connected(
    verifier: Verifier, security: Security, limits: RpcLimits = DEFAULT_LIMITS
) -> AsyncIterator[RemoteVerifier]:
    """Serve a verifier; enter with a client of it."""
    async with serving(VerifierServicer(verifier), security=security, limits=limits) as wire:
        yield await wire.connect(RemoteVerifier)
