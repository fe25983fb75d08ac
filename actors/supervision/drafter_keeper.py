"""Keeps one drafter and its path scorer alive, and the coordinator informed of them.

A scorer that is lost is replaced without loading the drafter again. What cannot be started is
tried again after a pause, for ever: it costs speed, never the service.
"""

from __future__ import annotations

import asyncio
import logging

from actors.placement import Handle, Place, Placement
from actors.roles.coordinator import Ready, drafter_name
from actors.supervision.coordinator_keeper import CoordinatorKeeper
from actors.supervision.keeping import log_problem
from actors.supervision.role_actor import FAILING, ActorLostError, RoleActor, kill, start_actor
from diffuspec.core.errors import DiffuspecError

logger = logging.getLogger(__name__)

_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 60.0  # between attempts to start something again


class DrafterKeeper:
    """One bundle with a drafter and a path scorer."""

    def __init__(self, index: int, placement: Placement, coordinator: CoordinatorKeeper) -> None:
        self.name = drafter_name(index)
        self.scorer_name = f"path scorer {index}"
        self.reason = "starting"  # why it does not draft; empty: it does
        self.num_starts = 0
        self.drafter: RoleActor[str] | None = None
        self.scorer: RoleActor[str] | None = None
        self.settled = asyncio.Event()  # it has been tried: it drafts, or the reason is known
        self._index = index
        self._placement = placement
        self._coordinator = coordinator
        self._deadlines = placement.config.deadlines

    async def run(self) -> None:
        """Bring up what is missing, wait until something is lost, and again."""
        pause = _MIN_PAUSE_SECONDS
        while True:
            try:
                coordinator = await self._bring_up()
                await self._introduce(coordinator)
                self.reason, pause = "", _MIN_PAUSE_SECONDS
                self.settled.set()
                await self._wait_for_trouble(coordinator)
            except Exception as error:  # of Ray too: it is tried for ever
                if not isinstance(error, DiffuspecError):
                    log_problem(self.name, error)
                await self._report(str(error))
                await self._drop_the_dead()
                self.settled.set()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    async def stop(self) -> None:
        """End both, the drafter first."""
        for actor in (self.drafter, self.scorer):
            if actor is not None:
                await actor.stop(self._deadlines.draft_seconds)
        self.drafter = self.scorer = None
        self.reason = "stopped"

    async def _bring_up(self) -> RoleActor[Ready]:
        """Start what is missing; return the coordinator for it. Raises what prevents that.

        The processes come up at once, while the coordinator starts, and then the scorer.
        """
        drafter = None if self.drafter else self._placement.create_drafter(self._index)
        scorer = None
        try:
            scorer = None if self.scorer else self._placement.create_path_scorer(self._index)
            coordinator = await self._coordinator.current()
            if scorer is not None:
                self.scorer = await self._start_scorer(scorer, coordinator.ready)
                if self.drafter is not None:
                    await self._ask_drafter("use_scorer", self.scorer.ready)
            assert self.scorer is not None
            if drafter is not None:
                address = self.scorer.ready
                self.drafter = await self._start_drafter(drafter, coordinator.ready, address)
        except BaseException:
            for handle, actor in ((drafter, self.drafter), (scorer, self.scorer)):
                if handle is not None and actor is None:
                    kill(handle)
            raise
        return coordinator

    async def _introduce(self, coordinator: RoleActor[Ready]) -> None:
        """Have the drafter let in. Raises what prevents that."""
        assert self.drafter is not None
        seconds = 3 * self._deadlines.draft_seconds  # it connects and drafts once
        try:
            await coordinator.call(
                "connect_drafter", self.name, self.drafter.ready, seconds=seconds
            )
        except ActorLostError:
            raise  # the coordinator is lost, not the drafter
        except DiffuspecError:
            self._drop_drafter()
            raise

    async def _start_scorer(self, handle: Handle, target: Ready) -> RoleActor[str]:
        async def start(place: Place) -> str:
            address: str = await handle.start.remote(target.info, self._placement.host(place))
            return address

        return await start_actor(self.scorer_name, handle, start, self._deadlines.start_seconds)

    async def _start_drafter(
        self, handle: Handle, target: Ready, scorer_address: str
    ) -> RoleActor[str]:
        async def start(place: Place) -> str:
            host = self._placement.host(place)
            address: str = await handle.start.remote(
                target.info, target.vocabulary, scorer_address, host
            )
            return address

        actor = await start_actor(self.name, handle, start, self._deadlines.start_seconds)
        self.num_starts += 1
        return actor

    async def _ask_drafter(self, method: str, *arguments: object) -> None:
        assert self.drafter is not None
        try:
            await self.drafter.call(method, *arguments, seconds=self._deadlines.search_seconds)
        except DiffuspecError:
            self._drop_drafter()
            raise

    async def _wait_for_trouble(self, coordinator: RoleActor[Ready]) -> None:
        """Return when one of the two was lost and dropped, or the coordinator is another one."""
        assert self.drafter is not None and self.scorer is not None
        scorer = asyncio.create_task(self.scorer.watch(self._deadlines.health_seconds))
        drafter = asyncio.create_task(self._drafter_trouble(self.drafter, scorer))
        change = asyncio.create_task(self._coordinator.replaced(coordinator))
        tasks = {drafter, scorer, change}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if scorer.done():
                await self._report(f"{self.scorer_name}: {scorer.result()}")
                self._drop_scorer()
            elif drafter.done():
                await self._report(drafter.result())
                self._drop_drafter()
        finally:
            for task in tasks:
                task.cancel()

    async def _drafter_trouble(self, drafter: RoleActor[str], scorer: asyncio.Task[str]) -> str:
        """Wait until the drafter has to go, unless it is its scorer's trouble; return why."""
        interval = self._deadlines.health_seconds
        while True:
            trouble = await drafter.watch(interval)
            if trouble == FAILING:
                # Without its scorer no drafter can draft: it may not be the one at fault.
                await asyncio.wait({scorer}, timeout=4 * interval)
                if not scorer.done() and await self._can_draft(drafter):
                    continue
            return trouble

    async def _can_draft(self, drafter: RoleActor[str]) -> bool:
        """Whether it drafts now: its last steps may have failed for a reason that is over."""
        try:
            await drafter.call("prove", seconds=self._deadlines.draft_seconds)
        except DiffuspecError as error:
            log_problem(f"{self.name} cannot draft", error)
            return False
        return True

    async def _drop_the_dead(self) -> None:
        """What could not be brought up may lack another that was lost meanwhile."""
        if self.scorer is not None and await self._trouble(self.scorer):
            self._drop_scorer()
        if self.drafter is not None and (trouble := await self._trouble(self.drafter)):
            is_excused = trouble == FAILING and (
                self.scorer is None or await self._can_draft(self.drafter)
            )
            if not is_excused:
                self._drop_drafter()

    async def _trouble(self, actor: RoleActor[str]) -> str:
        try:
            return await actor.trouble(self._deadlines.health_seconds)
        except Exception as error:
            return f"it does not answer: {error!r}"

    async def _report(self, reason: str) -> None:
        """Tell the coordinator to do without this drafter, and why."""
        self.reason = reason
        logger.warning("%s: %s", self.name, reason)
        coordinator = self._coordinator.actor
        if coordinator is not None:
            try:
                seconds = self._deadlines.draft_seconds
                await coordinator.call("disconnect_drafter", self.name, reason, seconds=seconds)
            except Exception as error:
                log_problem(f"the coordinator was not told of {self.name}", error)

    def _drop_drafter(self) -> None:
        if self.drafter is not None:
            self.drafter.kill()
        self.drafter = None

    def _drop_scorer(self) -> None:
        if self.scorer is not None:
            self.scorer.kill()
        self.scorer = None
