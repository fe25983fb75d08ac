"""One actor of a role as its supervisor sees it: started, checked and ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from actors.placement import CONTROL, Handle, Place, locate
from actors.settings import MAX_MISSES
from actors.supervision.background import first_of, log_problem
from diffuspec.core.errors import DiffuspecError, WorkerError

Ready = TypeVar("Ready")

FAILING = "its steps fail or hang"

_MAX_CHARACTERS = 500  # longest reason
_STOP_SECONDS = 5.0  # time to end after the drain time


class ActorLostError(WorkerError):
    """An actor died, or does not answer."""


@dataclass(frozen=True, slots=True, eq=False)
class RoleActor(Generic[Ready]):
    """A running actor."""

    name: str
    handle: Handle
    place: Place
    ready: Ready  # result of its start()

    async def watch(self, interval_seconds: float) -> str:
        """Wait until the actor is dead, hangs or is not healthy; return the reason."""
        return await first_of(self._end(), self._sickness(interval_seconds))

    async def _end(self) -> str:
        """Wait until the actor's process has ended; return how."""
        try:
            await self.handle.run.remote()
        except RayError as error:
            return str(explain(error))
        return "it has stopped"

    async def _sickness(self, interval_seconds: float) -> str:
        """Return the actor's fault, once a health check reports one or MAX_MISSES checks fail."""
        num_misses = 0
        while num_misses < MAX_MISSES:
            await asyncio.sleep(interval_seconds)
            try:
                if trouble := await self.trouble(interval_seconds):
                    return trouble
                num_misses = 0
            except TimeoutError:
                num_misses += 1
        return f"it did not answer {num_misses} times in a row"

    async def trouble(self, seconds: float) -> str:
        """Check its health once; return its fault, "" if it has none. Raises TimeoutError."""
        check = self.handle.is_healthy.options(concurrency_group=CONTROL)
        try:
            async with asyncio.timeout(seconds):
                return "" if await check.remote() else FAILING
        except RayError as error:
            return str(explain(error))

    async def call(self, method: str, *arguments: object, seconds: float) -> Any:
        """Call one of its methods. Raises what the method raises, and ActorLostError."""
        try:
            async with asyncio.timeout(seconds):
                return await getattr(self.handle, method).remote(*arguments)
        except TimeoutError as error:
            raise ActorLostError(f"{self.name}: no {method} within {seconds:g} seconds") from error
        except RayError as error:
            raise explain(error) from error

    async def stop(self, drain_seconds: float) -> None:
        """Let its running work finish, then end it. Never raises."""
        try:
            await self.call("stop", seconds=drain_seconds + _STOP_SECONDS)
        except Exception as error:  # most likely it is dead
            log_problem(f"{self.name} was not stopped", error)
        self.kill()

    def kill(self) -> None:
        kill(self.handle)


async def start_actor(
    name: str, handle: Handle, arguments: Callable[[Place], Sequence[object]], seconds: float
) -> RoleActor[Any]:
    """Wait until an actor runs and its start() has returned; end it if that fails or is late.

    arguments: of start(), for the place of the actor. Raises what start() raised, and
    ActorLostError.
    """
    late = ActorLostError(f"{name} did not start within {seconds:g} seconds")
    async with starting([handle], seconds, late):
        place = await locate(handle)
        ready = await handle.start.remote(*arguments(place))
    return RoleActor(name, handle, place, ready)


@contextlib.asynccontextmanager
async def starting(
    handles: Sequence[Handle], seconds: float, late: Exception
) -> AsyncIterator[None]:
    """End the actors, also those added in the block, if it fails or is late; raise `late` then."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except BaseException as error:
        for handle in handles:
            kill(handle)
        if isinstance(error, TimeoutError):
            raise late from error
        if isinstance(error, RayError):
            raise explain(error) from error
        raise


def kill(handle: Handle) -> None:
    """End an actor at once, dead or alive. Never raises."""
    try:
        ray.kill(handle)
    except Exception as error:  # this process may have lost its cluster
        log_problem("an actor was not ended", error)


def explain(error: RayError) -> DiffuspecError:
    """Return the DiffuspecError behind an error of Ray's."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, DiffuspecError):
            return cause
        return WorkerError(f"{cause!r:.{_MAX_CHARACTERS}}")
    if isinstance(error, RayActorError):
        text = " ".join(str(error).split())
        return ActorLostError(text[:_MAX_CHARACTERS])
    return WorkerError(f"{error!r:.{_MAX_CHARACTERS}}")
