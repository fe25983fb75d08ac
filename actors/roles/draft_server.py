"""A draft server's process: it drafts for external engines, as one of several servers."""

from __future__ import annotations

import asyncio

from actors.draft_load import DraftLoad, DraftLoadMeter
from actors.roles.served_role import ServedRole
from diffuspec.core.errors import WorkerError
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.draft_server.service import check_kind, load_service
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.draft_service import DraftServicer
from diffuspec.telemetry import otel

# longest time, beyond one drafter call, for which the event loop may be blocked
_SILENCE_SECONDS = 12.0
# share of the last seconds with failures; a single failed call does not end the server
_MAX_FAILING_SHARE = 0.5


class DraftServerActor(ServedRole):
    """Serves the draft service."""

    def __init__(self, config: DraftServerConfig, security: Security) -> None:
        super().__init__(security, config.max_draft_seconds + _SILENCE_SECONDS)
        self._config = config
        self._meter: DraftLoadMeter | None = None

    async def start(self, host: str, port: int = 0) -> str:
        """Load the drafter, measure it, and serve; return the address.

        Raises ConfigError, ModelLoadError, NgramError.
        """
        check_kind(self._config)
        otel.check()
        # raises on a bad configuration before weights are loaded
        self._security.server_credentials(host)
        service, drafter = await asyncio.to_thread(load_service, self._config)
        self._resources.callback(drafter.close)
        service.spans = self._resources.enter_context(otel.exporting_drafts())
        await self._resources.enter_async_context(service)
        server = await self._serve(DraftServicer(service), host, port)
        meter = DraftLoadMeter(service)
        self._meter = await self._resources.enter_async_context(meter)
        return server.address

    async def load(self) -> DraftLoad:
        """Return the latest load. May be called from the event loop of any thread.

        Raises WorkerError while the server is down.
        """
        if self._meter is None:
            raise WorkerError("the draft server does not serve")
        return self._meter.load()

    async def is_healthy(self) -> bool:
        """Return whether the event loop is alive and most drafts succeed.

        May be called from the event loop of any thread.
        """
        if self._meter is None or not self._heartbeat.is_alive:
            return False
        return self._meter.load().failing_share <= _MAX_FAILING_SHARE

    async def stop(self) -> None:
        """End the streams, so that engines connect elsewhere, and then the server."""
        self._meter = None
        await super().stop()
