"""Pre-drafts in the whole loop: hits, misses, failures and cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import DrafterError
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.scheduler.coordinator import MAX_UNREAD_OUTPUTS
from diffuspec.scheduler.step import PreDrafts
from diffuspec.speculation.outcomes import Outcome
from diffuspec.speculation.values import DraftTicket, PossibleOutcome
from tests.support.fakes import (
    FakeDrafter,
    FakeVerifier,
    always_right,
    oracle_of,
    right_and_sure,
    sometimes_right,
)
from tests.support.stage import (
    ALL_OUTCOMES,
    FOREVER,
    LONG,
    PRE_DRAFTING,
    PROMPT,
    SHORT,
    UNAVAILABLE,
    hold_first_pre_drafts,
    on_stage,
    overlapped,
    rest_of,
    slow_down,
    until,
    watch_drafts,
)

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


def test_the_outcome_that_happened_is_a_hit_and_the_others_are_wasted() -> None:
    outcomes = [Outcome(-1, token) for token in (7, 8)]
    pre_drafts = PreDrafts([PossibleOutcome(outcome, 0.5, room=9) for outcome in outcomes])
    first, second = (
        pre_drafts.send(DraftTicket("a", length, outcome))
        for length, outcome in zip((4, 3), outcomes, strict=True)
    )
    assert not pre_drafts.untried
    assert pre_drafts.hit is None and pre_drafts.num_wasted_tokens == 7
    pre_drafts.happened = outcomes[0]
    assert (pre_drafts.hit, pre_drafts.result) == (first, "hit")
    assert pre_drafts.num_wasted_tokens == 3
    assert not pre_drafts.lose(second), "no request waits for a miss"
    assert pre_drafts.lose(first) and not pre_drafts.lose(first)
    assert pre_drafts.result == "miss" and pre_drafts.num_wasted_tokens == 7


def test_a_verification_without_pre_drafts_is_neither_hit_nor_miss() -> None:
    pre_drafts = PreDrafts(())
    pre_drafts.happened = Outcome(-1, 7)
    assert pre_drafts.result is None and pre_drafts.num_wasted_tokens == 0


# ---- hits and misses


async def test_a_hit_saves_a_draft_just_in_time():
    async with overlapped() as stage:
        calls = watch_drafts(stage)
        steps = await stage.steps(PROMPT, LONG, ALL_OUTCOMES)
        results = [step.pre_draft for step in steps]
        assert results[-1] is None, "no draft follows the last verdict"
        assert results.count("hit") > 0.8 * len(results)
        num_hits = results.count("hit")
        num_drafts = sum(step.num_tree_nodes > 0 for step in steps)
        num_just_in_time = sum(call.num_awaited for call in calls)
        assert num_just_in_time == num_drafts - num_hits
        assert stage.metric("pre_drafts_total", result="hit") == num_hits


async def test_a_miss_is_drafted_just_in_time():
    async with overlapped(hit_rate=0.0) as stage:
        steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
        assert {step.pre_draft for step in steps} <= {"miss", "hit", None}
        misses = [i for i, step in enumerate(steps) if step.pre_draft == "miss"]
        assert len(misses) > 0.5 * len(steps)
        assert all(step.num_tree_nodes and step.fallback is None for step in steps[:-1])


async def test_a_request_may_have_hits_and_misses():
    async with overlapped(hit_rate=0.5) as stage:
        steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
        assert {"hit", "miss"} <= {step.pre_draft for step in steps}


async def test_one_position_more_is_drafted_than_verified():
    async with overlapped(strategy=always_right) as stage:
        steps = await stage.steps(PROMPT, LONG, ALL_OUTCOMES)
        assert {step.num_tree_nodes for step in steps[:-1]} == {4}
        assert {step.pre_draft for step in steps[:-1]} == {"hit"}


async def test_hits_go_on_while_misses_are_drafted():
    async with overlapped(hit_rate=0.6, max_sequences=4) as stage:
        streams = [stage.steps([n, 7], LONG, PRE_DRAFTING) for n in range(4)]
        results = {step.pre_draft for steps in await asyncio.gather(*streams) for step in steps}
        assert results == {"hit", "miss", None}
        mixed = [b for b in stage.drafter.batches if len({r.request_id for r in b}) > 1]
        assert mixed, "pre-drafts of several requests share a batch"


# ---- verdicts before drafts


async def test_a_hit_waits_for_its_pre_draft_on_its_way():
    async with overlapped(strategy=always_right) as stage:
        hold_first_pre_drafts(stage)
        stage.verifier.gate.close()
        task = stage.start(PROMPT, SHORT, ALL_OUTCOMES)
        await stage.drafter.gate.arrival()
        stage.verifier.gate.open()
        await until(lambda: stage.metric("pre_drafts_total", result="hit") == 1)
        assert len(stage.drafter.batches) == 2 and len(stage.verifier.batches) == 1
        stage.drafter.gate.open()
        assert await task == stage.plain()
        assert stage.metric("pre_drafts_total", result="miss") <= 1


async def test_a_miss_does_not_take_a_pre_draft_on_its_way():
    async with overlapped(strategy=always_right, hit_rate=0.0) as stage:
        hold_first_pre_drafts(stage)
        stage.verifier.gate.close()
        task = stage.start(PROMPT, SHORT, PRE_DRAFTING)
        await stage.drafter.gate.arrival()
        stage.verifier.gate.open()
        await until(lambda: stage.metric("pre_drafts_total", result="miss") == 1)
        stage.drafter.gate.open()
        assert await task == stage.plain()


# ---- failures


class FailingPreDrafts(FakeDrafter):
    """Fails at every call for several drafts."""

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if len(requests) > 1:
            await self.gate.passage()
            raise DrafterError("out of memory")
        return await super().draft(requests)


async def test_failing_pre_drafts_pause_while_drafts_just_in_time_go_on(quiet):
    drafter = FailingPreDrafts(oracle_of(FakeVerifier()), sometimes_right)
    async with on_stage(drafter, overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        calls = watch_drafts(stage)
        steps = await stage.steps(PROMPT, FOREVER, PRE_DRAFTING)
        num_drafted = sum(step.num_tree_nodes > 0 for step in steps)
        assert num_drafted > 0.7 * len(steps), "drafts just in time go on"
        num_tries = sum(call.num_pre_drafts > 0 for call in calls)
        assert 1 < num_tries < 0.5 * len(steps), "pre-drafts are tried again, after a pause"
        assert "drafter_unavailable" not in {step.fallback for step in steps}


async def test_a_hit_whose_pre_draft_fails_on_its_way_goes_on_without_a_draft(quiet):
    drafter = FailingPreDrafts(oracle_of(FakeVerifier()), always_right)
    async with on_stage(drafter, overlap=True) as stage:
        hold_first_pre_drafts(stage)
        stage.verifier.gate.close()
        stream = stage.stream(PROMPT, SHORT, ALL_OUTCOMES)
        first = asyncio.ensure_future(anext(stream))
        await stage.drafter.gate.arrival()
        stage.verifier.gate.open()
        tokens = list((await first).token_ids)
        stage.drafter.gate.open()
        second = await anext(stream)
        assert second.step.fallback == "drafter_error"
        tokens += second.token_ids
        assert tokens + await rest_of(stream) == stage.plain()


@pytest.mark.parametrize("hit_rate", [0.0, 1.0])
async def test_a_drafter_that_hangs_over_pre_drafts_delays_a_request_once(hit_rate, quiet):
    async with overlapped(always_right, hit_rate, max_draft_seconds=5) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        hold_first_pre_drafts(stage)
        steps = await stage.steps(PROMPT, FOREVER, ALL_OUTCOMES)
        delayed = [step for step in steps if step.step_seconds > 1]
        assert len(delayed) == 1 and delayed[0].step_seconds < 5.1
        assert stage.drafter.num_calls > 3, "trials are made"


async def test_an_invalid_pre_draft_is_dropped(quiet):
    async with overlapped(strategy=always_right) as stage:
        honest = stage.drafter.draft

        async def invalid_pre_drafts(requests: Sequence[DraftRequest]) -> list[Draft]:
            drafts = await honest(requests)
            if len(requests) > 1:
                return [replace(draft, tree=chain([10**6] * 4)) for draft in drafts]
            return drafts

        stage.drafter.draft = invalid_pre_drafts
        steps = await stage.steps(PROMPT, LONG, PRE_DRAFTING)
        assert "invalid_draft" in {step.fallback for step in steps}


@pytest.mark.parametrize("moment", ["verifying", "pre-drafting", "waiting for a pre-draft"])
async def test_a_cancelled_request_drops_its_pre_drafts(moment):
    async with overlapped(max_sequences=1, strategy=always_right) as stage:
        if moment != "verifying":
            hold_first_pre_drafts(stage)
        stage.verifier.gate.close()
        task = stage.start(PROMPT, FOREVER, ALL_OUTCOMES)
        waits_at = stage.verifier if moment == "verifying" else stage.drafter
        await waits_at.gate.arrival()
        if moment == "waiting for a pre-draft":
            stage.verifier.gate.open()
            await until(lambda: stage.metric("pre_drafts_total", result="hit") == 1)
        task.cancel()
        await asyncio.wait([task])
        stage.verifier.gate.open()
        stage.drafter.gate.open()
        await until(lambda: not stage.verifier.held and stage.drafter.released)
        assert len(stage.verifier.batches) == 1
        assert await stage.tokens([9], SHORT, PRE_DRAFTING) == stage.plain([9])
        await until(lambda: not stage.leftovers())


async def test_closing_a_stream_in_the_middle_of_hits_keeps_nothing_of_it():
    async with overlapped(max_sequences=1) as stage:
        stream = stage.stream(PROMPT, FOREVER, PRE_DRAFTING)
        async with aclosing(stream):
            for _ in range(6):
                await anext(stream)
        await until(lambda: not stage.verifier.held)
        assert await stage.tokens([9], SHORT, PRE_DRAFTING) == stage.plain([9])
        await until(lambda: not stage.leftovers())


async def test_pre_drafts_that_arrive_do_not_let_a_request_go_on_before_its_reader():
    async with overlapped() as stage:
        slow_down(stage.drafter, "draft", 0.02)
        slow_down(stage.verifier, "verify", 0.05)
        stream = stage.stream(PROMPT, FOREVER, PRE_DRAFTING)
        tokens = list((await anext(stream)).token_ids)
        await asyncio.sleep(60)
        [held] = stage.coordinator.admission.running
        assert (held.progress.state, held.progress.waits_for) == ("waiting", "its reader")
        assert held.outputs.num_unread == MAX_UNREAD_OUTPUTS
        assert tokens + await rest_of(stream) == stage.plain(PROMPT, FOREVER)


async def test_pre_drafts_outlive_an_outage_of_the_verifier(quiet):
    async with overlapped(strategy=right_and_sure) as stage:
        stage.verifier.gate.close()
        stream = stage.stream(PROMPT, SHORT, PRE_DRAFTING)
        first = asyncio.ensure_future(anext(stream))
        await stage.verifier.gate.arrival()
        await until(lambda: len(stage.drafter.batches) == 2)
        stage.verifier.error = UNAVAILABLE
        stage.verifier.gate.open()
        await asyncio.sleep(0.02)
        stage.verifier.error = None
        tokens = list((await first).token_ids)
        assert first.result().step.pre_draft == "hit"
        assert tokens + await rest_of(stream) == stage.plain()
