"""The profile: a few calls of each role when an engine starts, so that costs are known at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TypeVar

import numpy as np

from diffuspec.adl.cost_model import CostModel, DraftCosts, Interference
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import DiffuspecError
from diffuspec.core.interfaces import Drafter, TargetInfo, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import DraftRequest, TokenIds, VerifyRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NUM_PROMPT_TOKENS = 32  # short prompts: costs are those of decoding
_MOST_REQUESTS = 4
# (requests, rows of each)
_SIZES = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 32), (4, 1), (4, 8), (4, 32))
_LENGTHS = ((1, 4), (1, 16), (4, 4), (4, 16), (4, 64))  # (requests, draft tokens of each)
_READING_SIZES = (64, 256, 1024)  # tokens of prompts
_ROUNDS_TOGETHER = 3  # measurements of both roles at once, the least of which counts
_REPEATS = 2  # the first may still allocate memory
_RELEASE_SECONDS = 1.0  # time for a role to forget the profile's requests


async def profile_drafter(
    drafter: Drafter, info: TargetInfo, costs: DraftCosts, max_seconds: float
) -> None:
    """Measure a drafter without a concurrent verifier, including its time for reading prompts.

    Takes at most about `max_seconds`. Raises the drafter's errors.
    """
    profile = Profile(info, max_seconds, max_wait_seconds=max(10 * max_seconds, 10.0))
    try:
        await profile.measure_drafter(drafter, costs)
    finally:
        await profile.release([drafter])


class Profile:
    """Calls measured while no request is running, for at most about `max_seconds`."""

    def __init__(self, info: TargetInfo, max_seconds: float, max_wait_seconds: float) -> None:
        """max_wait_seconds: longest wait for a call."""
        self._info = info
        self._max_wait_seconds = max_wait_seconds
        self._ends_at = time.monotonic() + max_seconds
        size = min(_NUM_PROMPT_TOKENS, max(info.max_model_len // 4, 1))
        self._prompt = self._prompt_of(size)
        self._names = [f"profile-{one}" for one in range(min(_MOST_REQUESTS, info.max_sequences))]

    async def _timed(self, call: Awaitable[T]) -> tuple[T, float]:
        """Return a role's answer and its seconds. Raises DiffuspecError if it takes too long."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                return await call, time.monotonic() - started
        except TimeoutError:
            raise DiffuspecError(f"no answer within {self._max_wait_seconds:g} s") from None

    async def release(self, roles: Sequence[Verifier | Drafter]) -> None:
        """Let roles forget the profile's requests, each within _RELEASE_SECONDS."""
        await asyncio.gather(*[self._release(one, name) for one in roles for name in self._names])

    async def _release(self, role: Verifier | Drafter, name: str) -> None:
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await role.release(name)
        except Exception as error:
            logger.warning("the profile's %s is not released: %r", name, error)

    def _has_time_for(self, seconds: float) -> bool:
        return time.monotonic() + _REPEATS * seconds < self._ends_at

    async def run(
        self, verifier: Verifier, drafters: Mapping[str, Drafter], costs: CostModel
    ) -> None:
        """Measure the verifier, then the drafters by name, unless their costs are known.

        A role that fails or hangs is skipped.
        """
        drafters = {k: one for k, one in drafters.items() if not costs.drafters[k].is_known}
        if not costs.verification.curve.is_known:
            await self._try("the verifier", self._measure_verifier(verifier, costs))
        for name, drafter in drafters.items():
            measuring = self.measure_drafter(drafter, costs.drafters[name], verifier)
            await self._try(f"drafter {name}".strip(), measuring)
        await self.release([verifier, *drafters.values()])

    async def _try(self, what: str, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:
            message = "%s is not profiled, its costs are learnt while decoding: %s"
            logger.warning(message, what, error)

    async def _measure_verifier(self, verifier: Verifier, costs: CostModel) -> None:
        if not self._has_time_for(0.0):
            return
        await self._verify(verifier, len(self._names), 1)  # reads the prompts
        most = min(self._info.max_tree_nodes + 1, self._room)
        for number, num_rows in _SIZES:
            seconds = costs.verify_seconds(number * num_rows, number)
            fits = number <= len(self._names) and num_rows <= most
            if fits and self._has_time_for(seconds):
                seconds = await self._verify(verifier, number, num_rows)
                costs.observe_verification(number * num_rows, number, seconds, {})

    async def measure_drafter(
        self, drafter: Drafter, costs: DraftCosts, verifier: Verifier | None = None
    ) -> None:
        """Measure drafts of several lengths, beside `verifier` too, and the reading of prompts."""
        if not self._has_time_for(0.0):
            return
        # reads the prompts; some drafters draft only from what they have seen of other requests
        if await self._draft(drafter, len(self._names), 1) is not None:
            for number, length in _LENGTHS:
                fits = number <= len(self._names) and length <= self._room
                if fits and self._has_time_for(costs.seconds(number * length, number)):
                    seconds = await self._draft(drafter, number, length)
                    if seconds is not None:
                        costs.observe(number * length, number, 0, seconds)
        seconds = (1 + _ROUNDS_TOGETHER) * costs.seconds(16, 1)
        is_possible = costs.is_known and self._room >= 16 and self._has_time_for(seconds)
        if verifier is not None and is_possible:
            await self._measure_interference(verifier, drafter, costs.interference)
        await self._measure_reading(drafter, costs)

    async def _measure_reading(self, drafter: Drafter, costs: DraftCosts) -> None:
        """Measure how much longer a call takes if the drafter has to read a prompt."""
        for size in _READING_SIZES:
            unread = min(size, self._info.max_model_len // 2)
            if not (costs.is_known and self._has_time_for(costs.seconds(1, 1, unread))):
                return
            request = self._request(f"profile-{size}", self._prompt_of(unread), 1)
            _, seconds = await self._timed(drafter.draft([request]))
            costs.observe(1, 1, unread, seconds)
            await self._release(drafter, f"profile-{size}")

    def _prompt_of(self, size: int) -> TokenIds:
        """Return a prompt that no request will have, since its rows stay in the target's cache."""
        return (7919 * np.arange(1, 1 + size)).astype(np.int32) % self._info.vocab_size

    @property
    def _room(self) -> int:
        return self._info.max_model_len - len(self._prompt)

    async def _draft(self, drafter: Drafter, number: int, length: int) -> float | None:
        """Return the minimum seconds of calls for `number` drafts; None if there was no draft."""
        requests = [self._request(name, self._prompt, length) for name in self._names[:number]]
        found = []
        for _ in range(_REPEATS):
            drafts, seconds = await self._timed(drafter.draft(requests))
            found.append(seconds)
            if not any(draft.tree.num_nodes for draft in drafts):
                return None
        return min(found)

    def _request(self, name: str, prompt: TokenIds, length: int) -> DraftRequest:
        usual = SpeculationParams()
        how = usual.tree_shape, usual.max_nodes, 0.5, SamplingParams()
        return DraftRequest(name, prompt, length, *how, num_prompt_tokens=len(prompt))

    async def _verify(self, verifier: Verifier, number: int, num_rows: int) -> float:
        """Return the minimum seconds of verifications of `number` requests, `num_rows` for each."""
        tree = chain([1] * (num_rows - 1))
        requests = [
            VerifyRequest(name, self._prompt, len(self._prompt), tree, SamplingParams())
            for name in self._names[:number]
        ]
        return min([(await self._timed(verifier.verify(requests)))[1] for _ in range(_REPEATS)])

    async def _measure_interference(
        self, verifier: Verifier, drafter: Drafter, interference: Interference
    ) -> None:
        """Measure how much a draft call and a concurrent verification slow each other down.

        It stays as assumed if they take no time, or there was no draft.
        """
        verifying = await self._verify(verifier, 1, 4)
        drafting = await self._draft(drafter, 1, 16)
        if not verifying or not drafting:
            return
        rounds = [
            await self._timed(
                asyncio.gather(self._verify(verifier, 1, 4), self._draft(drafter, 1, 16))
            )
            for _ in range(_ROUNDS_TOGETHER)
        ]
        both = min([seconds for _, seconds in rounds]) / _REPEATS
        slower = (both - max(verifying, drafting)) / min(verifying, drafting)
        interference.set(min(max(slower, 0.0), 1.0))
