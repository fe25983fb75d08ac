"""The statistics of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from diffuspec.core.types import Verdict, VerifyRequest
from tests.support.fakes import right_and_sure
from tests.support.stage import LONG, PRE_DRAFTING, PROMPT, on_stage, overlapped, slow_down

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def test_reading_a_prompt_in_chunks_counts_as_verifying():
    async with on_stage(None, prefill_chunk_tokens=16) as stage:
        verify = stage.verifier.verify

        async def timed(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            verdicts = await verify(requests)
            return [replace(v, verify_seconds=1.0, transport_seconds=0.5) for v in verdicts]

        stage.verifier.verify = timed  # type: ignore[method-assign]
        prompt = [n % 50 for n in range(60)]
        first, second, *_ = await stage.steps(prompt)
        assert (first.verify_seconds, first.transport_seconds) == (4.0, 2.0)
        assert (second.verify_seconds, second.transport_seconds) == (1.0, 0.5)


async def test_pre_drafts_that_were_not_used_count_as_wasted():
    async with overlapped() as stage:
        steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
        for step in steps:
            if step.pre_draft == "hit":
                assert step.num_wasted_draft_tokens <= 3 * 4
        asked = sum(r.num_draft_tokens - 1 for b in stage.drafter.batches for r in b)
        used = sum(step.num_draft_tokens for step in steps)
        wasted = sum(step.num_wasted_draft_tokens for step in steps)
        assert wasted == asked - used
        assert stage.metric("wasted_draft_tokens_total") == wasted


async def test_overlap_lowers_the_idle_time_of_the_verifier():
    idle = {}
    for overlap in (False, True):
        async with overlapped(strategy=right_and_sure, overlap=overlap) as stage:
            slow_down(stage.verifier, "verify", 0.01)
            slow_down(stage.drafter, "draft", 0.002)
            steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
            seconds = sum(step.step_seconds for step in steps)
            idle[overlap] = sum(step.verify_idle_seconds for step in steps) / seconds
            busy = sum(step.step_seconds - step.draft_idle_seconds for step in steps) / seconds
            assert 0 < busy < 1
    assert idle[True] < idle[False]
