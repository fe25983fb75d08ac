"""Several ranks that verify the same requests in the same order.

Rank 0 tells the others what it was asked. Every rank does the whole of it, on logits that are the
same to the last bit, and so comes to the same verdicts and the same cache; before a verdict goes
out, all ranks have agreed on it. When nothing was asked for a while there is an empty step, so that
a rank that is gone is missed.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import zlib
from collections import deque
from collections.abc import Sequence

from diffuspec.core.errors import VerifierError, VerifierUnavailableError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.models.ranks.rank_group import RankGroup
from diffuspec.models.ranks.step_message import Step, decode_step, encode_step
from diffuspec.models.target import CausalTarget
from diffuspec.models.worker import Worker

logger = logging.getLogger(__name__)

_FAILED = -1  # in place of the digest of verdicts


class LockstepTarget:
    """Rank 0's side: a Verifier that has the other ranks along.

    Once a rank is lost every call raises VerifierUnavailableError: the group has to be made anew.
    """

    def __init__(self, target: CausalTarget, group: RankGroup, idle_seconds: float) -> None:
        self._target = target
        self._group = group
        self._idle_seconds = idle_seconds
        self._worker = Worker("rank 0", is_inline=False)
        self._numbers = itertools.count(1)
        self._released: deque[str] = deque()
        self._stepped_at = time.monotonic()
        self._failure = ""
        self._is_lost = asyncio.Event()

    @property
    def info(self) -> TargetInfo:
        return self._target.info

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        """Verify a batch on all ranks. Raises InvalidRequestError before any of them is told."""
        self._target.check(requests)
        return await self._run(list(requests)) if requests else []

    async def release(self, request_id: str) -> None:
        """Forget a request, on all ranks, with the next step: nobody needs its slot before."""
        self._released.append(request_id)

    async def watch(self) -> None:
        """Take an empty step whenever there was none for a while.

        Raises VerifierUnavailableError as soon as a rank is lost.
        """
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    await self._is_lost.wait()
            except TimeoutError:
                if time.monotonic() - self._stepped_at >= self._idle_seconds:
                    await self._run([])
            else:
                raise VerifierUnavailableError(self._failure)

    async def close(self) -> None:
        """Tell the others that this is the end, and stop the worker thread."""
        if not self._failure:
            await self._worker.run(self._tell, [], is_last=True)
        self._worker.close()

    async def _run(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        if self._failure:
            raise VerifierUnavailableError(self._failure)
        try:
            return await self._worker.run(self._step, requests)
        except VerifierUnavailableError as error:
            self._failure = str(error)
            self._is_lost.set()
            raise

    def _step(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        try:
            return _take(self._tell(requests), self._target, self._group)
        finally:
            self._stepped_at = time.monotonic()

    def _tell(self, requests: Sequence[VerifyRequest], is_last: bool = False) -> Step:
        released = [self._released.popleft() for _ in range(len(self._released))]
        step = Step(next(self._numbers), released, requests, is_last)
        self._group.broadcast(encode_step(step))
        return step


def follow(target: CausalTarget, group: RankGroup) -> None:
    """Be one of the other ranks: do what rank 0 does until it says that this is the end.

    Raises VerifierUnavailableError when another rank is lost or late, or out of step.
    """
    for number in itertools.count(1):
        step = decode_step(group.broadcast())
        if step.number != number:
            raise VerifierUnavailableError(
                f"rank {group.rank} was told step {step.number} where {number} was to come"
            )
        if step.is_last:
            return
        try:
            _take(step, target, group)
        except VerifierUnavailableError:
            raise
        except VerifierError:
            continue  # all ranks failed alike; rank 0 tells whoever asked


def _take(step: Step, target: CausalTarget, group: RankGroup) -> list[Verdict]:
    """Take a step and agree on what came out. Raises the VerifierError that all ranks met."""
    for request_id in step.released:
        target.runner.cache.release(request_id)
    verdicts: list[Verdict] = []
    failure: VerifierError | None = None
    try:
        if step.requests:
            verdicts = target.verify_here(step.requests)
    except VerifierError as error:
        logger.warning("rank %d failed in step %d: %s", group.rank, step.number, error)
        failure = error
    digest = _digest(verdicts) if failure is None else _FAILED
    digests = group.gather(digest)
    if len(set(digests)) > 1:
        reason = f" (here: {failure})" if failure else ""
        raise VerifierUnavailableError(
            f"the ranks came to different verdicts in step {step.number}: {digests}{reason}"
        )
    if failure is not None:
        raise failure
    return verdicts


def _digest(verdicts: Sequence[Verdict]) -> int:
    tokens = [(verdict.token_ids, verdict.accepted_nodes) for verdict in verdicts]
    return zlib.crc32(repr(tokens).encode())
