"""Drafts ahead of verdicts, in the whole loop: hits, misses, and everything that goes wrong."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Literal

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.coordinator.request import Request
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import DrafterError, VerifierUnavailableError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import MAX_ALTERNATIVES, Draft, DraftRequest, StepStats
from tests.support.fakes import (
    FAKE_TARGET,
    FakeDrafter,
    FakeVerifier,
    always_right,
    oracle_of,
    right_and_sure,
    sometimes_right,
)
from tests.support.stage import FOREVER, PROMPT, SHORT, Stage, slow_down, until
from tests.support.virtual_time import run_in_virtual_time

AHEAD = SpeculationParams(policy="fixed", num_draft_tokens=4, num_outcomes=4)
LONG = SamplingParams(max_tokens=120, ignore_eos=True)

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


@asynccontextmanager
async def overlapped(
    foresight: float = 1.0,
    max_sequences: int = 2,
    strategy: Any = sometimes_right,
    overlap: bool = True,
    **config: Any,
) -> AsyncIterator[Stage]:
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=max_sequences))
    drafter = FakeDrafter(oracle_of(verifier), strategy, foresight=foresight)
    settings = CoordinatorConfig(overlap=overlap, **config)
    async with Coordinator(verifier, drafter, settings, DraftLengthConfig()) as coordinator:
        yield Stage(coordinator, verifier, drafter)


async def steps_of(stage: Stage, *args: Any, **kwargs: Any) -> list[StepStats]:
    """The steps of a request whose tokens are right."""
    increments = [step async for step in stage.stream(*args, **kwargs)]
    tokens = [i for increment in increments for i in increment.token_ids]
    assert tokens == stage.plain(*args[:2])
    return [increment.step for increment in increments]


def watch(stage: Stage, on_ahead: Callable[[], None] = lambda: None) -> list[tuple[int, int]]:
    """Return a list that grows by each drafted batch: (waited for, made ahead)."""
    drafts, sizes = stage.coordinator._drafts, []
    ask = drafts._ask

    async def watched(lane: Any, requests: Any, jobs: Any) -> Any:
        sizes.append((len(requests), len(jobs)))
        if jobs:
            on_ahead()
        return await ask(lane, requests, jobs)

    drafts._ask = watched  # type: ignore[method-assign]
    return sizes


def hold_ahead(stage: Stage) -> None:
    """Close the drafter's gate in front of the first drafts ahead."""
    is_first = itertools.chain([True], itertools.repeat(False))
    watch(stage, lambda: stage.drafter.gate.close() if next(is_first) else None)


# ---- hits and misses


async def test_what_is_foreseen_is_there_when_the_verdict_comes():
    async with overlapped() as stage:
        sizes = watch(stage)
        steps = await steps_of(stage, PROMPT, LONG, replace(AHEAD, num_outcomes=16))
        results = [step.pre_draft for step in steps]
        assert results[-1] is None, "no draft follows the last verdict"
        assert results.count("hit") > 0.8 * len(results)
        num_hits = results.count("hit")
        num_waited_for = sum(waited_for for waited_for, _ in sizes)
        num_drafts = sum(step.num_tree_nodes > 0 for step in steps)
        assert num_waited_for == num_drafts - num_hits, "every other draft is made just in time"
        assert stage.metric("pre_drafts_total", result="hit") == num_hits


async def test_what_is_not_foreseen_is_drafted_just_in_time():
    async with overlapped(foresight=0.0) as stage:
        steps = await steps_of(stage, PROMPT, LONG, AHEAD)
        assert {step.pre_draft for step in steps} <= {"miss", "hit", None}
        misses = [i for i, step in enumerate(steps) if step.pre_draft == "miss"]
        assert len(misses) > 0.5 * len(steps)
        assert all(step.num_tree_nodes and step.fallback is None for step in steps[:-1])


async def test_some_are_foreseen_and_some_are_not():
    async with overlapped(foresight=0.5) as stage:
        steps = await steps_of(stage, PROMPT, LONG, AHEAD)
        assert {"hit", "miss"} <= {step.pre_draft for step in steps}


