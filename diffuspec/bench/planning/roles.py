"""The simulated roles: they answer from the traffic's tables after the machine's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from diffuspec.algorithm.draft_tree import chain, is_chain
from diffuspec.bench.planning.machines import Machine
from diffuspec.bench.planning.processor import Processor, Worker
from diffuspec.bench.planning.traffic import VOCAB_SIZE, Answer
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Draft, DraftRequest, TokenIds, Verdict, VerifyRequest

MAX_SEQUENCES = 128
_MAX_TREE_NODES = 128
_MAX_MODEL_LEN = 4096


def _answer_to(prefix: TokenIds, answers: Sequence[Answer]) -> Answer:
    """Return the answer to which a prefix belongs; an arbitrary one for an unknown prefix."""
    return answers[int(prefix[0]) % len(answers)]


class SimulatedVerifier:
    """A target that knows its answers."""

    def __init__(self, machine: Machine, processor: Processor, answers: Sequence[Answer]) -> None:
        self.info = TargetInfo(
            vocab_size=VOCAB_SIZE,
            max_model_len=_MAX_MODEL_LEN,
            max_sequences=MAX_SEQUENCES,
            max_tree_nodes=_MAX_TREE_NODES,
            eos_token_ids=(),
        )
        self._machine = machine
        self._worker = Worker(processor)
        self._answers = answers
        self._num_read: dict[str, int] = {}  # prefix tokens in the cache, by request id

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        num_rows = sum([self._num_rows(request) for request in requests])
        started = time.monotonic()
        alone = self._machine.verify_seconds(len(requests), num_rows)
        await self._worker.run(alone * self._machine.slowness(started))
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
        num_read = self._num_read.get(request.request_id, 0)
        return max(len(request.prefix) - num_read, 1)

    def _num_rows(self, request: VerifyRequest) -> int:
        num_left = self._num_left_unread(request)
        return self._num_unread(request) - num_left if num_left else self._num_decoded(request)

    def _num_decoded(self, request: VerifyRequest) -> int:
        return self._num_unread(request) + request.tree.num_nodes

    def _verdict(self, request: VerifyRequest, seconds: float) -> Verdict:
        num_tokens = len(request.prefix)
        if num_left := self._num_left_unread(request):
            self._num_read[request.request_id] = num_tokens - num_left
            return Verdict((0,), (), verify_seconds=seconds, num_unread_tokens=num_left)
        assert is_chain(request.tree)
        answer = _answer_to(request.prefix, self._answers)
        first = answer.position(num_tokens, request.num_prompt_tokens)
        drafted, num_accepted = request.tree.token_ids, 0
        own = answer.own[first : first + len(drafted) + 1]
        while num_accepted < len(drafted) and drafted[num_accepted] == own[num_accepted]:
            num_accepted += 1
        self._num_read[request.request_id] = num_tokens + num_accepted
        accepted_nodes = tuple(range(num_accepted))
        return Verdict(own[: num_accepted + 1], accepted_nodes, verify_seconds=seconds)


class SimulatedDrafter:
    """A drafter that knows its guesses. It reads a request's prefix once."""

    def __init__(self, machine: Machine, processor: Processor, answers: Sequence[Answer]) -> None:
        self._machine = machine
        self._worker = Worker(processor)
        self._answers = answers
        self._known: set[str] = set()  # ids of requests whose prefix it has read

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        num_positions = sum([request.num_draft_tokens for request in requests])
        seconds = self._machine.draft_seconds(len(requests), num_positions, self._read(requests))
        await self._cross_network()
        started = time.monotonic()
        await self._worker.run(seconds * self._machine.slowness(started))
        spent = time.monotonic() - started
        await self._cross_network()
        return [self._draft(request, spent) for request in requests]

    async def release(self, request_id: str) -> None:
        self._known.discard(request_id)

    def _read(self, requests: Sequence[DraftRequest]) -> int:
        """Return the number of prefix tokens that it has not read before."""
        num_read = 0
        for request in requests:
            if request.request_id not in self._known:
                self._known.add(request.request_id)
                num_read += len(request.prefix)
        return num_read

    async def _cross_network(self) -> None:
        if self._machine.network_seconds:
            await asyncio.sleep(self._machine.network_seconds)

    def _draft(self, request: DraftRequest, seconds: float) -> Draft:
        answer = _answer_to(request.prefix, self._answers)
        size = min(request.num_draft_tokens, request.max_nodes)
        first = answer.position(len(request.prefix), request.num_prompt_tokens)
        end = first + size
        return Draft(
            chain(answer.drafted[first:end]),
            answer.confidences[first:end],
            size,
            draft_seconds=seconds,
            alternatives=answer.alternatives[first : end + 1] if request.num_alternatives else (),
            transport_seconds=2 * self._machine.network_seconds,
        )
