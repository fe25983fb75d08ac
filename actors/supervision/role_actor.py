"""One actor of a role, as seen by its supervisor: started, checked and ended."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from actors.placement import CONTROL, Handle, Place, locate
from actors.supervision.background import first_of, log_problem
from actors.supervision.silence import Silence
from diffuspec.core.errors import ConfigError, DiffuspecError, ModelLoadError, WorkerError

Ready = TypeVar("Ready")

FAILING = "its steps fail or hang"

_NODE = re.compile(r"\(pid=\d+, ip=([^,)]+)")  # in the text of a RayTaskError
_MAX_CHARACTERS = 500  # longest reason, in characters
_RENEWAL_SECONDS = 0.5  # pause before the next call over a connection that broke
_STOP_SECONDS = 5.0  # time to end, beyond the drain time


class ActorLostError(WorkerError):
    """An actor has died or does not answer."""


@dataclass(frozen=True, slots=True, eq=False)
class RoleActor(Generic[Ready]):
    """A running actor."""

    name: str
    handle: Handle
    place: Place
    ready: Ready  # the result of the actor's start()
    address: str  # where it listens

    async def watch(self, interval_seconds: float) -> str:
        """Wait until the actor is dead, hangs or is unhealthy; return the reason."""
        return await first_of(self._end(), self._sickness(interval_seconds))

    async def _end(self) -> str:
        """Wait until the actor's process has ended; return the way it ended."""
        return await ended(self.handle)

    async def _sickness(self, interval_seconds: float) -> str:
        """Return the actor's fault, from one health check or a long silence."""
        silence = Silence(self.address, interval_seconds)
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                if trouble := await self.trouble(interval_seconds):
                    return trouble
                silence.end()
            except TimeoutError:
                if await silence.is_final():
                    return str(silence)

    async def trouble(self, seconds: float) -> str:
        """Check the actor's health once; return its fault, or "". Raises TimeoutError."""
        check = self.handle.is_healthy.options(concurrency_group=CONTROL)
        try:
            async with asyncio.timeout(seconds):
                return "" if await check.remote() else FAILING
        except ActorUnavailableError as error:
            raise TimeoutError("its connection broke") from error
        except RayError as error:
            return str(explain(error))

    async def call(self, method: str, *arguments: object, seconds: float) -> Any:
        """Call one of the actor's methods. Raises the method's errors, and ActorLostError."""
        try:
            async with asyncio.timeout(seconds):
                return await getattr(self.handle, method).remote(*arguments)
        except TimeoutError as error:
            raise ActorLostError(f"{self.name}: no {method} within {seconds:g} seconds") from error
        except RayError as error:
            raise explain(error) from error

    async def stop(self, drain_seconds: float) -> None:
        """Let the actor's running work finish, then end it. Only a cancellation raises."""
        try:
            await self.call("stop", seconds=drain_seconds + _STOP_SECONDS)
        except Exception as error:  # the actor is most likely dead
            log_problem(f"{self.name} was not stopped", error)
        finally:
            self.kill()

    def kill(self) -> None:
        kill(self.handle)


async def start_actor(
    name: str, handle: Handle, arguments: Callable[[Place], Sequence[object]], seconds: float
) -> RoleActor[Any]:
    """Wait until an actor's start() has returned; end the actor if that fails or takes too long.

    arguments: returns the arguments of start(), given the actor's place. Raises the errors of
    start(), and ActorLostError.
    """
    late = ActorLostError(f"{name} did not start within {seconds:g} seconds")
    async with starting([handle], seconds, late):
        place = await locate(handle)
        ready = await handle.start.remote(*arguments(place))
    return RoleActor(name, handle, place, ready, getattr(ready, "address", ready))


@contextlib.asynccontextmanager
async def starting(
    handles: Sequence[Handle], seconds: float, late: Exception
) -> AsyncIterator[None]:
    """End the actors, also those added in the block, if it fails; raise `late` if it is late."""
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


async def ended(handle: Handle) -> str:
    """Wait until an actor's run() has ended; return the way it ended."""
    while True:
        try:
            await handle.run.remote()
        except ActorUnavailableError:  # a broken connection: Ray renews it, or the actor is lost
            await asyncio.sleep(_RENEWAL_SECONDS)
        except RayError as error:
            return str(explain(error))
        else:
            return "it has stopped"


def kill(handle: Handle) -> None:
    """Kill an actor, dead or alive. Never raises."""
    try:
        ray.kill(handle)
    except Exception as error:  # this process may have lost its connection to the cluster
        log_problem("an actor was not ended", error)


def explain(error: RayError) -> DiffuspecError:
    """Return the DiffuspecError behind one of Ray's errors."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, DiffuspecError):
            where = _NODE.search(str(error))
            if where is not None and isinstance(cause, ConfigError | ModelLoadError):
                cause.args = (f"{cause} (on the node {where[1]})",)  # files differ among nodes
            return cause
        return WorkerError(f"{cause!r:.{_MAX_CHARACTERS}}")
    if isinstance(error, RayActorError):
        text = " ".join(str(error).split())
        return ActorLostError(text[:_MAX_CHARACTERS])
    return WorkerError(f"{error!r:.{_MAX_CHARACTERS}}")
