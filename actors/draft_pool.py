"""A pool of draft servers on a Ray cluster behind one address, scaled with the load."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Self

import ray
from pydantic import Field
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.draft_load import DraftLoad
from actors.draft_scaling import Demand, DraftScaling, decide, desired_servers
from actors.placement import CONTROL, Handle, Place, create_draft_server
from actors.placement_settings import RoleSettings
from actors.supervision.role_actor import RoleActor, start_actor
from actors.supervision.supervisor import Supervisor
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.errors import DiffuspecError
from diffuspec.core.validation import Section
from diffuspec.draft_server.config import DraftServerConfig
from diffuspec.rpc.draft_proxy import DraftProxy
from diffuspec.rpc.security import Security

logger = logging.getLogger(__name__)

_ROUND_SECONDS = 1.0  # pause between two readings of the loads


class DraftServerSupervisor(Supervisor[RoleActor[str]]):
    """Keeps one draft server running. It is in service when it answers at its actor's address."""

    def __init__(
        self,
        name: str,
        create: Callable[[], Handle],
        host: Callable[[Place], str],
        start_seconds: float,
        health_seconds: float,
    ) -> None:
        """`create` makes an actor; `host` returns its address, once it has a place."""
        super().__init__(name)
        self._create = create
        self._host = host
        self._start_seconds = start_seconds
        self._health_seconds = health_seconds

    @property
    def address(self) -> str:
        """The server's address; "" while it is down."""
        return self._thing.ready if self._thing is not None else ""

    async def load(self) -> DraftLoad | None:
        """Return the server's load; None while it is down or does not answer."""
        actor = self._thing
        if actor is None:
            return None
        call = actor.handle.load.options(concurrency_group=CONTROL)
        try:
            async with asyncio.timeout(self._health_seconds):
                load: DraftLoad = await call.remote()
        except (TimeoutError, RayError):
            return None  # `watch` reports the reason
        return load

    async def stop(self) -> None:
        """End the streams, whose engines connect elsewhere, then the actor. Call halt() first."""
        actor = self._thing
        self.close("stopped")
        if actor is not None:
            await actor.stop(self._health_seconds)

    async def bring_up(self) -> RoleActor[str]:
        return await start_actor(
            self.name, self._create(), lambda place: [self._host(place)], self._start_seconds
        )

    async def watch(self, thing: RoleActor[str]) -> str:
        return await thing.watch(self._health_seconds)

    async def drop(self, thing: RoleActor[str] | None, reason: str) -> None:
        if thing is not None:
            thing.kill()


class DraftPoolConfig(Section):
    """Draft servers as actors of Ray, and one address in front of them."""

    server: DraftServerConfig = Field(description="The drafter of each server, and its limits.")
    resources: RoleSettings = Field(
        RoleSettings(), description="The resources of its node that each server reserves."
    )
    scaling: DraftScaling = Field(
        DraftScaling(), description="The number of servers, and when it changes."
    )
    start_seconds: float = Field(
        300, gt=0, description="Seconds for a server to load its models and serve."
    )
    health_seconds: float = Field(
        5, gt=0, description="Seconds without an answer after which a server is replaced."
    )


class DraftPool:
    """Keeps draft servers running while its context is open, and tells a proxy their addresses.

    Without TLS the servers run on this process's node and listen on loopback.
    """

    def __init__(self, config: DraftPoolConfig, security: Security, proxy: DraftProxy) -> None:
        """`security`: the credentials of the servers, and of the proxy when it connects to them."""
        self._config = config
        self._security = security
        self._proxy = proxy
        self._numbers = itertools.count(1)
        self._servers: list[DraftServerSupervisor] = []
        self._demands: deque[Demand] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start the minimum number of servers. Raises the error of one that cannot start."""
        self._servers = [self._new() for _ in range(self._config.scaling.min_servers)]
        starts = [asyncio.create_task(one.start()) for one in self._servers]
        try:
            await asyncio.gather(*starts)
            await self._proxy.use(self.addresses)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.wait(starts)
            await self._stop_all()
            raise
        for one in self._servers:
            one.supervise()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._stop_all()

    @property
    def addresses(self) -> list[str]:
        """The addresses of the servers that are running."""
        return [one.address for one in self._servers if one.address]

    @property
    def num_servers(self) -> int:
        """Number of servers, starting ones included."""
        return len(self._servers)

    def _new(self) -> DraftServerSupervisor:
        config, security = self._config, self._security

        def create() -> Handle:
            options: dict[str, object] = {}
            if security.tls is None:
                node = ray.get_runtime_context().get_node_id()
                options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
            return create_draft_server(config.server, security, config.resources, **options)

        def host(place: Place) -> str:
            return LOOPBACK if security.tls is None else place.ip

        name = f"draft server {next(self._numbers)}"
        return DraftServerSupervisor(
            name, create, host, config.start_seconds, config.health_seconds
        )

    async def _stop_all(self) -> None:
        await asyncio.gather(*[self._stop(one) for one in self._servers])
        self._servers = []

    async def _stop(self, server: DraftServerSupervisor) -> None:
        await server.halt()
        await server.stop()

    # ---- scaling

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                await self._round()
            except DiffuspecError as error:
                logger.warning("a round of the pool of draft servers failed: %s", error)

    async def _round(self) -> None:
        """Update the proxy's server addresses, and start or stop a server if needed."""
        servers = [*self._servers]
        found = await asyncio.gather(*[one.load() for one in servers])
        await self._proxy.use(self.addresses)
        self._proxy.balance()
        loads = [one for one in found if one is not None]
        number = self._decided(loads, time.monotonic())
        if number > len(servers):
            self._servers.append(self._new())
            self._servers[-1].supervise()
            logger.info("one more draft server is started: %d", len(self._servers))
        elif number < len(servers):
            await self._remove()

    def _decided(self, loads: list[DraftLoad], now: float) -> int:
        scaling = self._config.scaling
        self._demands.append(Demand(now, desired_servers(loads, scaling)))
        longest = max(scaling.up_seconds, scaling.down_seconds) + 2 * _ROUND_SECONDS
        while now - self._demands[0].at > longest:
            self._demands.popleft()
        return decide(len(self._servers), self._demands, now, scaling)

    async def _remove(self) -> None:
        """Stop the server with the fewest engines; its engines connect to others."""
        engines = self._proxy.num_engines()
        leaving = min(self._servers, key=lambda one: engines.get(one.address, 0))
        await self._proxy.use([one for one in self.addresses if one != leaving.address])
        await self._stop(leaving)
        self._servers.remove(leaving)  # the last step: __aexit__ stops what is still here
        logger.info("a draft server is taken away: %d are left", len(self._servers))