async def test_drafts_ahead_share_a_batch_and_ask_for_alternatives():
    async with overlapped() as stage:
        await steps_of(stage, PROMPT, SHORT, AHEAD)
        ahead = stage.drafter.batches[1]
        assert len(ahead) == 4 and len({r.request_id for r in ahead}) == 1
        assert len({r.prefix.tobytes() for r in ahead}) == 4
        assert all(r.prefix[: len(PROMPT)].tolist() == PROMPT for r in ahead)
        assert {r.num_alternatives for r in ahead} == {MAX_ALTERNATIVES}
        assert {r.num_draft_tokens for r in ahead} == {5}, "one more than is verified"


async def test_without_overlap_nothing_is_drafted_ahead_or_asked_for_it():
    async with overlapped(overlap=False) as stage:
        steps = await steps_of(stage, PROMPT, LONG, AHEAD)
        assert {step.pre_draft for step in steps} == {None}
        assert {len(batch) for batch in stage.drafter.batches} == {1}
        assert {r.num_alternatives for b in stage.drafter.batches for r in b} == {0}
        assert {r.num_draft_tokens for b in stage.drafter.batches for r in b} <= {1, 2, 3, 4}


@pytest.mark.parametrize("num_outcomes", [0, 1, 3, 16])
async def test_no_more_outcomes_are_drafted_than_asked_for(num_outcomes):
    async with overlapped(foresight=0.3) as stage:
        sizes = watch(stage)
        speculation = replace(AHEAD, num_outcomes=num_outcomes)
        steps = await steps_of(stage, PROMPT, LONG, speculation)
        assert max(num_ahead for _, num_ahead in sizes) == num_outcomes
        assert any(step.pre_draft for step in steps) is (num_outcomes > 0)


async def test_what_was_drafted_in_vain_is_counted():
    async with overlapped() as stage:
        steps = await steps_of(stage, PROMPT, LONG, AHEAD)
        for step in steps:
            if step.pre_draft == "hit":
                assert step.num_wasted_draft_tokens <= 3 * 4
        asked = sum(r.num_draft_tokens - 1 for b in stage.drafter.batches for r in b)
        used = sum(step.num_draft_tokens for step in steps)
        wasted = sum(step.num_wasted_draft_tokens for step in steps)
        assert wasted == asked - used
        assert stage.metric("wasted_draft_tokens_total") == wasted


async def test_nothing_is_drafted_beyond_the_end_of_a_request():
    stop = SamplingParams(max_tokens=60)
    async with overlapped(strategy=always_right) as stage:
        for prompt in ([n, n + 1] for n in range(1, 9)):
            steps = await steps_of(stage, prompt, stop, replace(AHEAD, num_outcomes=16))
            assert steps[-1].pre_draft is None
        eos = stage.verifier.info.eos_token_ids[0]
        asked = [r for b in stage.drafter.batches for r in b]
        assert not any(eos in r.prefix[2:] for r in asked)
        assert all(len(r.prefix) <= 2 + 60 - 2 for r in asked)


async def test_one_position_more_is_drafted_than_verified():
    async with overlapped(strategy=always_right) as stage:
        steps = await steps_of(stage, PROMPT, LONG, replace(AHEAD, num_outcomes=16))
        assert {step.num_tree_nodes for step in steps[:-1]} == {4}
        assert {step.pre_draft for step in steps[:-1]} == {"hit"}


# ---- several sequences


async def test_hits_go_on_while_misses_are_drafted():
    async with overlapped(foresight=0.6, max_sequences=4) as stage:
        streams = [steps_of(stage, [n, 7], LONG, AHEAD) for n in range(4)]
        results = {step.pre_draft for steps in await asyncio.gather(*streams) for step in steps}
        assert results == {"hit", "miss", None}
        mixed = [b for b in stage.drafter.batches if len({r.request_id for r in b}) > 1]
        assert mixed, "drafts ahead of several requests share a batch"


