"""A server for one or more roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from diffuspec.core.errors import ConfigError
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.health import HealthServicer
from diffuspec.rpc.server.interceptor import Guard
from diffuspec.rpc.server.servicers import RoleServicer


class RoleServer:
    """Serves while its context is open. Health goes first when it ends, then streams are drained.

    Without TLS it serves on loopback alone. port 0: any free one; see address.
    """

    def __init__(
        self,
        servicers: Sequence[RoleServicer],
        security: Security,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RpcLimits = DEFAULT_LIMITS,
    ) -> None:
        self._servicers = servicers
        self._credentials = security.server_credentials(host)
        self._security = security
        self._host = f"[{host}]" if ":" in host else host
        self._port = port
        self._limits = limits
        self._health = HealthServicer({one.service: one.is_healthy for one in servicers})
        self._server: grpc.aio.Server | None = None
        self.address = ""  # "host:port", once the context is open

    async def __aenter__(self) -> Self:
        server = grpc.aio.server(
            interceptors=[Guard(self._security, self._limits)],
            options=self._limits.server_options(),
        )
        for servicer in self._servicers:
            servicer.begin(self._limits)
            servicer.add_to(server)
        add_HealthServicer_to_server(self._health, server)
        port = self._bind(server)
        await server.start()
        self._server = server
        self.address = f"{self._host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.announce_end()
        for servicer in self._servicers:
            servicer.drain()
        if self._server is not None:
            await self._server.stop(self._limits.grace_seconds)
        for servicer in self._servicers:
            await servicer.finish()

    def announce_end(self) -> None:
        """Be NOT_SERVING from now on, and go on serving."""
        self._health.is_draining = True

    async def wait(self) -> None:
        """Wait until the server has ended."""
        if self._server is not None:
            await self._server.wait_for_termination()

    def _bind(self, server: grpc.aio.Server) -> int:
        address = f"{self._host}:{self._port}"
        try:
            if self._credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot serve on {address}: {error}") from error
