"""Supervision of one draft server of a pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ray.exceptions import RayError

from actors.draft_load import DraftLoad
from actors.placement import CONTROL, Handle, Place
from actors.supervision.role_actor import RoleActor, start_actor
from actors.supervision.supervisor import Supervisor


class DraftServerSupervisor(Supervisor[RoleActor[str]]):
    """Keeps one draft server up. In service: it serves at the address that its actor has ready."""

    def __init__(
        self,
        name: str,
        create: Callable[[], Handle],
        host: Callable[[Place], str],
        start_seconds: float,
        health_seconds: float,
    ) -> None:
        """`create` makes an actor; `host` tells where it is to listen, once its place is known."""
        super().__init__(name)
        self._create = create
        self._host = host
        self._start_seconds = start_seconds
        self._health_seconds = health_seconds

    @property
    def address(self) -> str:
        """Where it serves; "" while it does not."""
        return self._thing.ready if self._thing is not None else ""

    async def load(self) -> DraftLoad | None:
        """Return its load; None while it does not serve, or does not answer."""
        actor = self._thing
        if actor is None:
            return None
        call = actor.handle.load.options(concurrency_group=CONTROL)
        try:
            async with asyncio.timeout(self._health_seconds):
                load: DraftLoad = await call.remote()
        except (TimeoutError, RayError):
            return None  # the watch reports the reason
        return load

    async def stop(self) -> None:
        """End its streams, whose engines connect elsewhere, and its actor. Comes after halt()."""
        actor = self._thing
        self.close("stopped")
        if actor is not None:
            await actor.stop(self._health_seconds)

    async def bring_up(self) -> RoleActor[str]:
        handle = self._create()

        async def start(place: Place) -> str:
            address: str = await handle.start.remote(self._host(place))
            return address

        return await start_actor(self.name, handle, start, self._start_seconds)

    async def watch(self, thing: RoleActor[str]) -> str:
        return await thing.watch(self._health_seconds)

    async def drop(self, thing: RoleActor[str] | None, reason: str) -> None:
        if thing is not None:
            thing.kill()