async def test_requests_may_differ_in_how_far_they_look():
    async with overlapped(max_sequences=3) as stage:
        counts: tuple[int | Literal["auto"], ...] = (0, 1, "auto")
        streams = [
            steps_of(stage, [n, 7], LONG, replace(AHEAD, num_outcomes=count))
            for n, count in enumerate(counts)
        ]
        none, one, auto = await asyncio.gather(*streams)
        assert {step.pre_draft for step in none} == {None}
        assert {"hit", "miss"} & {step.pre_draft for step in one}
        assert {"hit", "miss"} & {step.pre_draft for step in auto}


# ---- verdicts before drafts


async def test_a_verdict_waits_for_its_draft_when_that_is_on_its_way():
    async with overlapped(strategy=always_right) as stage:
        hold_ahead(stage)
        stage.verifier.gate.close()
        task = stage.start(PROMPT, SHORT, replace(AHEAD, num_outcomes=16))
        await stage.drafter.gate.arrival()
        stage.verifier.gate.open()
        await until(lambda: stage.metric("pre_drafts_total", result="hit") == 1)
        assert len(stage.drafter.batches) == 2 and len(stage.verifier.batches) == 1
        stage.drafter.gate.open()
        assert await task == stage.plain()
        assert stage.metric("pre_drafts_total", result="miss") <= 1


async def test_a_verdict_that_was_not_foreseen_does_not_take_a_draft_on_its_way():
    async with overlapped(strategy=always_right, foresight=0.0) as stage:
        hold_ahead(stage)
        stage.verifier.gate.close()
        task = stage.start(PROMPT, SHORT, AHEAD)
        await stage.drafter.gate.arrival()
        stage.verifier.gate.open()
        await until(lambda: stage.metric("pre_drafts_total", result="miss") == 1)
        stage.drafter.gate.open()
        assert await task == stage.plain()


# ---- what goes wrong


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


class FailingAhead(FakeDrafter):
    """Fails whenever it is asked for several drafts at once."""

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        if len(requests) > 1:
            await self.gate.passage()
            raise DrafterError("out of memory")
        return await super().draft(requests)


async def test_drafts_ahead_that_fail_are_given_up_for_a_while_and_others_go_on(quiet):
    async with overlapped() as stage:
        slow_down(stage.verifier, "verify", 0.05)
        stage.drafter.__class__ = FailingAhead
        sizes = watch(stage)
        steps = await steps_of(stage, PROMPT, FOREVER, AHEAD)
        num_drafted = sum(step.num_tree_nodes > 0 for step in steps)
        assert num_drafted > 0.7 * len(steps), "drafts that are waited for go on"
        num_ahead = sum(num_ahead > 0 for _, num_ahead in sizes)
        assert 1 < num_ahead < 0.5 * len(steps), "it is tried again, after a pause"
        assert "drafter_unavailable" not in {step.fallback for step in steps}


async def test_a_ranking_that_fails_costs_drafts_ahead_only(quiet, monkeypatch):
    async with overlapped() as stage:
        ranking = "diffuspec.coordinator.pre_draft_planner.OutcomeRanking.rank"
        monkeypatch.setattr(ranking, lambda *_: 1 / 0)
        steps = await steps_of(stage, PROMPT, LONG, AHEAD)
        assert {step.pre_draft for step in steps} == {None}
        assert all(step.num_tree_nodes for step in steps[:-2])


async def test_nobody_waits_for_a_draft_ahead_that_was_never_asked_for(quiet, monkeypatch):
    draft_request_after, numbers = Request.draft_request_after, itertools.count()

    def every_other(self: Request, *args: Any) -> DraftRequest:
        if next(numbers) % 2:
            raise ValueError("a bug")
        return draft_request_after(self, *args)

    monkeypatch.setattr(Request, "draft_request_after", every_other)
    async with overlapped(strategy=always_right) as stage:
        assert await stage.tokens(PROMPT, LONG, AHEAD) == stage.plain(PROMPT, LONG)
        assert next(numbers) > 1


