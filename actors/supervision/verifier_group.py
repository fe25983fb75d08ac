"""A verifier that outlives its ranks.

When a rank dies or does not answer, or a step takes too long, all ranks are killed and new ones are
started in the background. Meanwhile calls fail with VerifierUnavailableError; once the coordinator
sends whole prefixes again, every answer goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from actors.placement import Handle, Place
from actors.settings import DeadlineSettings
from actors.supervision.keeping import keep, log_problem
from actors.supervision.rank_set import RankSet
from diffuspec.core.errors import VerifierError, VerifierUnavailableError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security

logger = logging.getLogger(__name__)

_MAX_PAUSE_SECONDS = 30.0
_STABLE_SECONDS = 5.0  # a group that served for so long is made anew without a pause
_MAX_LOST_STEPS = 2  # in a row, for no reason that the ranks know of
_MAX_RECOVERIES = 100  # remembered


@dataclass(frozen=True, slots=True)
class Recovery:
    """A group that was lost and made anew."""

    reason: str
    seconds: float  # from when it was noticed until the new one served
    num_builds: int


class VerifierGroup:
    """Owns the ranks of one pipeline, one set of them after the other. Lives in one event loop.

    create_rank makes the actor of a rank, as `VerifierRank`; host says where rank 0 may listen.
    """

    def __init__(
        self,
        create_rank: Callable[[int], Handle],
        num_ranks: int,
        deadlines: DeadlineSettings,
        host: Callable[[Place], str],
    ) -> None:
        self.recoveries: deque[Recovery] = deque(maxlen=_MAX_RECOVERIES)
        self._create_rank = create_rank
        self._num_ranks = num_ranks
        self._deadlines = deadlines
        self._host = host
        self._ranks: RankSet | None = None
        self._problem = "it was not started"  # why there is no set of ranks
        self._is_settled = asyncio.Event()  # there are ranks, or there will be none any more
        self._complaint: asyncio.Queue[str]
        self._keeper: asyncio.Task[None] | None = None

    @property
    def ranks(self) -> RankSet | None:
        """The ranks that serve now."""
        return self._ranks

    @property
    def problem(self) -> str:
        """Why no step can be verified now; "" when one can."""
        return "" if self._ranks is not None else self._problem

    async def start(self) -> str:
        """Start the ranks; return rank 0's address.

        Raises what a rank raised, and VerifierUnavailableError when they are late.
        """
        ranks = await self._build()
        self._serve(ranks)
        self._keeper = keep(self._keep(ranks), "the verifier's keeper")
        return ranks.address

    async def ready(self, seconds: float) -> RankSet:
        """Return the ranks that serve.

        Raises VerifierUnavailableError when there are none after so many seconds, VerifierError
        when there will be none any more.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._is_settled.wait()
        except TimeoutError as error:
            reason = f"the verifier is being made anew: {self._problem}"
            raise VerifierUnavailableError(reason) from error
        if self._ranks is None:
            raise VerifierError(f"there is no verifier any more: {self._problem}")
        return self._ranks

    async def suspect(self, ranks: RankSet, reason: str, is_certain: bool) -> None:
        """Hear that a step of these ranks was lost or late; ask them how they are.

        They have to go if one of them is not well, or it is certain anyway.
        """
        wrong = await ranks.examine() or (reason if is_certain else "")
        if wrong and ranks is self._ranks:
            self._complain(wrong)

    async def stop(self) -> None:
        """Let the ranks finish what they are doing, then end them."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait([keeper])
        if self._ranks is not None:
            await self._ranks.stop()
        self._lose("it was stopped")
        self._is_settled.set()

    def _complain(self, reason: str) -> None:
        """Have the ranks that serve now replaced."""
        if self._complaint.empty():
            self._complaint.put_nowait(reason)

    def _serve(self, ranks: RankSet) -> None:
        self._ranks, self._problem = ranks, ""
        self._complaint = asyncio.Queue(1)  # nothing is said of these yet
        self._is_settled.set()

    def _lose(self, reason: str) -> None:
        self._ranks, self._problem = None, reason
        self._is_settled.clear()

    async def _build(self) -> RankSet:
        return await RankSet.start(self._create_rank, self._num_ranks, self._host, self._deadlines)

    async def _keep(self, ranks: RankSet) -> None:
        """Watch a set of ranks and replace it when it is lost, for ever."""
        num_losses = 0
        while True:
            served_since = time.monotonic()
            reason = await self._loss(ranks)
            ranks.kill()
            self._lose(reason)
            logger.warning("the verifier is lost and will be made anew: %s", reason)
            lost_at = time.monotonic()
            num_losses = 0 if lost_at - served_since >= _STABLE_SECONDS else num_losses + 1
            ranks, num_builds = await self._replace(num_losses)
            recovery = Recovery(reason, time.monotonic() - lost_at, num_builds)
            self.recoveries.append(recovery)
            self._serve(ranks)
            logger.warning("the verifier serves again after %.1f seconds", recovery.seconds)

    async def _loss(self, ranks: RankSet) -> str:
        """Wait until the ranks have to go; return why."""
        causes = [
            asyncio.create_task(ranks.trouble()),
            asyncio.create_task(self._complaint.get()),
        ]
        try:
            done, _ = await asyncio.wait(causes, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except Exception as error:
            log_problem("the ranks cannot be watched", error)
            return str(error)
        finally:
            for cause in causes:
                cause.cancel()

    async def _replace(self, num_losses: int) -> tuple[RankSet, int]:
        """Start new ranks, with pauses that grow between attempts; return how many it took."""
        num_builds = 1
        while True:
            await asyncio.sleep(_pause_seconds(num_losses + num_builds - 1))
            try:
                return await self._build(), num_builds
            except Exception as error:  # of Ray too
                log_problem("new ranks do not start", error)
                self._problem = str(error)
            num_builds += 1


class SupervisedVerifier:
    """A `Verifier` over a group, to be used as an async context manager.

    A step that is lost or late raises VerifierUnavailableError; the same call may succeed later,
    on the same ranks or on new ones. Calls wait for new ranks as long as a step may take.
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
        self._ranks: RankSet | None = None  # that the client speaks to
        self._client: RemoteVerifier | None = None
        self._connecting = asyncio.Lock()
        self._num_lost_steps = 0  # in a row

    async def __aenter__(self) -> Self:
        await self.group.start()
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
            await self.group.suspect(ranks, str(error), is_certain)
            raise
        self._num_lost_steps = 0
        return verdicts

    async def release(self, request_id: str) -> None:
        if self._client is not None:
            await self._client.release(request_id)

    @property
    def num_bytes_sent(self) -> int:
        """To the ranks that are there now."""
        return self._client.num_bytes_sent if self._client is not None else 0

    @property
    def num_bytes_received(self) -> int:
        return self._client.num_bytes_received if self._client is not None else 0

    async def check_health(self, timeout: float) -> bool:
        """Return whether steps succeed, as rank 0's service has it."""
        if self.group.problem or self._client is None:
            return False
        return await self._client.check_health(timeout)

    async def _connected(self) -> tuple[RemoteVerifier, RankSet]:
        client, ranks = self._client, self.group.ranks
        if client is not None and ranks is not None and ranks is self._ranks:
            return client, ranks  # as for nearly every step
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


def _pause_seconds(num_failures: int) -> float:
    return 0.0 if num_failures == 0 else float(min(2 ** (num_failures - 1), _MAX_PAUSE_SECONDS))
