"""Early drafts: the drafter reads a prompt while the target does, and nothing waits for it."""

from __future__ import annotations

import asyncio
import random
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from diffuspec.core.errors import DrafterError
from diffuspec.core.types import Draft, DraftRequest
from tests.support.fakes import (
    DISHONEST,
    HONEST,
    INVALID,
    HangingDrafter,
    always_right,
    empty,
    never_right,
)
from tests.support.stage import (
    FIXED,
    LONG,
    Stage,
    fake_drafter,
    fake_drafters,
    on_a_pool,
    on_stage,
    rest_of,
    slow_down,
    until,
)

LONG_PROMPT = [n % 40 for n in range(60)]

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


def early_on_stage(*args: Any, **config: Any) -> AbstractAsyncContextManager[Stage]:
    """Run a coordinator whose roles work side by side."""
    return on_stage(*args, **{"overlap": True, **config})


async def test_the_first_token_does_not_wait_for_a_drafter():
    async with early_on_stage(HangingDrafter(), max_draft_seconds=5) as stage:
        stream = stage.stream(LONG_PROMPT)
        tokens = list((await anext(stream)).token_ids)
        assert len(tokens) == 1 and stage.drafter.is_asked.is_set()
        assert tokens + await rest_of(stream) == stage.plain(LONG_PROMPT)


async def test_the_rest_of_an_early_draft_serves_the_second_step():
    async with early_on_stage(fake_drafter(always_right)) as stage:
        slow_down(stage.verifier, "verify", 1)
        first, second, *_ = await stage.steps(LONG_PROMPT)
        assert (first.num_tree_nodes, first.num_draft_tokens, first.fallback) == (0, 0, None)
        assert second.num_tree_nodes == second.num_draft_tokens == FIXED.num_draft_tokens - 1
        assert second.num_committed_tokens == FIXED.num_draft_tokens
        assert len(stage.drafter.batches[0][0].prefix) == len(LONG_PROMPT)
        assert len(stage.drafter.batches[1][0].prefix) > len(LONG_PROMPT) + 1, "one draft served"


async def test_a_second_step_waits_for_an_early_draft_on_its_way():
    async with early_on_stage(fake_drafter(always_right)) as stage:
        slow_down(stage.drafter, "draft", 1)
        _, second, *_ = await stage.steps(LONG_PROMPT)
        assert second.num_committed_tokens == FIXED.num_draft_tokens
        assert 0.9 < second.step_seconds <= 1


@pytest.mark.parametrize("strategy", [never_right, empty])
async def test_where_an_early_draft_is_of_no_use_a_new_one_is_made(strategy):
    def early(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
        is_early = len(request.prefix) == len(LONG_PROMPT)
        return (strategy if is_early else always_right)(rng, request, truth)

    async with early_on_stage(fake_drafter(early)) as stage:
        _, second, *_ = await stage.steps(LONG_PROMPT)
        assert second.num_committed_tokens == FIXED.num_draft_tokens + 1
        assert [len(b[0].prefix) for b in stage.drafter.batches[:2]] == [60, 61]


async def test_an_early_draft_whose_turn_has_not_come_is_asked_for_the_newer_prefix():
    async with early_on_stage(max_sequences=3) as stage:
        stage.drafter.gate.close()
        first = stage.start([9])
        await stage.drafter.gate.arrival()
        stream = stage.stream(LONG_PROMPT)
        tokens = list((await anext(stream)).token_ids)
        stage.drafter.gate.open()
        assert tokens + await rest_of(stream) == stage.plain(LONG_PROMPT)
        assert await first == stage.plain([9])
        asked = [len(r.prefix) for batch in stage.drafter.batches for r in batch]
        assert len(LONG_PROMPT) not in asked and len(LONG_PROMPT) + 1 in asked


@pytest.mark.parametrize("max_sequences", [1, 2])
async def test_roles_of_one_machine_read_a_prompt_one_after_the_other(max_sequences):
    async with on_stage(fake_drafter(always_right), max_sequences=max_sequences) as stage:
        first, second, *_ = await stage.steps(LONG_PROMPT)
        assert first.num_tree_nodes == 0 and first.fallback is None
        assert second.num_committed_tokens == FIXED.num_draft_tokens + 1
        assert len(stage.drafter.batches[0][0].prefix) == len(LONG_PROMPT) + 1


@pytest.mark.no_cover
@pytest.mark.parametrize("strategy", [*HONEST, *DISHONEST, *INVALID])
async def test_no_early_draft_changes_a_token(strategy, quiet):
    async with early_on_stage(fake_drafter(strategy), max_sequences=4) as stage:
        slow_down(stage.verifier, "verify", 1)
        prompts = [[n, *LONG_PROMPT[: 9 + n]] for n in range(4)]
        found = await asyncio.gather(*(stage.tokens(prompt, LONG) for prompt in prompts))
        assert found == [stage.plain(prompt, LONG) for prompt in prompts]
        await until(lambda: not stage.leftovers())


@pytest.mark.no_cover
@pytest.mark.parametrize("verify_seconds", [0.0, 10.0])
async def test_a_drafter_that_fails_early_costs_no_token(verify_seconds, quiet):
    async with early_on_stage() as stage:
        slow_down(stage.verifier, "verify", verify_seconds)
        slow_down(stage.drafter, "draft", 1)
        stage.drafter.error = DrafterError("no memory")
        assert await stage.tokens(LONG_PROMPT) == stage.plain(LONG_PROMPT)


@pytest.mark.no_cover
@pytest.mark.parametrize("num_left", [0, 1])
async def test_a_drafter_that_leaves_early_costs_no_token(num_left, quiet):
    drafters: list[Any] = fake_drafters(1 + num_left)
    async with on_a_pool(drafters, overlap=True) as stage:
        drafters[0].gate.close()
        first = stage.start(LONG_PROMPT)
        await drafters[0].gate.arrival()
        queued = [stage.start([n, *LONG_PROMPT]) for n in range(3)]
        stage.drafter.remove(drafters[0])
        drafters[0].gate.open()
        assert await first == stage.plain(LONG_PROMPT)
        for n, task in enumerate(queued):
            assert await task == stage.plain([n, *LONG_PROMPT])
        await until(lambda: not stage.leftovers())


async def test_a_request_that_ends_while_its_early_draft_is_made_leaves_nothing():
    async with early_on_stage() as stage:
        stage.drafter.gate.close()
        stream = stage.stream(LONG_PROMPT)
        await anext(stream)
        await stream.aclose()
        stage.drafter.gate.open()
        assert await stage.tokens(LONG_PROMPT) == stage.plain(LONG_PROMPT)
        await until(lambda: stage.is_empty and not stage.leftovers())


async def test_a_resumed_request_goes_on_before_the_drafter_has_read_it():
    async with early_on_stage(HangingDrafter(), max_draft_seconds=5) as stage:
        committed = stage.plain(LONG_PROMPT)[:5]
        stream = stage.stream(LONG_PROMPT, committed=committed)
        rest = list((await anext(stream)).token_ids)
        assert committed + rest + await rest_of(stream) == stage.plain(LONG_PROMPT)