async def test_a_verdict_whose_draft_fails_on_its_way_goes_on_without(quiet):
    async with overlapped(strategy=always_right) as stage:
        stage.drafter.__class__ = FailingAhead
        hold_ahead(stage)
        stage.verifier.gate.close()
        stream = stage.stream(PROMPT, SHORT, replace(AHEAD, num_outcomes=16))
        first = asyncio.ensure_future(anext(stream))
        await stage.drafter.gate.arrival()
        stage.verifier.gate.open()
        tokens = list((await first).token_ids)
        stage.drafter.gate.open()
        second = await anext(stream)
        assert second.step.fallback == "drafter_error"
        tokens += second.token_ids
        tokens += [i async for step in stream for i in step.token_ids]
        assert tokens == stage.plain()


@pytest.mark.parametrize("foresight", [0.0, 1.0])
async def test_a_drafter_that_hangs_while_it_drafts_ahead_holds_a_request_up_once(foresight, quiet):
    async with overlapped(foresight, strategy=always_right, max_draft_seconds=5) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        hold_ahead(stage)
        steps = await steps_of(stage, PROMPT, FOREVER, replace(AHEAD, num_outcomes=16))
        held_up = [step for step in steps if step.step_seconds > 1]
        assert len(held_up) == 1 and held_up[0].step_seconds < 5.1
        assert stage.drafter.num_calls > 3, "it is probed"


async def test_nonsense_made_ahead_is_dropped(quiet):
    async with overlapped(strategy=always_right) as stage:
        honest = stage.drafter.draft

        async def lying_ahead(requests: Sequence[DraftRequest]) -> list[Draft]:
            drafts = await honest(requests)
            if len(requests) > 1:
                return [replace(draft, tree=chain([10**6] * 4)) for draft in drafts]
            return drafts

        stage.drafter.draft = lying_ahead
        steps = await steps_of(stage, PROMPT, LONG, AHEAD)
        assert "invalid_draft" in {step.fallback for step in steps}


@pytest.mark.parametrize("alternatives", [((),), (((10**6, -1.0),),) * 5, (((-1, -1.0),),) * 5])
async def test_wrong_alternatives_make_a_wrong_draft(alternatives, quiet):
    async with overlapped(strategy=always_right) as stage:
        honest = stage.drafter._draft
        stage.drafter._draft = lambda request: replace(
            honest(replace(request, num_draft_tokens=4)), alternatives=alternatives
        )
        steps = await steps_of(stage, PROMPT, SHORT, AHEAD)
        assert steps[0].fallback == "invalid_draft"


@pytest.mark.parametrize("moment", ["verifying", "drafting ahead", "waiting for a draft ahead"])
async def test_a_cancelled_request_drops_its_drafts_ahead(moment):
    async with overlapped(max_sequences=1, strategy=always_right) as stage:
        if moment != "verifying":
            hold_ahead(stage)
        stage.verifier.gate.close()
        task = stage.start(PROMPT, FOREVER, replace(AHEAD, num_outcomes=16))
        waits_at = stage.verifier if moment == "verifying" else stage.drafter
        await waits_at.gate.arrival()
        if moment == "waiting for a draft ahead":
            stage.verifier.gate.open()
            await until(lambda: stage.metric("pre_drafts_total", result="hit") == 1)
        task.cancel()
        await asyncio.wait([task])
        stage.verifier.gate.open()
        stage.drafter.gate.open()
        await until(lambda: not stage.verifier.held and stage.drafter.released)
        assert len(stage.verifier.batches) == 1
        assert await stage.tokens([9], SHORT, AHEAD) == stage.plain([9])
        assert not stage.coordinator._drafts._planner._under_way


async def test_drafts_ahead_outlive_an_outage_of_the_verifier(quiet):
    async with overlapped(strategy=right_and_sure) as stage:
        stage.verifier.gate.close()
        stream = stage.stream(PROMPT, SHORT, AHEAD)
        first = asyncio.ensure_future(anext(stream))
        await stage.verifier.gate.arrival()
        await until(lambda: len(stage.drafter.batches) == 2)
        stage.verifier.error = VerifierUnavailableError("the group is being rebuilt")
        stage.verifier.gate.open()
        await asyncio.sleep(0.02)
        stage.verifier.error = None
        tokens = list((await first).token_ids)
        assert first.result().step.pre_draft == "hit"
        tokens += [i async for step in stream for i in step.token_ids]
        assert tokens == stage.plain()


