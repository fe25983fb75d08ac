"""Many requests at a time, in virtual time, over roles with known costs: the default policy."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, Sequence

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.bench.load import LoadRow, TimedTokens, ask_all, load_row
from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, Prompt, TokenIds, Verdict, VerifyRequest

pytestmark = pytest.mark.virtual_time

ON, OFF = SpeculationParams(), SpeculationParams(policy="off")


def _probability(prefix: TokenIds) -> float:
    """Return how often a draft token of this request is right; the prompt tells."""
    return 0.55 + 0.4 * random.Random(int(prefix[0])).random()


class TimedPair:
    """A drafter and a verifier that take as long as those of the embedded pair, a core for each."""

    def __init__(self) -> None:
        self.info = TargetInfo(
            vocab_size=100,
            max_model_len=4096,
            max_sequences=32,
            max_tree_nodes=64,
            eos_token_ids=(),
        )
        self._num_read: dict[str, int] = {}
        self._known_to_drafter: set[str] = set()

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        num_positions = sum(one.num_draft_tokens for one in requests)
        new = {one.request_id: one for one in requests}.keys() - self._known_to_drafter
        num_new = sum(len(one.prefix) for one in requests if one.request_id in new)
        self._known_to_drafter |= new
        milliseconds = 4 + 1.15 * len(requests) + 0.11 * num_positions + 0.07 * num_new
        await asyncio.sleep(milliseconds / 1000)
        return [self._draft(one) for one in requests]

    def _draft(self, request: DraftRequest) -> Draft:
        length, sure = request.num_draft_tokens, math.log(_probability(request.prefix))
        return Draft(chain(range(1, length + 1)), (sure,) * length, length)

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        num_rows = sum(
            len(one.prefix) - self._num_read.get(one.request_id, 0) + one.tree.num_nodes
            for one in requests
        )
        await asyncio.sleep((8 + 1.2 * len(requests) + 0.21 * num_rows) / 1000)
        return [self._verdict(one) for one in requests]

    def _verdict(self, request: VerifyRequest) -> Verdict:
        rng, num_accepted = random.Random(hash((int(request.prefix[0]), len(request.prefix)))), 0
        while num_accepted < request.tree.num_nodes and rng.random() < _probability(request.prefix):
            num_accepted += 1
        self._num_read[request.request_id] = len(request.prefix) + num_accepted
        return Verdict((*range(1, num_accepted + 1), 0), tuple(range(num_accepted)))

    async def release(self, request_id: str) -> None:
        self._num_read.pop(request_id, None)
        self._known_to_drafter.discard(request_id)


class Client:
    def __init__(self, coordinator: Coordinator, speculation: SpeculationParams) -> None:
        self._coordinator, self._speculation = coordinator, speculation

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        ids = np.array(prompt, np.int32)
        sampling = SamplingParams(max_tokens=30 + len(ids) * max_tokens // 140, ignore_eos=True)
        stream = self._coordinator.stream(ids, sampling, self._speculation)
        async with contextlib.aclosing(stream):
            async for output in stream:
                yield TimedTokens(time.monotonic(), len(output.token_ids), "")


async def measure(speculation: SpeculationParams, concurrencies: Sequence[int]) -> list[LoadRow]:
    """Ask the same prompts, with no speculation or with it, at each concurrency."""
    pair, config, rows = TimedPair(), CoordinatorConfig(overlap=True), []
    async with Coordinator(pair, pair, config, DraftLengthConfig()) as coordinator:
        for number in concurrencies:
            rng = random.Random(0)
            prompts: list[Prompt] = [
                [rng.randrange(1, 90)] * rng.randrange(20, 140) for _ in range(max(24, 6 * number))
            ]
            run = await ask_all(Client(coordinator, speculation), prompts, number, 90)
            rows.append(load_row("", [run]))
    return rows


async def test_more_requests_at_a_time_never_give_less_nor_less_than_plain_decoding():
    concurrencies = (1, 8, 16)
    drafting = await measure(ON, concurrencies)
    plain = await measure(OFF, concurrencies)
    speeds = [row.tokens_per_second for row in drafting]
    assert speeds == sorted(speeds) and speeds[1] > 2.3 * speeds[0]
    for with_drafts, without in zip(drafting, plain, strict=True):
        assert with_drafts.tokens_per_second > 1.3 * without.tokens_per_second
        assert with_drafts.first_token_p50 < 1.15 * without.first_token_p50
