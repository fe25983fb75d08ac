"""Keeps a pipeline's coordinator alive, and with it the verifier that it owns."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TypeVar

from actors.placement import Place, Placement
from actors.roles.coordinator import Ready
from actors.supervision.keeping import log_problem
from actors.supervision.role_actor import ActorLostError, RoleActor, start_actor
from actors.supervision.verifier_group import SupervisedVerifier, VerifierGroup
from diffuspec.rpc.client.coordinator import RemoteCoordinator

logger = logging.getLogger(__name__)

Present = TypeVar("Present")

_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 60.0  # between attempts to start it again


def open_verifier(placement: Placement) -> SupervisedVerifier:
    """Return the verifier of a pipeline, not started; the coordinator's process calls this."""
    config = placement.config
    num_ranks = config.placement.verifier.tensor_parallel
    seconds = config.deadlines.verify_seconds
    return SupervisedVerifier(
        VerifierGroup(placement.create_rank, num_ranks, config.deadlines, placement.host),
        config.security(placement.token),
        seconds,
        config.limits(seconds),
    )


class CoordinatorKeeper:
    """The coordinator that there is at the moment, and a client of it."""

    def __init__(self, placement: Placement) -> None:
        self.reason = "starting"  # why there is none; empty: there is one
        self.num_starts = 0
        self._placement = placement
        self._actor: RoleActor[Ready] | None = None
        self._client: RemoteCoordinator | None = None
        self._is_over = False  # there will be no other one
        self._has_changed = asyncio.Condition()

    @property
    def actor(self) -> RoleActor[Ready] | None:
        return self._actor

    async def current(self) -> RoleActor[Ready]:
        """Wait for a coordinator that answers. Raises ActorLostError once this was stopped."""
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: self._actor is not None or self._is_over)
            return _present(self._actor)

    async def client(self) -> RemoteCoordinator:
        """Wait for a coordinator that answers; return the way to it.

        Raises ActorLostError once this was stopped.
        """
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: self._client is not None or self._is_over)
            return _present(self._client)

    async def replaced(self, actor: RoleActor[Ready]) -> None:
        """Wait until this is not the coordinator any more."""
        async with self._has_changed:
            await self._has_changed.wait_for(lambda: self._actor is not actor)

    async def start(self) -> None:
        """Start a coordinator and its verifier. Raises what prevents it."""
        placement, config = self._placement, self._placement.config
        handle = placement.create_coordinator(self.num_starts + 1)

        async def start(place: Place) -> Ready:
            host = placement.host(place)
            ready: Ready = await handle.start.remote(partial(open_verifier, placement), host)
            return ready

        seconds = config.deadlines.start_seconds
        actor = await start_actor("coordinator", handle, start, seconds)
        try:
            client = await RemoteCoordinator.connect(
                actor.ready.address,
                config.security(placement.token),
                deadline_seconds=config.deadlines.answer_seconds,
                limits=config.coordinator_limits(),
            )
        except BaseException:
            actor.kill()
            raise
        self.num_starts += 1
        await self._become(actor, client, "")

    async def run(self) -> None:
        """Watch it; start another one whenever it is lost. Returns when it is cancelled."""
        pause = _MIN_PAUSE_SECONDS
        while True:
            actor = await self.current()
            reason = await self._loss(actor)
            logger.warning("the coordinator is lost: %s", reason)
            actor.kill()
            await self._become(None, None, reason)
            while self._actor is None:
                try:
                    await self.start()
                    pause = _MIN_PAUSE_SECONDS
                except Exception as error:  # of Ray too: it is tried for ever
                    self.reason = str(error)
                    log_problem("the coordinator does not start", error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def _loss(self, actor: RoleActor[Ready]) -> str:
        """Wait until it has to go; return why."""
        try:
            return await actor.watch(self._placement.config.deadlines.health_seconds)
        except Exception as error:
            log_problem("the coordinator cannot be watched", error)
            return str(error)

    async def drain(self) -> None:
        """Let it finish what runs within the drain time, and end it. close() comes after it.

        Until then there is a way to it: its last words may not have been read.
        """
        async with self._has_changed:
            self._is_over = True
            self._has_changed.notify_all()
        if self._actor is not None:
            await self._actor.stop(self._placement.config.deadlines.drain_seconds)

    async def close(self) -> None:
        """Leave it; nobody has to wait for another."""
        self._is_over = True
        await self._become(None, None, "stopped")

    async def _become(
        self, actor: RoleActor[Ready] | None, client: RemoteCoordinator | None, reason: str
    ) -> None:
        async with self._has_changed:
            before, self._client = self._client, client
            self._actor, self.reason = actor, reason
            self._has_changed.notify_all()
        if before is not None:
            await before.close()


def _present(one: Present | None) -> Present:
    if one is None:
        raise ActorLostError("the pipeline was stopped")
    return one