# ---- how many are worth it


async def test_nothing_is_drafted_ahead_that_would_hold_the_verdict_up():
    async with overlapped(strategy=always_right, foresight=0.2) as stage:
        slow_down(stage.verifier, "verify", 0.001)
        slow_down(stage.drafter, "draft", 0.02)
        speculation = replace(AHEAD, num_outcomes="auto")
        steps = await steps_of(stage, PROMPT, LONG, speculation)
        assert {step.pre_draft for step in steps[8:]} == {None}


async def test_as_many_are_drafted_as_fit_behind_the_verification():
    async with overlapped(strategy=right_and_sure) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(stage.drafter, "draft", 0.003)
        sizes = watch(stage)
        speculation = replace(AHEAD, num_outcomes="auto")
        steps = await steps_of(stage, PROMPT, LONG, speculation)
        assert 3 <= max(num_ahead for _, num_ahead in sizes[8:]) <= 12
        assert [step.pre_draft for step in steps].count("hit") > 0.5 * len(steps)


@pytest.mark.parametrize("shared", [False, True])
def test_roles_that_share_a_processor_are_not_overlapped(shared):
    """Where drafting beside a verification makes it that much longer, nothing is gained."""

    async def rate(num_outcomes: Any) -> tuple[float, int]:
        async with overlapped(strategy=right_and_sure) as stage:
            busy = stage.coordinator._draft_busy
            slow_down(stage.drafter, "draft", 0.005)
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
            sampling = SamplingParams(max_tokens=400, ignore_eos=True)
            steps = await steps_of(
                stage, PROMPT, sampling, replace(AHEAD, num_outcomes=num_outcomes)
            )
            late = steps[20:]
            seconds = sum(step.step_seconds for step in late)
            tokens = sum(step.num_committed_tokens for step in late)
            return tokens / seconds, sum(step.pre_draft is not None for step in late)

    auto, num_tried = run_in_virtual_time(rate("auto"))
    none, _ = run_in_virtual_time(rate(0))
    three, _ = run_in_virtual_time(rate(3))
    if shared:
        assert three < none, "the world is as meant"
        assert auto > 0.95 * none and num_tried < 40
    else:
        assert auto > 1.15 * none


async def test_waits_tell_the_controller_that_drafts_are_hidden():
    async with overlapped(strategy=right_and_sure) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        slow_down(stage.drafter, "draft", 0.001)
        await steps_of(stage, PROMPT, LONG, AHEAD)
        assert stage.coordinator._economics.costs.exposed_share < 0.9


async def test_idle_times_show_what_overlap_saves():
    idle = {}
    for overlap in (False, True):
        async with overlapped(strategy=right_and_sure, overlap=overlap) as stage:
            slow_down(stage.verifier, "verify", 0.01)
            slow_down(stage.drafter, "draft", 0.002)
            steps = await steps_of(stage, PROMPT, LONG, replace(AHEAD, num_outcomes=4))
            seconds = sum(step.step_seconds for step in steps)
            idle[overlap] = sum(step.verify_idle_seconds for step in steps) / seconds
            busy = sum(step.step_seconds - step.draft_idle_seconds for step in steps) / seconds
            assert 0 < busy < 1
    assert idle[True] < idle[False]


async def test_closing_a_stream_in_the_middle_of_hits_leaves_nothing_behind():
    async with overlapped(max_sequences=1) as stage:
        stream = stage.stream(PROMPT, FOREVER, AHEAD)
        async with aclosing(stream):
            for _ in range(6):
                await anext(stream)
        await until(lambda: not stage.verifier.held)
        assert await stage.tokens([9], SHORT, AHEAD) == stage.plain([9])
