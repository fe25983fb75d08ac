"""Supervision of a pipeline's coordinator, and so of the verifier that it owns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from actors.bundles import VERIFIER
from actors.exporter import export_coordinator
from actors.placement import CONTROL, Place, Placement
from actors.roles.colocated_verifier import colocated_verifier
from actors.roles.coordinator import HostedVerifier, Ready
from actors.supervision.background import log_problem
from actors.supervision.role_actor import ActorLostError, RoleActor, start_actor
from actors.supervision.supervisor import Supervisor
from actors.supervision.verifier_group import SupervisedVerifier, VerifierGroup
from diffuspec.core.errors import DiffuspecError
from diffuspec.rpc.client.coordinator import RemoteCoordinator

_SLACK_SECONDS = 5.0  # time that the drain call may take beyond the drain time


def open_verifier(placement: Placement) -> AbstractAsyncContextManager[HostedVerifier]:
    """Return a pipeline's verifier, not yet started. Called in the coordinator's process."""
    config = placement.config
    if config.placement.together:
        return colocated_verifier(config)
    num_ranks = config.placement.verifier.tensor_parallel
    seconds = config.deadlines.verify_seconds
    return SupervisedVerifier(
        VerifierGroup(
            placement.create_rank,
            num_ranks,
            config.deadlines,
            placement.host,
            partial(placement.has_room, VERIFIER),
        ),
        placement.security,
        seconds,
        config.limits(seconds),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A running coordinator."""

    actor: RoleActor[Ready]
    client: RemoteCoordinator


class CoordinatorSupervisor(Supervisor[Service]):
    """Keeps a coordinator in service, with a client of it."""

    def __init__(self, placement: Placement) -> None:
        super().__init__("the coordinator")
        self._placement = placement

    @property
    def service(self) -> Service | None:
        """The coordinator in service, and its client; None while there is none."""
        return self._thing

    @property
    def actor(self) -> RoleActor[Ready] | None:
        """The coordinator in service; None while there is none."""
        return self._thing.actor if self._thing is not None else None

    @property
    def address(self) -> str:
        """The coordinator's "host:port"; "" while there is none."""
        return self.actor.ready.address if self.actor is not None else ""

    async def serving(self) -> Service:
        """Wait for a coordinator in service. Raises ActorLostError once closed."""
        service = await self.current()
        if service is None:
            raise ActorLostError("the pipeline was stopped")
        return service

    async def bring_up(self) -> Service:
        """Start a coordinator and its verifier, and connect to it."""
        placement, config = self._placement, self._placement.config
        handle = placement.create_coordinator(self.num_starts + 1)

        def arguments(place: Place) -> Sequence[object]:
            host = config.rpc.host or placement.host(place)
            return partial(open_verifier, placement), host, config.rpc.port

        seconds = config.deadlines.start_seconds
        actor: RoleActor[Ready] = await start_actor("coordinator", handle, arguments, seconds)
        try:
            client = await RemoteCoordinator.connect(
                actor.ready.address,
                placement.security,
                deadline_seconds=config.deadlines.answer_seconds,
                limits=config.coordinator_limits(),
            )
        except BaseException:
            actor.kill()
            raise
        run_there = handle.__ray_call__.options(concurrency_group=CONTROL)
        run_there.remote(export_coordinator, placement.name)
        return Service(actor, client)

    async def watch(self, thing: Service) -> str:
        return await thing.actor.watch(self._placement.config.deadlines.health_seconds)

    async def drop(self, thing: Service | None, reason: str) -> None:
        if thing is not None:
            thing.actor.kill()
            await thing.client.close()

    async def drain(self, seconds: float) -> bool:
        """Have the coordinator refuse new requests and finish the running ones within `seconds`.

        Returns whether they have finished; False if the coordinator is lost meanwhile.
        """
        service = self._thing
        if service is None:
            return False
        call = service.actor.call("drain", seconds, seconds=seconds + _SLACK_SECONDS)
        draining = asyncio.create_task(call)
        loss = asyncio.create_task(self.replaced(service))
        try:
            await asyncio.wait({draining, loss}, return_when=asyncio.FIRST_COMPLETED)
            if draining.done():
                draining.result()
            return draining.done()
        except DiffuspecError as error:
            log_problem("the coordinator was not drained", error)
            return False
        finally:
            draining.cancel()
            loss.cancel()

    async def stop(self) -> None:
        """End the coordinator and what it runs. Call it after halt() and before leave()."""
        if self._thing is not None:
            await self._thing.actor.stop(0.0)
        else:
            self.close("stopped")

    async def leave(self) -> None:
        """Close the client. All answers must have been read before."""
        service = self._thing
        self.close("stopped")
        if service is not None:
            await service.client.close()
