"""Processes of roles that are killed now and then while the service answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from benchmarks.chaos import Kind, Service

ROLES = (Kind.VERIFIER, Kind.DRAFTER, Kind.PATH_SCORER, Kind.COORDINATOR, Kind.PIPELINE)
RECOVERY_SECONDS = 120.0  # within which all roles serve again
_PAUSE_SECONDS = (20.0, 60.0)  # between a recovery and the next kill
_AFTERMATH_SECONDS = 10.0  # after the recovery, while requests that have waited are answered
_POLL_SECONDS = 0.2


@dataclass(slots=True)
class Kill:
    """One kill. Times are time.monotonic()."""

    role: str
    began: float
    ended: float | None = None  # when all roles served again; None: not yet


@dataclass(slots=True)
class Kills:
    """All kills of a run so far."""

    done: list[Kill] = field(default_factory=list)

    def disturbed(self, began: float, ended: float) -> bool:
        """Return whether a request of these times may have suffered from a kill."""
        return any(
            kill.began <= ended and (kill.ended is None or began <= kill.ended + _AFTERMATH_SECONDS)
            for kill in self.done
        )

    async def kill_until(
        self,
        is_over: asyncio.Event,
        service: Service,
        rng: random.Random,
        on_kill: Callable[[Kill], None],
    ) -> None:
        """Kill a role after each pause until the run is over. Raises TimeoutError: no recovery."""
        roles = [role for role in ROLES if role in service.kinds]
        while not await _happens(is_over, rng.uniform(*_PAUSE_SECONDS)):
            role = rng.choice(roles)
            if not (victims := service.processes(role)):
                continue
            victim = rng.choice(sorted(victims))
            kill = Kill(role, time.monotonic())
            self.done.append(kill)
            psutil.Process(victim).kill()
            async with asyncio.timeout(RECOVERY_SECONDS):
                while not await service.is_whole_without(victim):
                    await asyncio.sleep(_POLL_SECONDS)
            kill.ended = time.monotonic()
            on_kill(kill)


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    """Return whether an event happens within a time."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
