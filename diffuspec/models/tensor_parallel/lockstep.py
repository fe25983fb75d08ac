"""Several ranks that verify the same requests in the same order.

Rank 0 broadcasts each batch, and the tokens that grammars of structured output admit. Every rank
takes the whole step on bitwise identical logits, and so reaches the same verdicts and the same
cache. Verdicts are returned once all ranks have agreed on their digest. While idle, rank 0
broadcasts empty steps to detect lost ranks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from diffuspec.core.errors import InvalidRequestError, VerifierError, VerifierUnavailableError
from diffuspec.core.interfaces import Observer, TargetInfo
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.models.target import CausalTarget
from diffuspec.models.tensor_parallel.rank_group import RankGroup
from diffuspec.models.tensor_parallel.step_message import Step, decode_step, encode_step
from diffuspec.models.worker import Worker
from diffuspec.text.answer_matchers import Admitted

logger = logging.getLogger(__name__)

_FAILED = -1  # represents the digest of a failed step


class LockstepTarget:
    """A Verifier over all ranks, in the process of rank 0.

    Once a rank is lost, every call raises VerifierUnavailableError: a new group is needed.
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
        """Verify a batch on all ranks. Raises InvalidRequestError before anything is broadcast."""
        self._target.check(requests)
        if not requests:
            return []
        return await self._run(list(requests), await self._target.admit(requests))

    async def release(self, request_id: str) -> None:
        """Free a request's slot on all ranks at the start of the next step."""
        self._released.append(request_id)

    def add_observer(self, observer: Observer) -> None:
        """Add an observer on this rank, which computes the same as the others."""
        self._target.add_observer(observer)

    def remove_observer(self, observer: Observer) -> None:
        self._target.remove_observer(observer)

    @property
    def model(self) -> Any:
        return self._target.model

    @property
    def num_ranks(self) -> int:
        return self._target.num_ranks

    async def watch(self) -> None:
        """Take an empty step after every idle_seconds without a step.

        Raises VerifierUnavailableError as soon as a rank is lost; never returns.
        """
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    await self._is_lost.wait()
            except TimeoutError:
                if time.monotonic() - self._stepped_at >= self._idle_seconds:
                    await self._run([], [])
            else:
                raise VerifierUnavailableError(self._failure)

    async def close(self) -> None:
        """End the other ranks' loops, and stop the worker thread."""
        if not self._failure:
            await self._worker.run(self._broadcast, [], [], is_last=True)
        self._worker.close()

    async def _run(
        self, requests: Sequence[VerifyRequest], admitted: Sequence[Admitted | None]
    ) -> list[Verdict]:
        if self._failure:
            raise VerifierUnavailableError(self._failure)
        try:
            return await self._worker.run(self._step, requests, admitted)
        except VerifierUnavailableError as error:
            self._failure = str(error)
            self._is_lost.set()
            raise

    def _step(
        self, requests: Sequence[VerifyRequest], admitted: Sequence[Admitted | None]
    ) -> list[Verdict]:
        try:
            return _take(self._broadcast(requests, admitted), self._target, self._group)
        finally:
            self._stepped_at = time.monotonic()

    def _broadcast(
        self,
        requests: Sequence[VerifyRequest],
        admitted: Sequence[Admitted | None],
        is_last: bool = False,
    ) -> Step:
        released = [self._released.popleft() for _ in range(len(self._released))]
        step = Step(next(self._numbers), released, requests, admitted, is_last)
        self._group.broadcast(encode_step(step))
        return step


def follow(target: CausalTarget, group: RankGroup) -> None:
    """Take rank 0's steps on another rank, until its last one.

    Raises VerifierUnavailableError if another rank is lost, late or out of step.
    """
    for number in itertools.count(1):
        step = decode_step(group.broadcast())
        if step.number != number:
            raise VerifierUnavailableError(
                f"rank {group.rank} received step {step.number}, expected step {number}"
            )
        if step.is_last:
            return
        try:
            _take(step, target, group)
        except VerifierUnavailableError:
            raise
        except (VerifierError, InvalidRequestError):
            continue  # all ranks failed alike; rank 0 raises the error to its caller


def _take(step: Step, target: CausalTarget, group: RankGroup) -> list[Verdict]:
    """Take a step, and agree with the other ranks on its verdicts.

    Raises the error with which the step failed on all ranks.
    """
    for request_id in step.released:
        target.release_here(request_id)
    verdicts: list[Verdict] = []
    failure: VerifierError | InvalidRequestError | None = None
    try:
        if step.requests:
            verdicts = target.verify_here(step.requests, step.admitted)
    except (VerifierError, InvalidRequestError) as error:
        logger.warning("rank %d failed in step %d: %s", group.rank, step.number, error)
        failure = error
    digest = _digest(verdicts) if failure is None else _FAILED
    digests = group.gather(digest)
    if len(set(digests)) > 1:
        reason = f" (here: {failure})" if failure else ""
        raise VerifierUnavailableError(
            f"the ranks reached different verdicts in step {step.number}: {digests}{reason}"
        )
    if failure is not None:
        raise failure
    return verdicts


def _digest(verdicts: Sequence[Verdict]) -> int:
    tokens = [(verdict.token_ids, verdict.accepted_nodes) for verdict in verdicts]
    return zlib.crc32(repr(tokens).encode())
