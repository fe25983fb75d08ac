"""Several drafters: each has its own requests, and none waits for another's drafter."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import DrafterError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.telemetry.trace import Tracer
from tests.support.fakes import (
    FAKE_TARGET,
    FakeDrafter,
    FakeVerifier,
    HangingDrafter,
    oracle_of,
    sometimes_right,
)
from tests.support.stage import FIXED, FOREVER, SHORT, Stage, pool_of, slow_down, until
from tests.telemetry.test_trace import assert_nested, read

AHEAD = replace(FIXED, num_outcomes=4)
LONG = SamplingParams(max_tokens=120, ignore_eos=True)

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def members(count: int) -> list[FakeDrafter]:
    return [FakeDrafter(oracle_of(FakeVerifier()), sometimes_right) for _ in range(count)]


@asynccontextmanager
async def on_a_pool(
    drafters: Sequence[Any] = (), tracer: Tracer | None = None, **config: Any
) -> AsyncIterator[Stage]:
    """A stage whose drafter is a pool."""
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=8))
    pool, settings = pool_of(drafters), CoordinatorConfig(**config)
    async with Coordinator(
        verifier, pool, settings, DraftLengthConfig(), tracer=tracer
    ) as coordinator:
        yield Stage(coordinator, verifier, pool)


async def answer(stage: Stage, count: int, **kwargs: Any) -> None:
    """Let so many requests run side by side; their tokens are right."""
    tasks = [stage.start([n, 7], SHORT, **kwargs) for n in range(count)]
    for n, task in enumerate(tasks):
        assert await task == stage.plain([n, 7])


def asked(drafter: FakeDrafter) -> set[int]:
    """The requests it has drafted for, by the number that their prompts begin with."""
    return {int(one.prefix[0]) for batch in drafter.batches for one in batch}


# ---- who drafts


async def test_members_come_and_go():
    first, second = members(2)
    async with on_a_pool() as stage:
        pool: DrafterPool = stage.drafter
        steps = [step.step async for step in stage.stream()]
        assert {step.fallback for step in steps[:-1]} == {"drafter_unavailable"}
        pool.add(first, "drafter 0")
        await answer(stage, 2)
        await until(lambda: len(first.released) == 2)
        pool.add(second, "drafter 1")
        pool.remove(first)
        pool.remove(first)
        num_calls = first.num_calls
        await answer(stage, 2)
        assert first.num_calls == num_calls and second.num_calls
        assert stage.metric("fallback_total", reason="drafter_error") == 0


async def test_a_member_that_leaves_finishes_what_it_drafts_and_leaves_the_rest_to_others():
    first, second = members(2)
    async with on_a_pool([first]) as stage:
        first.gate.close()
        drafting = stage.start([1])
        await first.gate.arrival()
        waiting = stage.start([2])
        await until(lambda: stage.metric("num_requests_running") == 2)
        stage.drafter.add(second, "drafter 1")
        stage.drafter.remove(first)
        first.gate.open()
        assert await drafting == stage.plain([1]) and await waiting == stage.plain([2])
        assert first.num_calls == 1 and asked(first) == {1} and asked(second) == {1, 2}
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 0


@pytest.mark.parametrize("speculation", [FIXED, AHEAD])
async def test_a_request_stays_where_its_prefix_is_known(speculation):
    drafters = members(3)
    async with on_a_pool(drafters, overlap=True) as stage:
        await answer(stage, 6, speculation=speculation)
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 20
    homes = [asked(drafter) for drafter in drafters]
    assert sorted(map(len, homes)) == [2, 2, 2] and set.union(*homes) == set(range(6))


async def test_load_is_balanced_by_positions():
    drafters = members(2)
    async with on_a_pool(drafters) as stage:
        for drafter in drafters:
            drafter.gate.close()
        lengths = (12, 4, 4, 4)
        tasks = [
            stage.start([n], SHORT, replace(FIXED, num_draft_tokens=length))
            for n, length in enumerate(lengths)
        ]
        await drafters[0].gate.arrival()
        await drafters[1].gate.arrival()
        assert [asked(drafter) for drafter in drafters] == [{0}, {1, 2, 3}]
        for drafter in drafters:
            drafter.gate.open()
        await asyncio.gather(*tasks)


async def test_what_waits_or_is_under_way_counts_as_load():
    drafters = members(2)
    async with on_a_pool(drafters) as stage:
        drafters[0].gate.close()
        held = stage.start([1])
        await drafters[0].gate.arrival()
        for n in (2, 3):
            assert await stage.tokens([n]) == stage.plain([n])
        assert asked(drafters[0]) == {1} and asked(drafters[1]) == {2, 3}
        drafters[0].gate.open()
        await held


async def test_a_request_is_released_wherever_it_was():
    drafters = members(3)
    async with on_a_pool(drafters) as stage:
        stream = stage.stream([1], LONG)
        async with aclosing(stream):
            await anext(stream)
            drafters[0].error = DrafterError("gone")
            async for _ in stream:
                if drafters[1].num_calls:
                    break
        await until(lambda: not stage.verifier.held)
        assert [len(drafter.released) for drafter in drafters] == [1, 1, 0]
        assert not any(lane.held_request_ids for lane in stage.drafter.lanes)


# ---- one that fails


class Miscounting(FakeDrafter):
    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        await super().draft(requests)
        return []


@pytest.mark.parametrize("kind", [FakeDrafter, Miscounting])
async def test_a_member_that_fails_is_set_aside_and_its_requests_move(kind):
    bad, good = kind(oracle_of(FakeVerifier()), sometimes_right), members(1)[0]
    bad.error = DrafterError("device lost") if kind is FakeDrafter else None
    async with on_a_pool([bad, good]) as stage:
        await answer(stage, 4)
        assert bad.num_calls == 1, "it is left alone"
        assert asked(bad) == {0, 2} and asked(good) == {0, 1, 2, 3}
        assert stage.metric("fallback_total", reason="drafter_error") == 2
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 0


@pytest.mark.parametrize("speculation", [FIXED, AHEAD])
async def test_a_member_that_hangs_holds_up_its_own_requests_alone_and_once(speculation):
    [good] = members(1)
    bad = HangingDrafter()
    gaps: dict[int, list[float]] = {n: [] for n in range(4)}

    async def consume(stage: Stage, number: int) -> None:
        last = time.monotonic()
        tokens: list[int] = []
        async for step in stage.stream([number, 7], FOREVER, speculation):
            gaps[number].append(time.monotonic() - last)
            last = time.monotonic()
            tokens += step.token_ids
        assert tokens == stage.plain([number, 7], FOREVER)

    async with on_a_pool([good, bad], overlap=True, max_draft_seconds=2) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        await asyncio.gather(*(consume(stage, n) for n in range(4)))
        assert bad.num_calls > 2, "it is probed"
    waits = {n: [gap for gap in times if gap > 0.2] for n, times in gaps.items()}
    assert {n: len(long) for n, long in waits.items()} == {0: 0, 1: 1, 2: 0, 3: 1}
    assert max(waits[1] + waits[3]) < 2.2


async def test_a_prompt_that_another_member_must_read_teaches_nothing_about_drafts(monkeypatch):
    observed: list[float] = []
    monkeypatch.setattr(StepCosts, "observe_draft", lambda *args: observed.append(args[-1]))

    class Reading(FakeDrafter):
        async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            await asyncio.sleep(0.01 if self.num_calls else 1.0)
            return await super().draft(requests)

    first, second = (Reading(oracle_of(FakeVerifier()), sometimes_right) for _ in range(2))
    async with on_a_pool([first, second]) as stage:
        running = stage.start([1], FOREVER)
        await until(lambda: first.num_calls > 5)
        first.error = DrafterError("gone")
        await running
        assert second.num_calls > 5
    assert len(observed) > 10 and max(observed) == pytest.approx(0.01)


async def test_when_none_is_left_all_go_on_without():
    drafters = members(2)
    async with on_a_pool(drafters) as stage:
        for drafter in drafters:
            drafter.error = ValueError("a bug")
        await answer(stage, 4)
        assert [drafter.num_calls for drafter in drafters] == [1, 1]
        assert stage.metric("fallback_total", reason="drafter_error") == 4
        assert stage.metric("fallback_total", reason="drafter_unavailable") > 40


async def test_a_member_that_is_well_again_drafts_for_those_that_come():
    bad, good = members(2)
    async with on_a_pool([bad, good]) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        bad.error = DrafterError("for a while")
        running = [stage.start([n], FOREVER) for n in range(2)]
        await until(lambda: bad.num_calls == 2)
        bad.error = None
        await until(lambda: bad.num_calls == 3)
        assert len(bad.batches[-1]) == 1, "a probe"
        assert await stage.tokens([9]) == stage.plain([9])
        assert 9 in asked(bad) and 9 not in asked(good)
        await asyncio.gather(*running)


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_coordinator_uses_all_and_outlives_any(overlap):
    drafters = members(3)
    async with on_a_pool(drafters, overlap=overlap) as stage:
        running = asyncio.create_task(answer(stage, 8, speculation=AHEAD))
        await until(lambda: drafters[1].num_calls)
        drafters[1].error = DrafterError("gone")
        await running
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 0
        assert all(drafter.num_calls for drafter in drafters)
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 20


async def test_a_bug_ends_the_requests_of_all_drafters_and_every_drafter_is_used_again(monkeypatch):
    drafters = members(2)
    async with on_a_pool(drafters) as stage:
        slow_down(drafters[1], "draft", 1.0)
        with monkeypatch.context() as patch:
            stage_of_drafts = "diffuspec.coordinator.draft_stage.DraftStage"
            patch.setattr(f"{stage_of_drafts}._learn", lambda *_: 1 / 0)
            patch.setattr(f"{stage_of_drafts}._skip_draft", lambda *_: [][0])
            tasks = [stage.start([n]) for n in range(2)]
            done, _ = await asyncio.wait(tasks)
            assert all(task.exception() for task in done)
        calls = [drafter.num_calls for drafter in drafters]
        await answer(stage, 2)
        assert all(d.num_calls > before for d, before in zip(drafters, calls, strict=True))


# ---- the trace


async def test_every_drafter_has_lanes_of_its_own_in_a_trace(tmp_path: Path):
    path, drafters = tmp_path / "trace.json", members(2)
    tracer = Tracer(path)
    async with on_a_pool(drafters, tracer, overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(drafters[0], "draft", 0.01)
        slow_down(drafters[1], "draft", 0.03)
        await answer(stage, 4, speculation=AHEAD)
    tracer.close()
    lanes = read(path)
    for number, drafter in enumerate(drafters):
        spans = lanes[f"drafter {number}"]
        assert len(spans) == drafter.num_calls
        assert_nested(spans)
        assert lanes[f"scorer {number}"] and lanes[f"transport to drafter {number}"]
    assert not {"drafter", "scorer", "transport to drafter"} & set(lanes)


async def test_a_probe_is_shown_for_what_it_is(tmp_path: Path):
    path, [drafter] = tmp_path / "trace.json", members(1)
    tracer = Tracer(path)
    async with on_a_pool([drafter], tracer) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        drafter.error = DrafterError("for a while")
        running = stage.start([1], LONG, SpeculationParams(policy="fixed", num_draft_tokens=2))
        await until(lambda: stage.metric("fallback_total", reason="drafter_error"))
        drafter.error = None
        await running
    tracer.close()
    assert [span["name"] for span in read(path)["drafter 0"]][:3] == ["failed", "trial", "draft"]
