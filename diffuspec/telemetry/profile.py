"""The profile: a few calls of each role, timed before requests run, so that costs are known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

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
_REPEATS = 2  # the first may still allocate memory
_RELEASE_SECONDS = 1.0  # time for a role to forget the profile's requests


class TimedCall(NamedTuple):
    """The size of a call, and the seconds that it took."""

    size: int  # rows of a verification, or drafted positions
    num_requests: int
    seconds: float
    num_unread: int = 0  # prompt tokens that a drafter read


class Profile:
    """Times calls while no request is running, for at most about `max_seconds`."""

    def __init__(self, info: TargetInfo, max_seconds: float, max_wait_seconds: float) -> None:
        """max_wait_seconds: longest wait for a call."""
        self._info = info
        self._max_wait_seconds = max_wait_seconds
        self._ends_at = time.monotonic() + max_seconds
        self._latest = 0.0  # seconds of the latest call, which is a lower bound of larger ones
        size = min(_NUM_PROMPT_TOKENS, max(info.max_model_len // 4, 1))
        self._prompt = self._prompt_of(size)
        number = min(_MOST_REQUESTS, info.max_sequences)
        self._names = [f"profile-{index}" for index in range(number)]

    async def verifier_calls(self, verifier: Verifier) -> list[TimedCall]:
        """Return the times of verifications of several sizes; fewer if it fails or hangs."""
        return await self._collect("the verifier", self._verify_calls(verifier))

    async def drafter_calls(self, drafter: Drafter, name: str = "") -> list[TimedCall]:
        """Return the times of drafts of several sizes; fewer if the drafter fails or hangs.

        The last of them read prompts, too. None if it has nothing to draft.
        """
        return await self._collect(f"drafter {name}".strip(), self._draft_calls(drafter))

    async def _collect(self, what: str, calls: AsyncIterator[TimedCall]) -> list[TimedCall]:
        timed = []
        self._latest = 0.0
        try:
            async for call in calls:
                timed.append(call)
                self._latest = call.seconds
        except Exception as error:
            message = "%s is not profiled, its costs are learnt while decoding: %s"
            logger.warning(message, what, error)
        return timed

    async def _verify_calls(self, verifier: Verifier) -> AsyncIterator[TimedCall]:
        if not self._has_time:
            return
        await self._verify(verifier, len(self._names), 1)  # reads the prompts
        most = min(self._info.max_tree_nodes + 1, self._room)
        for number, num_rows in _SIZES:
            if number <= len(self._names) and num_rows <= most and self._has_time:
                seconds = await self._verify(verifier, number, num_rows)
                yield TimedCall(number * num_rows, number, seconds)

    async def _draft_calls(self, drafter: Drafter) -> AsyncIterator[TimedCall]:
        # reads the prompts; some drafters draft only from what they have seen of other requests
        if not self._has_time or await self._draft(drafter, len(self._names), 1) is None:
            return
        for number, length in _LENGTHS:
            if number <= len(self._names) and length <= self._room and self._has_time:
                seconds = await self._draft(drafter, number, length)
                if seconds is not None:
                    yield TimedCall(number * length, number, seconds)
        for size in _READING_SIZES:
            unread = min(size, self._info.max_model_len // 2)
            if self._has_time:
                name = f"profile-{size}"
                request = self._request(name, self._prompt_of(unread), 1)
                _, seconds = await self._timed(drafter.draft([request]))
                yield TimedCall(1, 1, seconds, unread)
                await _release(drafter, name)

    async def release(self, roles: Sequence[Verifier | Drafter]) -> None:
        """Let roles forget the profile's requests, each within _RELEASE_SECONDS."""
        await asyncio.gather(*[_release(role, name) for role in roles for name in self._names])

    @property
    def _has_time(self) -> bool:
        return time.monotonic() + _REPEATS * self._latest < self._ends_at

    @property
    def _room(self) -> int:
        return self._info.max_model_len - len(self._prompt)

    def _prompt_of(self, size: int) -> TokenIds:
        """Return a prompt that no request will have, since its rows stay in the target's cache."""
        return (7919 * np.arange(1, 1 + size)).astype(np.int32) % self._info.vocab_size

    async def _timed(self, call: Awaitable[T]) -> tuple[T, float]:
        """Return a role's answer and its seconds. Raises DiffuspecError if it takes too long."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._max_wait_seconds):
                return await call, time.monotonic() - started
        except TimeoutError:
            raise DiffuspecError(f"no answer within {self._max_wait_seconds:g} s") from None

    async def _draft(self, drafter: Drafter, number: int, length: int) -> float | None:
        """Return the minimum seconds of calls for `number` drafts; None if there was no draft."""
        requests = [self._request(name, self._prompt, length) for name in self._names[:number]]
        times = []
        for _ in range(_REPEATS):
            drafts, seconds = await self._timed(drafter.draft(requests))
            times.append(seconds)
            if not any(draft.tree.num_nodes for draft in drafts):
                return None
        return min(times)

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


async def _release(role: Verifier | Drafter, name: str) -> None:
    try:
        async with asyncio.timeout(_RELEASE_SECONDS):
            await role.release(name)
    except Exception as error:
        logger.warning("the profile's %s is not released: %r", name, error)
