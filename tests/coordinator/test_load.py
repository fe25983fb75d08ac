"""Many requests at a time, in virtual time, over roles with known costs: the default policy."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.bench.load import LoadRow, TimedTokens, ask_all, load_row
from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, Prompt, TokenIds, Verdict, VerifyRequest

pytestmark = [pytest.mark.virtual_time, pytest.mark.no_cover]  # others run the same lines

ON, OFF = SpeculationParams(), SpeculationParams(policy="off")


@dataclass(frozen=True)
class Speeds:
    """What calls take, in milliseconds: each, per request, per row or position."""

    verify: tuple[float, float, float] = (8, 1.2, 0.21)
    draft: tuple[float, float, float] = (4, 1.15, 0.11)
    read: float = 0.07  # the drafter's, per token of a prompt
    crowding: float = 0.0  # by how much longer each takes beside the other
    rightness: tuple[float, float] = (0.55, 0.95)  # of draft tokens, of the worst and best request


EMBEDDED = Speeds()  # the embedded pair, a core for each
THREADS = Speeds((5, 1.2, 0.2), (5, 1.5, 0.1), 0.05, 0.45, (0.72, 0.97))  # in one process
BANDWIDTH = Speeds((38, 1, 0.65), (26, 0, 1.2), 1.2, 0.45, (0.3, 0.75))  # SmolLM2, memory shared
ONE_CORE = Speeds((4, 1.5, 0.9), (4.5, 2, 0.25), 0.25, 1.0, (0.72, 0.97))  # for both roles
APART = Speeds((30, 0.05, 0.01), (10, 0.05, 0.01), 0.005)  # large models on processors of their own


class TimedPair:
    """A drafter and a verifier that take a known time."""

    def __init__(self, speeds: Speeds = EMBEDDED) -> None:
        self._speeds = speeds
        self._at_work: set[str] = set()
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
        each, per_request, per_position = self._speeds.draft
        drafting = each + per_request * len(requests) + per_position * num_positions
        await self._work("drafter", drafting + self._speeds.read * num_new)
        return [self._draft(one) for one in requests]

    def _probability(self, prefix: TokenIds) -> float:
        """Return how often a draft token of this request is right; the prompt tells."""
        worst, best = self._speeds.rightness
        return worst + (best - worst) * random.Random(int(prefix[0])).random()

    async def _work(self, role: str, milliseconds: float) -> None:
        self._at_work.add(role)
        while milliseconds > 0:
            here = min(milliseconds, 1.0 if self._speeds.crowding else milliseconds)
            slower = 1 + self._speeds.crowding * (len(self._at_work) - 1)
            await asyncio.sleep(slower * here / 1000)
            milliseconds -= here
        self._at_work.discard(role)

    def _draft(self, request: DraftRequest) -> Draft:
        length, sure = request.num_draft_tokens, math.log(self._probability(request.prefix))
        return Draft(chain(range(1, length + 1)), (sure,) * length, length)

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        num_rows = sum(
            len(one.prefix) - self._num_read.get(one.request_id, 0) + one.tree.num_nodes
            for one in requests
        )
        each, per_request, per_row = self._speeds.verify
        await self._work("verifier", each + per_request * len(requests) + per_row * num_rows)
        return [self._verdict(one) for one in requests]

    def _verdict(self, request: VerifyRequest) -> Verdict:
        rng, num_accepted = random.Random(hash((int(request.prefix[0]), len(request.prefix)))), 0
        right = self._probability(request.prefix)
        while num_accepted < request.tree.num_nodes and rng.random() < right:
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


async def measure(
    speculation: SpeculationParams,
    concurrencies: Sequence[int],
    speeds: Speeds = EMBEDDED,
    overlap: bool = True,
) -> list[LoadRow]:
    """Ask the same prompts, with no speculation or with it, at each concurrency."""
    pair, config, rows = TimedPair(speeds), CoordinatorConfig(overlap=overlap), []
    async with Coordinator(pair, pair, config, DraftLengthConfig()) as coordinator:
        for number in concurrencies:
            rng = random.Random(0)
            prompts: list[Prompt] = [
                [rng.randrange(1, 90)] * rng.randrange(20, 140) for _ in range(max(24, 6 * number))
            ]
            run = await ask_all(Client(coordinator, speculation), prompts, number, 90)
            rows.append(load_row("", [run]))
    return rows


async def test_throughput_grows_with_requests_and_stays_above_plain_decoding():
    concurrencies = (1, 8, 16)
    drafting = await measure(ON, concurrencies)
    plain = await measure(OFF, concurrencies)
    speeds = [row.tokens_per_second for row in drafting]
    assert speeds == sorted(speeds) and speeds[1] > 2.3 * speeds[0]
    for with_drafts, without in zip(drafting, plain, strict=True):
        assert with_drafts.tokens_per_second > 1.3 * without.tokens_per_second
        assert with_drafts.first_token_p50 < 1.15 * without.first_token_p50


@pytest.mark.parametrize(("concurrency", "most"), [(4, 1.15), (16, 1.2)])
async def test_no_first_token_waits_for_drafts_of_roles_that_slow_each_other_down(
    concurrency, most
):
    [drafting] = await measure(ON, [concurrency], THREADS, overlap=False)
    [plain] = await measure(OFF, [concurrency], THREADS, overlap=False)
    assert drafting.first_token_p50 < most * plain.first_token_p50
    assert drafting.tokens_per_second > 1.3 * plain.tokens_per_second


async def test_requests_that_drafts_do_not_help_are_decoded_at_the_speed_of_plain_decoding():
    _, *drafting = await measure(ON, (2, 2, 8), BANDWIDTH, overlap=False)
    _, *plain = await measure(OFF, (2, 2, 8), BANDWIDTH, overlap=False)
    for with_drafts, without in zip(drafting, plain, strict=True):
        assert with_drafts.tokens_per_second > 0.97 * without.tokens_per_second
        assert with_drafts.first_token_p50 < 1.15 * without.first_token_p50


async def test_several_requests_on_one_core_decode_at_the_speed_of_plain_decoding():
    [*drafting] = await measure(ON, (4, 4, 8), ONE_CORE, overlap=False)
    [*plain] = await measure(OFF, (4, 4, 8), ONE_CORE, overlap=False)
    for with_drafts, without in zip(drafting[1:], plain[1:], strict=True):
        assert with_drafts.tokens_per_second > 0.97 * without.tokens_per_second


async def test_a_target_that_verifies_many_as_fast_as_few_verifies_all_together():
    [drafting] = await measure(ON, [4], APART, overlap=False)
    [plain] = await measure(OFF, [4], APART, overlap=False)
    assert drafting.tokens_per_second > 2.4 * plain.tokens_per_second
