"""What the role processes share: a server, and health checks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from typing import Self

from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import RoleServicer

_MAX_INTERVAL_SECONDS = 0.5


class Heartbeat:
    """Beats in the event loop that entered its context. Any thread may call `is_alive`.

    max_silence_seconds: longest time for which one callback may block the loop.
    """

    def __init__(self, max_silence_seconds: float) -> None:
        self._max_silence_seconds = max_silence_seconds
        self._last = -math.inf
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._last = time.monotonic()
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._last = -math.inf
        if self._beating is not None:
            self._beating.cancel()

    @property
    def is_alive(self) -> bool:
        """Whether the loop has run within max_silence_seconds; False outside the context."""
        return time.monotonic() - self._last <= self._max_silence_seconds

    async def _beat(self) -> None:
        interval = min(_MAX_INTERVAL_SECONDS, self._max_silence_seconds / 4)
        while True:
            await asyncio.sleep(interval)
            self._last = time.monotonic()


class ServedRole:
    """The base class of the roles that serve. Runs in a Ray actor or in a process of its own.

    max_silence_seconds: longest time for which a step may block the event loop.
    """

    def __init__(self, security: Security, max_silence_seconds: float) -> None:
        self._security = security
        self._resources = contextlib.AsyncExitStack()  # closed in reverse order by stop()
        self._heartbeat = Heartbeat(max_silence_seconds)
        self._servicer: RoleServicer | None = None  # None while it is not serving

    async def run(self) -> None:
        """Never return: the call fails as soon as the process ends, which the caller notices."""
        await asyncio.Event().wait()

    async def is_healthy(self) -> bool:
        """Return whether the event loop is alive and steps succeed.

        May be called from the event loop of any thread.
        """
        servicer = self._servicer
        return self._heartbeat.is_alive and servicer is not None and servicer.is_healthy()

    async def stop(self) -> None:
        """Finish the running steps and end the server."""
        self._servicer = None
        await self._resources.aclose()

    async def _serve(
        self,
        servicer: RoleServicer,
        host: str,
        port: int,
        limits: RpcLimits = DEFAULT_LIMITS,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> RoleServer:
        """Start to serve. `check`: a step to run as a health check while there are no others."""
        server = RoleServer([servicer], self._security, host, port, limits)
        await self._resources.enter_async_context(server)
        if check is not None:
            await self._resources.enter_async_context(servicer.health.checked_when_idle(check))
        await self._resources.enter_async_context(self._heartbeat)
        self._servicer = servicer
        return server
