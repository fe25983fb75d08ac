"""A verifier whose ranks are replaced when one is lost.

When a rank dies or does not answer, or a step takes too long, all ranks are killed and new ones
started in the background. Meanwhile calls fail with VerifierUnavailableError; afterwards the
coordinator sends whole prefixes, and every answer continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from actors.placement import Handle, Place
from actors.settings import DeadlineSettings
from actors.supervision.background import first_of
from actors.supervision.rank_set import RankSet
from actors.supervision.supervisor import Supervisor
from diffuspec.core.errors import VerifierError, VerifierLostError, VerifierUnavailableError
from diffuspec.core.interfaces import HostedDrafter, TargetInfo
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security

logger = logging.getLogger(__name__)

_MAX_LOST_STEPS = 2  # steps lost in a row while the ranks report that they are healthy


async def _always(tell: Callable[[str], None]) -> None:
    """Wait for nothing."""


class VerifierGroup(Supervisor[RankSet]):
    """Keeps the ranks of one verifier in service.

    `create_rank` creates a rank's actor, a `VerifierRank`; `host` returns the address at which rank
    0 listens; `has_room` waits until the cluster has room, and calls its argument with what is
    missing.
    """

    def __init__(
        self,
        create_rank: Callable[[int], Handle],
        num_ranks: int,
        deadlines: DeadlineSettings,
        host: Callable[[Place], str],
        has_room: Callable[[Callable[[str], None]], Awaitable[None]] = _always,
    ) -> None:
        super().__init__("the verifier")
        self._has_room = has_room
        self._create_rank = create_rank
        self._num_ranks = num_ranks
        self._deadlines = deadlines
        self._host = host
        self._complaint: asyncio.Queue[str]  # the first fault of the ranks

    @property
    def ranks(self) -> RankSet | None:
        """The ranks in service; None while there are none."""
        return self._thing

    async def ready(self, seconds: float) -> RankSet:
        """Wait for ranks in service.

        Raises VerifierUnavailableError if there are none in time, and VerifierError once the group
        is stopped.
        """
        try:
            async with asyncio.timeout(seconds):
                ranks = await self.current()
        except TimeoutError as error:
            reason = f"the verifier is being started again: {self.problem}"
            raise VerifierUnavailableError(reason) from error
        if ranks is None:
            raise VerifierError(f"there is no verifier any more: {self.problem}")
        return ranks

    async def suspect(self, ranks: RankSet, reason: str, is_certain: bool) -> bool:
        """Check the ranks after a lost or late step; replace them if one is unhealthy.

        is_certain: replace them without a check. Returns whether they are replaced.
        """
        trouble = await ranks.examine() or (reason if is_certain else "")
        if trouble and ranks is self.ranks and self._complaint.empty():
            self._complaint.put_nowait(trouble)
        return bool(trouble)

    async def stop(self) -> None:
        """Let the ranks finish their steps, then end them without starting others."""
        await self.halt()
        if self.ranks is not None:
            await self.ranks.stop()
        self.close("it was stopped")

    async def bring_up(self) -> RankSet:
        """Start the ranks. Raises a rank's error, or VerifierUnavailableError if too slow."""
        await self._has_room(self._lack)
        ranks = await RankSet.start(self._create_rank, self._num_ranks, self._host, self._deadlines)
        self._complaint = asyncio.Queue(1)
        return ranks

    def _lack(self, reason: str) -> None:
        self.problem = f"no room: {reason}"
        logger.warning("%s: %s", self.name, self.problem)

    async def watch(self, thing: RankSet) -> str:
        return await first_of(thing.trouble(), self._complaint.get())

    async def drop(self, thing: RankSet | None, reason: str) -> None:
        if thing is not None:
            thing.kill()


class SupervisedVerifier:
    """A `Verifier` over a group; an async context manager.

    A lost or late step raises VerifierUnavailableError, VerifierLostError if the ranks are replaced
    because of it; the same call may succeed later, on the same ranks or on new ones. A call waits
    for new ranks for at most `deadline_seconds`.
    """

    def __init__(
        self,
        group: VerifierGroup,
        security: Security,
        deadline_seconds: float,
        limits: RpcLimits = DEFAULT_LIMITS,
    ) -> None:
        self.group = group
        self._security = security
        self._deadline_seconds = deadline_seconds
        self._limits = limits
        self._info: TargetInfo | None = None
        self._ranks: RankSet | None = None  # the ranks that the client is connected to
        self._client: RemoteVerifier | None = None
        self._connecting = asyncio.Lock()
        self._num_lost_steps = 0  # lost steps in a row

    async def __aenter__(self) -> Self:
        await self.group.start()
        self.group.supervise()
        try:
            await self._connected()
        except BaseException:
            await self.group.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()
        await self.group.stop()

    @property
    def info(self) -> TargetInfo:
        assert self._info is not None, "used as a context manager"
        return self._info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """See `Verifier.verify`."""
        client, ranks = await self._connected()
        try:
            verdicts = await client.verify(requests)
        except VerifierUnavailableError as error:
            self._num_lost_steps += 1
            is_certain = self._num_lost_steps >= _MAX_LOST_STEPS
            is_lost = await self.group.suspect(ranks, str(error), is_certain)
            kind = VerifierLostError if is_lost else VerifierUnavailableError
            raise kind(str(error)) from error
        self._num_lost_steps = 0
        return verdicts

    async def release(self, request_id: str) -> None:
        if self._client is not None:
            await self._client.release(request_id)

    @property
    def problem(self) -> str:
        """Why there are no ranks in service; "" if there are."""
        return self.group.problem

    @property
    def num_bytes_sent(self) -> int:
        """Bytes sent to the current ranks."""
        return self._client.num_bytes_sent if self._client is not None else 0

    @property
    def num_bytes_received(self) -> int:
        return self._client.num_bytes_received if self._client is not None else 0

    @property
    def drafters(self) -> tuple[HostedDrafter, ...]:
        """The drafters in the process of rank 0; none while the ranks are being replaced."""
        client = self._client
        return client.drafters if client is not None and self._ranks is self.group.ranks else ()

    async def check_health(self, timeout: float) -> bool:
        """Return whether rank 0's service reports that steps succeed."""
        if self.group.problem:
            return False
        try:
            async with asyncio.timeout(timeout):
                client, _ = await self._connected()
        except (TimeoutError, VerifierError):
            return False
        return await client.check_health(timeout)

    async def _connected(self) -> tuple[RemoteVerifier, RankSet]:
        client, ranks = self._client, self.group.ranks
        if client is not None and ranks is not None and ranks is self._ranks:
            return client, ranks  # the usual case
        async with self._connecting:
            ranks = await self.group.ready(self._deadline_seconds)
            if self._client is None or self._ranks is not ranks:
                await self._disconnect()
                self._client, self._ranks = await self._connect(ranks.address), ranks
                self._num_lost_steps = 0
            return self._client, ranks

    async def _connect(self, address: str) -> RemoteVerifier:
        client = await RemoteVerifier.connect(
            address, self._security, deadline_seconds=self._deadline_seconds, limits=self._limits
        )
        if self._info not in (None, client.info):
            await client.close()
            raise VerifierError(f"the target is now {client.info}, it was {self._info}")
        self._info = client.info
        return client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
