"""The path scorer's process: it runs the path search for one drafter."""

from __future__ import annotations

import asyncio

from actors.roles import self_test
from actors.roles.served_role import ServedRole
from actors.settings import PipelineConfig
from diffuspec.core.errors import ConfigError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.drafters.path_search import make_path_search
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.servicers import PathScorerServicer


class PathScorerActor(ServedRole):
    """Serves a path search."""

    def __init__(self, config: PipelineConfig, security: Security) -> None:
        seconds = config.deadlines.search_seconds + config.deadlines.silence_seconds
        super().__init__(security, seconds)
        self._config = config

    async def start(self, info: TargetInfo, host: str, port: int = 0) -> str:
        """Load the proxy, search once as a self-test, and serve; return the address.

        Raises ConfigError, NgramError, ModelLoadError.
        """
        config = self._config
        if not any(process.needs_path_scorer for process in config.drafter_processes):
            raise ConfigError("no drafter that is configured needs a path scorer")
        # raises on a bad configuration before the proxy is loaded
        self._security.server_credentials(host)
        scorer = await asyncio.to_thread(
            make_path_search, config.engine.search, info, config.engine.target.path
        )

        async def search() -> None:
            await scorer.search([self_test.draft_request(info)], [self_test.lattice(info)])

        await search()
        limits = config.limits(config.deadlines.search_seconds)
        servicer = PathScorerServicer(scorer, info)
        return (await self._serve(servicer, host, port, limits, search)).address
