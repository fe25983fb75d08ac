"""The ranks of one verifier, which start, run and end together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ray.exceptions import ActorUnavailableError, RayError

from actors.placement import CONTROL, Handle, Place, locate
from actors.roles.verifier import RankStatus
from actors.settings import DeadlineSettings
from actors.supervision.role_actor import ended, explain, kill, starting
from actors.supervision.silence import Silence
from diffuspec.core.errors import DiffuspecError, VerifierUnavailableError

_STOP_SECONDS = 10.0  # time for ranks to finish their steps and end on their own
_ECHO_SECONDS = 0.1  # pause after the first loss, in which the other ranks can report their reasons


@dataclass(frozen=True, slots=True)
class RankSet:
    """The running rank actors. When one is lost, all are replaced."""

    handles: Sequence[Handle]  # actors, by rank
    address: str  # address of rank 0's service
    deadlines: DeadlineSettings

    @classmethod
    async def start(
        cls,
        create_rank: Callable[[int], Handle],
        num_ranks: int,
        host: Callable[[Place], str],
        deadlines: DeadlineSettings,
    ) -> RankSet:
        """Create and start all actors; end all of them if one fails.

        Raises the error of a rank, ActorLostError, and VerifierUnavailableError if they are too
        slow.
        """
        handles: list[Handle] = []
        seconds = deadlines.start_seconds
        late = f"{num_ranks} ranks did not start within {seconds:g} seconds"
        async with starting(handles, seconds, VerifierUnavailableError(late)):
            for rank in range(num_ranks):
                handles.append(create_rank(rank))
            where = host(place := await locate(handles[0]))
            meeting_point = await handles[0].meet.remote(place.ip) if num_ranks > 1 else ""
            starts = [handle.start.remote(meeting_point, where) for handle in handles]
            address, *_ = await asyncio.gather(*starts)
        return cls(handles, address, deadlines)

    async def trouble(self) -> str:
        """Wait until the ranks have to be replaced; return the reasons."""
        ranks = range(len(self.handles))
        watches = [asyncio.create_task(self._end(rank)) for rank in ranks]
        watches += [asyncio.create_task(self._sickness(rank)) for rank in ranks]
        try:
            await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            done, _ = await asyncio.wait(watches, timeout=_ECHO_SECONDS)
            return "; ".join(watch.result() for watch in watches if watch in done)
        finally:
            for watch in watches:
                watch.cancel()

    async def examine(self) -> str:
        """Check every rank until it answers; return the first fault, "" if there is none."""
        checks = [self._check(rank) for rank in range(len(self.handles))]
        return next(filter(None, await asyncio.gather(*checks)), "")

    async def stop(self) -> None:
        """Let the ranks finish their steps, then end them."""
        stops = [asyncio.create_task(_stop(handle)) for handle in self.handles]
        await asyncio.wait(stops, timeout=_STOP_SECONDS)
        for stop in stops:
            stop.cancel()
        self.kill()

    def kill(self) -> None:
        for handle in self.handles:
            kill(handle)

    async def _end(self, rank: int) -> str:
        return f"rank {rank}: {await ended(self.handles[rank])}"

    async def _sickness(self, rank: int) -> str:
        """Wait until a rank has a fault; return it."""
        while not (wrong := await self._check(rank)):
            await asyncio.sleep(self.deadlines.health_seconds)
        return wrong

    async def _check(self, rank: int) -> str:
        """Check a rank until it answers; return its fault, also if it is silent for too long."""
        silence = Silence(self.address, self.deadlines.health_seconds)
        while True:
            try:
                return await self._fault(rank)
            except TimeoutError:
                if await silence.is_final():
                    return f"rank {rank}: {silence}"

    async def _fault(self, rank: int) -> str:
        """Check a rank once; return its fault. Raises TimeoutError."""
        seconds, limit = self.deadlines.health_seconds, self.deadlines.verify_seconds
        call = self.handles[rank].status.options(concurrency_group=CONTROL)
        try:
            async with asyncio.timeout(seconds):
                status: RankStatus = await call.remote()
        except ActorUnavailableError as error:
            await asyncio.sleep(seconds)
            raise TimeoutError("its connection broke") from error
        except RayError as error:
            return f"rank {rank}: {explain(error)}"
        if status.step_seconds >= limit:
            return f"a step has taken {status.step_seconds:.1f} of {limit:g} seconds"
        return ""


async def _stop(handle: Handle) -> None:
    with contextlib.suppress(RayError, DiffuspecError):
        await handle.stop.remote()
