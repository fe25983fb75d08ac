"""Supervision of one drafter, and of its path scorer if it needs one.

A scorer that is lost is replaced without loading the drafter again. A drafter that cannot be
started costs speed, never the service: the coordinator is told the reason and decodes without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from actors.placement import Handle, Place, Placement
from actors.roles.coordinator import Ready
from actors.settings import DrafterProcess
from actors.supervision.background import in_background, log_problem
from actors.supervision.coordinator_supervisor import CoordinatorSupervisor, Service
from actors.supervision.role_actor import FAILING, ActorLostError, RoleActor, kill, start_actor
from actors.supervision.supervisor import Supervisor
from diffuspec.core.errors import DiffuspecError

logger = logging.getLogger(__name__)


class DrafterSupervisor(Supervisor[Service]):
    """Keeps the actors of one bundle running; in service while it drafts for the coordinator."""

    def __init__(
        self, process: DrafterProcess, placement: Placement, coordinator: CoordinatorSupervisor
    ) -> None:
        super().__init__(process.role)
        self.process = process
        self.scorer_name = process.scorer_role
        self.drafter: RoleActor[str] | None = None
        self.scorer: RoleActor[str] | None = None
        self._placement = placement
        self._coordinator = coordinator
        self._deadlines = placement.config.deadlines
        self._needs_scorer = process.needs_path_scorer

    async def stop(self) -> None:
        """End the actors, the drafter first. Call halt() before."""
        for actor in (self.drafter, self.scorer):
            if actor is not None:
                await actor.stop(self._deadlines.draft_seconds)
        self.drafter = self.scorer = None
        self.close("stopped")

    async def bring_up(self) -> Service:
        """Start the missing actors and connect the coordinator to the drafter.

        Both processes start at the same time, while the coordinator starts; the scorer is ready
        first.
        """
        await self._placement.has_room(self.name, self._lack)
        drafter = None if self.drafter else self._placement.create_drafter(self.process)
        scorer = None
        try:
            if self._needs_scorer and self.scorer is None:
                scorer = self._placement.create_path_scorer(self.process)
            coordinator = await self._coordinator.serving()
            target = coordinator.actor.ready
            if scorer is not None:
                self.scorer = await self._start_scorer(scorer, target)
                if self.drafter is not None:
                    await self._use_scorer(self.drafter, self.scorer.ready)
            if drafter is not None:
                address = self.scorer.ready if self.scorer is not None else ""
                self.drafter = await self._start_drafter(drafter, target, address)
        except BaseException:
            for handle, actor in ((drafter, self.drafter), (scorer, self.scorer)):
                if handle is not None and actor is None:
                    kill(handle)
            raise
        await self._connect(coordinator)
        return coordinator

    async def watch(self, thing: Service) -> str:
        """Wait until an actor is lost, and drop it, or until the coordinator is replaced."""
        assert self.drafter is not None
        scorer = asyncio.create_task(self._scorer_trouble())
        drafter = asyncio.create_task(self._drafter_trouble(self.drafter, scorer))
        change = asyncio.create_task(self._coordinator.replaced(thing))
        tasks = {drafter, scorer, change}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if scorer.done():
                self._drop_scorer()
                return f"{self.scorer_name}: {scorer.result()}"
            if drafter.done():
                self._drop_drafter()
                return drafter.result()
            return "the coordinator was replaced"
        finally:
            for task in tasks:
                task.cancel()

    async def drop(self, thing: Service | None, reason: str) -> None:
        """Disconnect the drafter from the coordinator, and end the actors that are not healthy."""
        await self._report(reason)
        if self.scorer is not None and await self._trouble(self.scorer):
            self._drop_scorer()
        if self.drafter is not None and (trouble := await self._trouble(self.drafter)):
            lacks_scorer = self._needs_scorer and self.scorer is None
            is_excused = trouble == FAILING and (
                lacks_scorer or await self._can_draft(self.drafter)
            )
            if not is_excused:
                self._drop_drafter()

    def _lack(self, reason: str) -> None:
        """Let others go on without this drafter, which has no room."""
        self.problem = f"no room: {reason}"
        logger.warning("%s: %s", self.name, self.problem)
        in_background(self._report_lack(self.problem), f"the report on {self.name}")

    async def _report_lack(self, problem: str) -> None:
        await self._coordinator.current()
        if self.problem == problem:
            await self._report(problem)
        self._has_tried.set()

    async def _connect(self, coordinator: Service) -> None:
        """Have the coordinator connect to the drafter, which drafts once as a test."""
        assert self.drafter is not None
        address, seconds = self.drafter.ready, 3 * self._deadlines.draft_seconds
        try:
            await coordinator.actor.call("connect_drafter", self.name, address, seconds=seconds)
        except ActorLostError:
            raise  # the coordinator is lost, not the drafter
        except DiffuspecError:
            self._drop_drafter()
            raise

    async def _start_scorer(self, handle: Handle, target: Ready) -> RoleActor[str]:
        def arguments(place: Place) -> Sequence[object]:
            return target.info, self._placement.host(place)

        return await start_actor(self.scorer_name, handle, arguments, self._deadlines.start_seconds)

    async def _start_drafter(
        self, handle: Handle, target: Ready, scorer_address: str
    ) -> RoleActor[str]:
        def arguments(place: Place) -> Sequence[object]:
            return target.info, target.vocabulary, scorer_address, self._placement.host(place)

        return await start_actor(self.name, handle, arguments, self._deadlines.start_seconds)

    async def _use_scorer(self, drafter: RoleActor[str], address: str) -> None:
        try:
            await drafter.call("use_scorer", address, seconds=self._deadlines.search_seconds)
        except DiffuspecError:
            self._drop_drafter()
            raise

    async def _scorer_trouble(self) -> str:
        """Wait until the path scorer has to be replaced; return the reason."""
        if self.scorer is None:
            await asyncio.Event().wait()  # without a scorer, nothing ever has to be replaced
        assert self.scorer is not None
        return await self.scorer.watch(self._deadlines.health_seconds)

    async def _drafter_trouble(self, drafter: RoleActor[str], scorer: asyncio.Task[str]) -> str:
        """Wait until the drafter has to be replaced; return the reason.

        Its steps also fail while there is no path scorer, so a test draft decides.
        """
        interval = self._deadlines.health_seconds
        while True:
            trouble = await drafter.watch(interval)
            if trouble == FAILING:
                await asyncio.wait({scorer}, timeout=4 * interval)
                if not scorer.done() and await self._can_draft(drafter):
                    continue
            return trouble

    async def _can_draft(self, drafter: RoleActor[str]) -> bool:
        """Request a draft now, since the cause of earlier failures may be gone."""
        try:
            await drafter.call("try_draft", seconds=self._deadlines.draft_seconds)
        except DiffuspecError as error:
            log_problem(f"{self.name} cannot draft", error)
            return False
        return True

    async def _trouble(self, actor: RoleActor[str]) -> str:
        try:
            return await actor.trouble(self._deadlines.health_seconds)
        except Exception as error:
            return f"it does not answer: {error!r}"

    async def _report(self, reason: str) -> None:
        """Have the coordinator disconnect the drafter and report the reason in its status."""
        coordinator = self._coordinator.actor
        if coordinator is None:
            return
        try:
            seconds = self._deadlines.draft_seconds
            await coordinator.call("disconnect_drafter", self.name, reason, seconds=seconds)
        except Exception as error:
            log_problem(f"the coordinator was not told that {self.name} is lost", error)

    def _drop_drafter(self) -> None:
        if self.drafter is not None:
            self.drafter.kill()
        self.drafter = None

    def _drop_scorer(self) -> None:
        if self.scorer is not None:
            self.scorer.kill()
        self.scorer = None
