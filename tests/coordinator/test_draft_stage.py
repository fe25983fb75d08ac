"""The way of a long prompt through the drafter: nobody waits for it to be read."""

from __future__ import annotations

import random

from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, DraftRequest
from tests.support.fakes import always_right, empty
from tests.support.stage import FOREVER, PROMPT, on_stage

LONG_PROMPT = [n % 50 for n in range(100)]


async def test_a_long_prompt_has_its_first_token_before_the_drafter_reads_it():
    async with on_stage(prefill_chunk_tokens=16) as stage:
        stage.drafter.gate.close()
        stream = stage.stream(LONG_PROMPT)
        tokens = list((await anext(stream)).token_ids)
        assert len(tokens) == 1 and len(stage.verifier.batches) == 7
        stage.drafter.gate.open()
        tokens += [i async for step in stream for i in step.token_ids]
        assert tokens == stage.plain(LONG_PROMPT)
        assert stage.drafter.num_calls > 1
        assert min(len(r.prefix) for batch in stage.drafter.batches for r in batch) == 101


async def test_steps_for_which_the_drafter_has_not_read_enough_teach_nothing():
    def late(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
        is_ready = len(request.prefix) > len(PROMPT) + 2
        return (always_right if is_ready else empty)(rng, request, truth)

    async with on_stage() as stage:
        stage.drafter.strategy = late
        stream = stage.stream(PROMPT, FOREVER, SpeculationParams(policy="paper"))
        steps = [step.step async for step in stream]
        fallbacks = [step.fallback for step in steps]
        assert fallbacks[:3] == ["empty_draft"] * 3 and set(fallbacks[3:]) == {None}
        config = stage.coordinator._draft_length
        assert steps[3].num_draft_tokens == config.max_draft_tokens
        assert not any(step.num_draft_tokens for step in steps[:3])
