"""Audits: decode an answer again without drafts, and compare it token by token.

This reveals any draft that changed an answer. Rounding, as with 16-bit numbers on a GPU, can also
change it where two tokens are almost equally likely: the gap tells such a near-tie from a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from diffuspec.core.backoff import Backoff
from diffuspec.core.errors import DiffuspecError
from diffuspec.core.params import PLAIN, SamplingParams
from diffuspec.core.types import Prompt, RequestOutput, TokenLogprobs
from diffuspec.engine.base import EngineBase

__all__ = ["Auditor", "Divergence", "audit"]

logger = logging.getLogger(__name__)

_MAX_QUEUED = 16  # answers waiting for their audit


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token of an answer that differs from plain decoding."""

    position: int  # index in the answer, from 0
    token_id: int | None  # the answer's token; None: it ended there
    plain_token_id: int | None  # the token without drafts; None: plain decoding ended there
    gap: float | None  # difference between the log-probabilities of the two likeliest tokens there


async def audit(
    engine: EngineBase,
    prompt_ids: Prompt,
    sampling: SamplingParams,
    token_ids: Sequence[int],
) -> Divergence | None:
    """Decode a finished answer again without drafts; return the first difference, or None.

    For a sampled answer `sampling` must have its seed. Raises DiffuspecError.
    """
    asked = sampling.derive(logprobs=max(2, sampling.logprobs or 0), prompt_logprobs=None)
    plain = await engine.complete(prompt_ids, asked, PLAIN)
    for position, (mine, other) in enumerate(zip_longest(token_ids, plain.token_ids)):
        if mine != other:
            gap = None if other is None else _gap(plain.logprobs, position)
            return Divergence(position, mine, other, gap)
    return None


def _gap(logprobs: Sequence[TokenLogprobs] | None, position: int) -> float | None:
    top = logprobs[position].top if logprobs is not None else ()
    return top[0][1] - top[1][1] if len(top) > 1 else None


@dataclass(frozen=True, slots=True)
class _Answer:
    request_id: str
    prompt_ids: Prompt
    sampling: SamplingParams
    token_ids: Sequence[int]


class Auditor:
    """Audits a share of an engine's answers, one at a time, while the engine has free capacity.

    Answers are skipped while the queue is full. Results are counted in the engine's metrics; a
    divergence is logged with its gap. Belongs to the engine's event loop.
    """

    def __init__(
        self, engine: EngineBase, rate: float, draw: Callable[[], float] = random.random
    ) -> None:
        """`rate`: the share of answers to audit. `draw` returns numbers from 0 to below 1."""
        self._engine = engine
        self._rate = rate
        self._draw = draw
        self._queue: deque[_Answer] = deque()
        self._task: asyncio.Task[None] | None = None

    async def follow(
        self,
        stream: AsyncGenerator[RequestOutput],
        request_id: str,
        prompt_ids: Prompt,
        sampling: SamplingParams,
        committed: Sequence[int] = (),
    ) -> AsyncGenerator[RequestOutput]:
        """Pass a stream through, then offer its answer: `committed` and the stream's tokens."""
        token_ids = list(committed)
        async with contextlib.aclosing(stream):
            async for output in stream:
                token_ids += output.token_ids
                if output.finish_reason is not None:
                    drawn = sampling.derive(seed=output.seed)
                    self.offer(request_id, prompt_ids, drawn, token_ids)
                yield output

    def offer(
        self,
        request_id: str,
        prompt_ids: Prompt,
        sampling: SamplingParams,
        token_ids: Sequence[int],
    ) -> None:
        """Queue a finished answer for an audit, if it is in the sampled share."""
        if not token_ids or self._draw() >= self._rate:
            return
        if len(self._queue) == _MAX_QUEUED:
            self._engine.metrics.audits.inc("skipped")
            return
        self._queue.append(_Answer(request_id, prompt_ids, sampling, token_ids))
        if self._task is None or self._task.done():
            # In its own context: this one belongs to one of the answers.
            self._task = asyncio.create_task(self._work(), context=contextvars.Context())

    async def finish(self) -> None:
        """Wait until all queued answers have been audited."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Drop the queued answers, and cancel the running audit."""
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while self._queue:
            await self._free_place()
            answer = self._queue.popleft()
            try:
                found = await audit(
                    self._engine, answer.prompt_ids, answer.sampling, answer.token_ids
                )
            except DiffuspecError as error:
                self._engine.metrics.audits.inc("skipped")
                logger.warning("request %s could not be audited: %s", answer.request_id, error)
                continue
            self._engine.metrics.audits.inc("same" if found is None else "different")
            if found is not None:
                logger.error("request %s differs from plain decoding: %s", answer.request_id, found)

    async def _free_place(self) -> None:
        backoff, most = Backoff(0.05, 1.0), self._engine.info.max_sequences
        while self._engine.num_requests >= most:
            await asyncio.sleep(backoff.failed())
