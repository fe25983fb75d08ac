"""Which outcomes are pre-drafted, and how many of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import MAX_ALTERNATIVES, DraftRequest
from diffuspec.scheduler.request import Request
from diffuspec.speculation.outcomes import OutcomeRanking
from diffuspec.telemetry.busy_time import BusyTime
from tests.support.fakes import always_right, right_and_sure
from tests.support.stage import (
    ALL_OUTCOMES,
    FOREVER,
    LONG,
    PRE_DRAFTING,
    PROMPT,
    SHORT,
    overlapped,
    slow_down,
    watch_drafts,
)
from tests.support.virtual_time import run_in_virtual_time

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def test_pre_drafts_of_a_request_share_a_batch_and_ask_for_alternatives():
    async with overlapped() as stage:
        await stage.steps(PROMPT, SHORT, PRE_DRAFTING)
        pre_drafts = stage.drafter.batches[1]
        assert len(pre_drafts) == 4 and len({r.request_id for r in pre_drafts}) == 1
        assert len({r.prefix.tobytes() for r in pre_drafts}) == 4
        assert all(r.prefix[: len(PROMPT)].tolist() == PROMPT for r in pre_drafts)
        assert {r.num_alternatives for r in pre_drafts} == {MAX_ALTERNATIVES}
        assert {r.num_draft_tokens for r in pre_drafts} == {5}, "one more than is verified"


async def test_without_overlap_no_pre_drafts_or_alternatives_are_asked_for():
    async with overlapped(overlap=False) as stage:
        steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
        assert {step.pre_draft for step in steps} == {None}
        assert {len(batch) for batch in stage.drafter.batches} == {1}
        assert {r.num_alternatives for b in stage.drafter.batches for r in b} == {0}
        assert {r.num_draft_tokens for b in stage.drafter.batches for r in b} <= {1, 2, 3, 4}


@pytest.mark.parametrize("num_outcomes", [0, 1, 3, 16])
async def test_no_more_outcomes_are_pre_drafted_than_the_request_allows(num_outcomes):
    async with overlapped(hit_rate=0.3) as stage:
        calls = watch_drafts(stage)
        speculation = replace(PRE_DRAFTING, num_outcomes=num_outcomes)
        steps = await stage.steps(PROMPT, LONG, speculation)
        assert max(call.num_pre_drafts for call in calls) == num_outcomes
        assert any(step.pre_draft for step in steps) is (num_outcomes > 0)


async def test_requests_may_differ_in_their_number_of_outcomes():
    async with overlapped(max_sequences=3) as stage:
        counts: tuple[int | Literal["auto"], ...] = (0, 1, "auto")
        streams = [
            stage.steps([n, 7], LONG, replace(PRE_DRAFTING, num_outcomes=count))
            for n, count in enumerate(counts)
        ]
        none, one, auto = await asyncio.gather(*streams)
        assert {step.pre_draft for step in none} == {None}
        assert {"hit", "miss"} & {step.pre_draft for step in one}
        assert {"hit", "miss"} & {step.pre_draft for step in auto}


async def test_no_outcome_that_ends_the_request_is_pre_drafted():
    stop = SamplingParams(max_tokens=60)
    async with overlapped(strategy=always_right) as stage:
        for prompt in ([n, n + 1] for n in range(1, 9)):
            steps = await stage.steps(prompt, stop, ALL_OUTCOMES)
            assert steps[-1].pre_draft is None
        eos = stage.verifier.info.eos_token_ids[0]
        asked = [r for b in stage.drafter.batches for r in b]
        assert not any(eos in r.prefix[2:] for r in asked)
        assert all(len(r.prefix) <= 2 + 60 - 2 for r in asked)


async def test_a_bug_in_the_ranking_costs_pre_drafts_only(quiet, monkeypatch):
    async with overlapped() as stage:
        monkeypatch.setattr(OutcomeRanking, "rank", lambda *_: 1 / 0)
        steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
        assert {step.pre_draft for step in steps} == {None}
        assert all(step.num_tree_nodes for step in steps[:-2])


async def test_no_request_waits_for_a_pre_draft_that_was_never_sent(quiet, monkeypatch):
    draft_request, numbers = Request.draft_request, itertools.count()

    def every_other(self: Request, *args: Any) -> DraftRequest:
        if next(numbers) % 2:
            raise ValueError("a bug")
        return draft_request(self, *args)

    monkeypatch.setattr(Request, "draft_request", every_other)
    async with overlapped(strategy=always_right) as stage:
        assert await stage.tokens(PROMPT, LONG, PRE_DRAFTING) == stage.plain(PROMPT, LONG)
        assert next(numbers) > 1


# ---- how many pay


async def test_pre_drafts_that_would_delay_the_verdict_are_not_made():
    async with overlapped(strategy=always_right, hit_rate=0.2) as stage:
        slow_down(stage.verifier, "verify", 0.001)
        slow_down(stage.drafter, "draft", 0.02)
        speculation = replace(PRE_DRAFTING, num_outcomes="auto")
        steps = await stage.steps(PROMPT, LONG, speculation)
        assert {step.pre_draft for step in steps[8:]} == {None}


async def test_as_many_are_pre_drafted_as_fit_behind_the_verification():
    async with overlapped(strategy=right_and_sure) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(stage.drafter, "draft", 0.003)
        calls = watch_drafts(stage)
        speculation = replace(PRE_DRAFTING, num_outcomes="auto")
        steps = await stage.steps(PROMPT, LONG, speculation)
        assert len(calls) > 20
        assert {call.num_pre_drafts for call in calls[12:]} <= {*range(1, 8)}, "7 take 21 ms"
        assert [step.pre_draft for step in steps].count("hit") > 0.5 * len(steps)


def watch_busy_time(drafter: Any) -> BusyTime:
    """Return the time that a drafter has a call in flight."""
    busy, draft = BusyTime(), drafter.draft

    async def timed(requests: Sequence[DraftRequest]) -> Any:
        busy.begin(time.monotonic())
        try:
            return await draft(requests)
        finally:
            busy.end(time.monotonic())

    drafter.draft = timed
    return busy


@pytest.mark.parametrize("shared", [False, True])
def test_roles_that_share_a_processor_are_not_overlapped(shared):
    """Nothing is gained where a verification takes longer by all the drafting beside it."""

    async def rate(num_outcomes: Any) -> tuple[float, int]:
        async with overlapped(strategy=right_and_sure) as stage:
            slow_down(stage.drafter, "draft", 0.005)
            busy = watch_busy_time(stage.drafter)
            verify = stage.verifier.verify

            async def crowded(requests: Sequence[Any]) -> Any:
                began = time.monotonic()
                drafted = busy.seconds(began)
                await asyncio.sleep(0.02)
                while (done := busy.seconds(time.monotonic()) - drafted) > 1e-9 and shared:
                    drafted += done
                    await asyncio.sleep(done)
                return await verify(requests)

            stage.verifier.verify = crowded  # type: ignore[method-assign]
            await stage.coordinator.profile()
            speculation = replace(PRE_DRAFTING, num_outcomes=num_outcomes)
            steps = await stage.steps(PROMPT, FOREVER, speculation)
            learnt = steps[20:]
            seconds = sum(step.step_seconds for step in learnt)
            tokens = sum(step.num_committed_tokens for step in learnt)
            return tokens / seconds, sum(step.pre_draft is not None for step in learnt)

    auto, num_tried = run_in_virtual_time(rate("auto"))
    none, _ = run_in_virtual_time(rate(0))
    three, _ = run_in_virtual_time(rate(3))
    if shared:
        assert three < none, "pre-drafting costs speed here"
        assert auto > 0.95 * none and num_tried < 80
    else:
        assert auto > 1.15 * none
