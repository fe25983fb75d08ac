"""The simulated roles: they answer from the traffic's tables after the machine's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from diffuspec.algorithm.draft_tree import follow, is_chain
from diffuspec.bench.planning.machines import CallSize, Machine
from diffuspec.bench.planning.processor import Processor, Worker
from diffuspec.bench.planning.traffic import VOCAB_SIZE, Answer
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, DraftRequest, DraftTree, TokenIds, Verdict, VerifyRequest

MAX_SEQUENCES = 128
INFO = TargetInfo(
    vocab_size=VOCAB_SIZE,
    max_model_len=4096,
    max_sequences=MAX_SEQUENCES,
    max_tree_nodes=128,
    eos_token_ids=(),
)


def _answer_to(prefix: TokenIds, answers: Sequence[Answer]) -> Answer:
    """Return the answer to which a prefix belongs; an arbitrary one for an unknown prefix."""
    return answers[int(prefix[0]) % len(answers)]


class SimulatedVerifier:
    """A target that knows its answers."""

    def __init__(
        self,
        machine: Machine,
        processor: Processor,
        answers: Sequence[Answer],
        info: TargetInfo = INFO,
        num_shared_tokens: int = 0,
    ) -> None:
        """num_shared_tokens: leading tokens of every prompt, in the cache from the start."""
        self.info = info
        self.worker = Worker(processor)
        self._machine = machine
        self._answers = answers
        self._num_shared_tokens = num_shared_tokens
        self._num_read: dict[str, int] = {}  # prefix tokens in the cache, by request id

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        started = time.monotonic()
        alone = self._machine.verify_seconds(self._size(requests))
        await self.worker.run(alone * self._machine.slowness(started))
        seconds = time.monotonic() - started
        return [self._verdict(request, seconds) for request in requests]

    async def release(self, request_id: str) -> None:
        self._num_read.pop(request_id, None)

    def _num_left_unread(self, request: VerifyRequest) -> int:
        """Return the number of prefix tokens beyond the request's prefill limit."""
        if request.max_read_tokens is None:
            return 0
        return max(self._num_unread(request) - request.max_read_tokens, 0)

    def _num_unread(self, request: VerifyRequest) -> int:
        """Return the number of prefix rows to compute: the last one always is."""
        num_read = self._num_read.get(request.request_id, self._num_shared_tokens)
        return max(len(request.prefix) - num_read, 1)

    def _size(self, requests: Sequence[VerifyRequest]) -> CallSize:
        num_rows = num_read = num_cached = 0
        for request in requests:
            num_unread, num_left = self._num_unread(request), self._num_left_unread(request)
            is_read = not num_left
            num_rows += is_read and 1 + request.tree.num_nodes
            num_read += num_unread - num_left - is_read
            num_cached += len(request.prefix) - num_unread
        return CallSize(len(requests), num_rows, num_read, num_cached)

    def _verdict(self, request: VerifyRequest, seconds: float) -> Verdict:
        num_tokens = len(request.prefix)
        if num_left := self._num_left_unread(request):
            self._num_read[request.request_id] = num_tokens - num_left
            return Verdict((0,), (), verify_seconds=seconds, num_unread_tokens=num_left)
        answer = _answer_to(request.prefix, self._answers)
        first = answer.position(num_tokens, request.num_prompt_tokens)
        own = answer.own[first : first + request.tree.num_nodes + 1]
        accepted_nodes = _accepted(request.tree, own)
        num_accepted = len(accepted_nodes)
        self._num_read[request.request_id] = num_tokens + num_accepted
        return Verdict(own[: num_accepted + 1], accepted_nodes, verify_seconds=seconds)


def _accepted(tree: DraftTree, own: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes with the target's own tokens, root to leaf."""
    if not is_chain(tree):
        return tuple(follow(tree, own))
    num_accepted = 0
    while num_accepted < tree.num_nodes and tree.token_ids[num_accepted] == own[num_accepted]:
        num_accepted += 1
    return tuple(range(num_accepted))


class _Reading(NamedTuple):
    """The prefix tokens that a simulated drafter reads for a draft."""

    num_tokens: int
    is_refresh: bool = False


class SimulatedDrafter:
    """A drafter that knows its guesses. It reads a request's prefix once, or at intervals."""

    def __init__(
        self,
        machine: Machine,
        processor: Processor,
        answers: Sequence[Answer],
        num_shared_tokens: int = 0,
    ) -> None:
        """num_shared_tokens: leading tokens of every prompt, read before."""
        self.worker = Worker(processor)
        self._machine = machine
        self._answers = answers
        self._num_shared_tokens = num_shared_tokens
        self._read_at: dict[str, int] = {}  # prefix length when it was last read, by request id

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        num_positions = sum([request.num_draft_tokens for request in requests])
        num_context = sum([len(request.prefix) for request in requests])
        readings = [self._read(request) for request in requests]
        num_read = sum([reading.num_tokens for reading in readings])
        size = CallSize(len(requests), num_positions, num_read, num_context)
        seconds = self._machine.draft_seconds(size)
        await self._cross_network()
        started = time.monotonic()
        await self.worker.run(seconds * self._machine.slowness(started))
        spent = time.monotonic() - started
        await self._cross_network()
        made: dict[tuple[int, ...], Draft] = {}  # outcomes of one length have the same draft
        return [
            self._draft(request, spent, reading.num_tokens if reading.is_refresh else 0, made)
            for request, reading in zip(requests, readings, strict=True)
        ]

    async def release(self, request_id: str) -> None:
        self._read_at.pop(request_id, None)

    def _read(self, request: DraftRequest) -> _Reading:
        """Read all of a prefix at first, and its last tokens at a refresh."""
        interval, size = self._machine.refresh_every, len(request.prefix)
        read_at = self._read_at.get(request.request_id)
        if read_at is None:
            self._read_at[request.request_id] = size
            return _Reading(size - self._num_shared_tokens)
        if interval is None or size - read_at < interval:
            return _Reading(0)
        self._read_at[request.request_id] = size
        return _Reading(min(size, self._machine.refresh_tokens or size), is_refresh=True)

    async def _cross_network(self) -> None:
        if self._machine.network_seconds:
            await asyncio.sleep(self._machine.network_seconds)

    def _draft(
        self,
        request: DraftRequest,
        seconds: float,
        num_refreshed: int,
        made: dict[tuple[int, ...], Draft],
    ) -> Draft:
        answer = _answer_to(request.prefix, self._answers)
        first = answer.position(len(request.prefix), request.num_prompt_tokens)
        size = request.num_draft_tokens, request.max_nodes
        key = (answer.number, first, *size, request.num_alternatives, num_refreshed)
        if key not in made:
            guess = answer.guess(first, *size)
            made[key] = Draft(
                guess.tree,
                guess.confidences,
                min(size),
                draft_seconds=seconds,
                alternatives=guess.alternatives if request.num_alternatives else (),
                transport_seconds=2 * self._machine.network_seconds,
                num_refreshed=num_refreshed,
            )
        return made[key]
