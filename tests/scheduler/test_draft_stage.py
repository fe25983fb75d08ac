"""The draft stage: a drafter or a bug that fails costs drafts, never a request or a token."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest

from diffuspec.core.config import DraftLengthConfig
from diffuspec.core.errors import DrafterError, RequestCancelledError
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, Verdict, VerifyRequest
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import Step
from diffuspec.speculation.acceptance import Acceptance
from diffuspec.speculation.costs import DraftCosts
from diffuspec.speculation.outcomes import OutcomeRanking
from tests.support.fakes import INVALID, HangingDrafter, always_right, empty
from tests.support.stage import (
    FOREVER,
    PRE_DRAFTING,
    PROMPT,
    fake_drafters,
    on_a_pool,
    on_stage,
    rest_of,
    slow_down,
    until,
)

LONG_PROMPT = [n % 50 for n in range(100)]

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def test_a_long_prompt_has_its_first_token_before_the_drafter_reads_it():
    async with on_stage(prefill_chunk_tokens=16) as stage:
        stage.drafter.gate.close()
        stream = stage.stream(LONG_PROMPT)
        tokens = list((await anext(stream)).token_ids)
        assert len(tokens) == 1 and len(stage.verifier.batches) == 7
        stage.drafter.gate.open()
        assert tokens + await rest_of(stream) == stage.plain(LONG_PROMPT)
        assert stage.drafter.num_calls > 1
        assert min(len(r.prefix) for batch in stage.drafter.batches for r in batch) >= 100


async def test_empty_drafts_are_no_fault_and_do_not_shorten_later_drafts():
    def late(rng: random.Random, request: DraftRequest, truth: list[int]) -> Draft:
        is_ready = len(request.prefix) > len(PROMPT) + 2
        return (always_right if is_ready else empty)(rng, request, truth)

    async with on_stage() as stage:
        stage.drafter.strategy = late
        steps = await stage.steps(PROMPT, FOREVER, SpeculationParams(policy="paper"))
        assert {step.fallback for step in steps} == {None}
        assert steps[3].num_draft_tokens == DraftLengthConfig().max_draft_tokens
        assert not any(step.num_draft_tokens for step in steps[:3])


async def test_a_drafter_of_verified_prefixes_only_is_asked_again_after_the_verdict():
    async with on_stage(overlap=True) as stage:
        verify, under_way = stage.verifier.verify, list[bool]()

        async def verify_slowly(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            under_way.append(True)
            await asyncio.sleep(0.05)
            under_way.clear()
            return await verify(requests)

        def unless_hypothetical(
            rng: random.Random, request: DraftRequest, truth: list[int]
        ) -> Draft:
            return (empty if under_way else always_right)(rng, request, truth)

        stage.verifier.verify = verify_slowly  # type: ignore[method-assign]
        stage.drafter.strategy = unless_hypothetical
        steps = (await stage.steps(PROMPT, FOREVER, PRE_DRAFTING))[2:-1]
        assert any(step.pre_draft for step in steps), "pre-drafts were made"
        assert {step.num_accepted_tokens for step in steps} == {4}


# ---- drafters that fail


@pytest.mark.parametrize("error", [DrafterError("no memory"), ValueError("a bug")])
async def test_a_failing_drafter_changes_no_token_and_is_not_asked_at_every_step(error, quiet):
    async with on_stage() as stage:
        stage.drafter.error = error
        steps = await stage.steps()
        assert steps[0].fallback == "drafter_error"
        assert {step.fallback for step in steps[1:-1]} == {"drafter_unavailable"}
        assert stage.drafter.num_calls == 1, "the breaker keeps it from being asked again"
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 22


@pytest.mark.parametrize("strategy", INVALID)
async def test_an_invalid_draft_is_dropped_for_its_request_alone(strategy, quiet):
    async with on_stage() as stage:
        honest = stage.drafter.strategy

        def mixed(rng: Any, request: DraftRequest, truth: list[int]) -> Draft:
            return (strategy if request.prefix[0] == 9 else honest)(rng, request, truth)

        stage.drafter.strategy = mixed
        bad, good = await asyncio.gather(stage.tokens([9]), stage.tokens())
        assert (bad, good) == (stage.plain([9]), stage.plain())
        assert stage.metric("fallback_total", reason="invalid_draft") > 0
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 0


async def test_a_hanging_drafter_delays_a_request_by_one_deadline_in_all(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_draft_seconds=5) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        began = time.monotonic()
        steps = await stage.steps(PROMPT, FOREVER)
        assert drafter.num_calls > 2, "health checks are made"
        assert time.monotonic() - began == pytest.approx(5 + FOREVER.max_tokens * 0.05)
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        assert not stage.coordinator.loop.learner.costs.drafters[""].is_known
        busy = sum(step.step_seconds - step.draft_idle_seconds for step in steps)
        assert busy == pytest.approx(5), "a health check does not count as drafting"


async def test_requests_queued_behind_a_hanging_drafter_wait_for_one_deadline_only(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_sequences=2, max_draft_seconds=0.05) as stage:
        first = stage.start([1])
        await drafter.is_asked.wait()
        second = stage.start([2])
        assert await first == stage.plain([1]) and await second == stage.plain([2])
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        assert stage.metric("fallback_total", reason="drafter_unavailable") > 1


# ---- health checks


async def test_a_drafter_that_recovers_drafts_again_for_the_same_request(quiet):
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.05)
        stage.drafter.error = DrafterError("for a while")
        stream = stage.stream(PROMPT, FOREVER)
        async with aclosing(stream):
            first = await anext(stream)
            stage.drafter.error = None
            async for output in stream:
                if output.num_accepted_tokens:
                    break
        assert first.step.fallback == "drafter_error"
        assert output.step.fallback is None


async def test_a_health_check_is_one_draft_and_no_request_waits_for_it(quiet):
    async with on_stage(max_sequences=4) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        stage.drafter.error = DrafterError("for a while")
        tasks = [stage.start([n, 7], FOREVER) for n in range(4)]
        await until(lambda: stage.metric("fallback_total", reason="drafter_error") > 0)
        stage.drafter.gate.close()
        await stage.drafter.gate.arrival()
        num_calls, num_steps = stage.drafter.num_calls, len(stage.verifier.batches)
        await until(lambda: len(stage.verifier.batches) > num_steps + 10)
        assert stage.drafter.num_calls == num_calls, "no other call while a check is under way"
        assert len(stage.drafter.batches[-1]) == 1
        assert {len(batch) for batch in stage.verifier.batches[num_steps:]} == {4}, "all go on"
        stage.drafter.error = None
        stage.drafter.gate.open()
        for n, task in enumerate(tasks):
            assert await task == stage.plain([n, 7], FOREVER)
        assert max(len(batch) for batch in stage.drafter.batches[num_calls:]) > 1


@pytest.mark.parametrize("end", ["cancelled", "finished"])
async def test_a_health_check_ends_with_its_request_and_the_next_request_makes_another(end, quiet):
    async with on_stage(max_sequences=2) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        stage.drafter.error = DrafterError("for a while")
        task = stage.start([1], FOREVER)
        await until(lambda: stage.metric("fallback_total", reason="drafter_error") > 0)
        stage.drafter.gate.close()
        await stage.drafter.gate.arrival()
        if end == "cancelled":
            task.cancel()
        await asyncio.wait([task])
        await until(lambda: stage.drafter.released)
        stage.drafter.error = None
        stage.drafter.gate.open()
        steps = await stage.steps([2])
        assert any(step.num_tree_nodes for step in steps)


async def test_a_health_check_under_way_is_cancelled_at_shutdown(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_draft_seconds=0.02) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        task = stage.start(PROMPT, FOREVER)
        await until(lambda: drafter.was_cancelled)
        drafter.was_cancelled = False
        await until(lambda: drafter.num_calls == 2)
    assert drafter.was_cancelled
    with pytest.raises(RequestCancelledError):
        await task


# ---- bugs


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Request, "take_draft"),
        (Request, "draft_request"),
        (Request, "expect_outcomes"),
        (Acceptance, "observe_draft"),
        (Learner, "on_drafts"),
        (DraftCosts, "seconds"),
        (OutcomeRanking, "rank"),
        (OutcomeRanking, "observe"),
    ],
)
@pytest.mark.parametrize("period", [1, 3])
async def test_a_bug_in_the_draft_stage_ends_no_request(owner, name, period, monkeypatch, quiet):
    """Every `period`-th call of a method raises."""
    method, numbers = getattr(owner, name), itertools.count(1)

    def buggy(*args: Any, **kwargs: Any) -> Any:
        if next(numbers) % period == 0:
            raise ValueError("a bug")
        return method(*args, **kwargs)

    monkeypatch.setattr(owner, name, buggy)
    async with on_a_pool(fake_drafters(2), overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        await stage.check_requests(2, speculation=PRE_DRAFTING)
        await stage.check_requests(2, speculation=SpeculationParams())
        await until(lambda: not stage.leftovers())
    assert next(numbers) >= period


async def test_a_bug_in_the_draft_stage_costs_one_draft(monkeypatch, quiet):
    note_states, numbers = Request.note_states, itertools.count()

    def buggy(*args: Any) -> None:
        if next(numbers) == 1:
            raise ValueError("a bug")
        note_states(*args)

    monkeypatch.setattr(Request, "note_states", buggy)
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.6)  # longer than the pause before a health check
        fallbacks = [step.fallback for step in await stage.steps()]
        assert fallbacks.count("drafter_error") == 1
        assert fallbacks[:4] == [None, "drafter_error", "drafter_unavailable", None]


async def test_after_a_bug_that_ends_all_requests_every_drafter_is_used_again(monkeypatch):
    drafters = fake_drafters(2)
    async with on_a_pool(drafters) as stage:
        slow_down(drafters[1], "draft", 1.0)
        with monkeypatch.context() as patch:
            patch.setattr(Request, "note_states", lambda *_: 1 / 0)
            patch.setattr(Step, "skip", lambda *_: [][0])
            tasks = [stage.start([n]) for n in range(2)]
            done, _ = await asyncio.wait(tasks)
            assert all(task.exception() for task in done)
        calls = [drafter.num_calls for drafter in drafters]
        await stage.check_requests(2)
        assert all(d.num_calls > before for d, before in zip(drafters, calls, strict=True))
