"""The path scorer's process: the path search for the drafter beside it."""

from __future__ import annotations

import asyncio
import contextlib

from actors.roles import self_test
from actors.roles.heartbeat import Heartbeat
from actors.settings import PipelineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.drafters.path_search import make_path_search
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.server.servicers import PathScorerServicer


class PathScorerActor:
    """Serves a path search. A plain class: an actor of Ray or a process by itself runs it."""

    def __init__(self, config: PipelineConfig, token: str) -> None:
        self._config = config
        self._security = config.security(token)
        self._resources = contextlib.AsyncExitStack()
        deadlines = config.deadlines  # a step may block the event loop
        self._heartbeat = Heartbeat(deadlines.search_seconds + deadlines.silence_seconds)
        self._servicer: PathScorerServicer | None = None

    async def start(self, info: TargetInfo, host: str, port: int = 0) -> str:
        """Load the proxy, search once as a self-test, and serve; return the address.

        Raises ConfigError, NgramError, ModelLoadError.
        """
        config = self._config
        if not any(process.needs_path_scorer for process in config.drafter_processes):
            raise ConfigError("no drafter that is configured needs a path scorer")
        self._security.server_credentials(host)  # raises its errors before the proxy is loaded
        scorer = await asyncio.to_thread(
            make_path_search, config.engine.search, info, config.engine.target.path
        )

        async def search() -> None:
            await scorer.search([self_test.draft_request(info)], [self_test.lattice(info)])

        await search()
        self._servicer = PathScorerServicer(scorer, info)
        limits = config.limits(config.deadlines.search_seconds)
        server = RoleServer([self._servicer], self._security, host, port, limits)
        await self._resources.enter_async_context(server)
        await self._resources.enter_async_context(self._servicer.health.checked_when_idle(search))
        await self._resources.enter_async_context(self._heartbeat)
        return server.address

    async def run(self) -> None:
        """Never return: a call fails as soon as the process ends, so that its caller notices."""
        await asyncio.Event().wait()

    async def is_healthy(self) -> bool:
        """Return whether the event loop runs and steps succeed.

        May be called from the event loop of any thread.
        """
        servicer = self._servicer
        return self._heartbeat.is_alive and servicer is not None and servicer.is_healthy()

    async def stop(self) -> None:
        """Finish the steps under way and end the server."""
        self._servicer = None
        await self._resources.aclose()
