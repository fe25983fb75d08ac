"""A server for one or more roles."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from diffuspec.core.addresses import UNIX_SCHEME, bind, bind_error
from diffuspec.core.errors import ConfigError
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.health import HealthServicer
from diffuspec.rpc.server.interceptor import Guard
from diffuspec.rpc.server.servicers import RoleServicer


class RoleServer:
    """Serves while its context is open. At the end health changes first, then streams are drained.

    Without TLS it serves only on loopback. port: 0: any free port; see `address`. A host
    "unix:PATH" is a Unix socket, which only its owner may use.
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
        is_bare_ipv6 = ":" in host and not host.startswith(UNIX_SCHEME)
        self._host = f"[{host}]" if is_bare_ipv6 else host
        self._port = port
        self._limits = limits
        self._health = HealthServicer({one.service: one.is_healthy for one in servicers})
        self._server: grpc.aio.Server | None = None
        self.address = ""  # "host:port" or "unix:PATH", once the context is open

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
        self.address = self._host if self._is_unix else f"{self._host}:{port}"
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
        """Report NOT_SERVING from now on, but continue to serve."""
        self._health.is_draining = True

    async def wait(self) -> None:
        """Wait until the server has ended."""
        if self._server is not None:
            await self._server.wait_for_termination()

    @property
    def _is_unix(self) -> bool:
        return self._host.startswith(UNIX_SCHEME)

    def _bind(self, server: grpc.aio.Server) -> int:
        address = self._host if self._is_unix else f"{self._host}:{self._port}"
        mask = os.umask(0o177) if self._is_unix else None
        try:
            check_address(self._host, self._port)
            if self._credentials is None:
                return server.add_insecure_port(address)
            return server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot serve on {address}: {error}".partition(";")[0]) from error
        finally:
            if mask is not None:
                os.umask(mask)


def check_address(host: str, port: int) -> None:
    """Raise ConfigError if nothing can listen at the address, of which gRPC tells no reason.

    Removes the socket of a dead server.
    """
    if not host.startswith(UNIX_SCHEME):
        bind(host.strip("[]"), port).close()
        return
    path = Path(host.removeprefix(UNIX_SCHEME))
    try:
        _remove_stale(path)
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(path))
        path.unlink()
    except OSError as error:
        raise bind_error(host, error) from error


def _remove_stale(path: Path) -> None:
    """Remove the socket of a dead server. Raises OSError if a server is alive, or for a file."""
    if not path.is_socket():
        if path.exists():
            raise FileExistsError(f"{path} is there and is no socket")
        return
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise FileExistsError("a server is there already")
