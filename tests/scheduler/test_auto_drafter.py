"""Requests whose drafter is chosen for them: which one drafts, and that no token depends on it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from diffuspec.core.errors import DrafterError
from diffuspec.core.params import AUTO_DRAFTER, SpeculationParams
from tests.support.fakes import FakeDrafter, always_right, empty, never_right, right_and_sure
from tests.support.stage import (
    FIXED,
    LONG,
    PRE_DRAFTING,
    SHORT,
    fake_drafter,
    on_stage,
    slow_down,
)

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("quiet"),
]

AUTO = replace(FIXED, drafter=AUTO_DRAFTER)


def num_drafts(drafter: FakeDrafter) -> int:
    return sum(len(batch) for batch in drafter.batches)


async def test_the_drafter_whose_drafts_are_accepted_is_asked() -> None:
    wrong, right = fake_drafter(never_right), fake_drafter(always_right)
    async with on_stage({"wrong": wrong, "right": right}) as stage:
        slow_down(stage.verifier, "verify", 0.1)
        await stage.steps(sampling=LONG, speculation=AUTO)
        assert num_drafts(right) > 4 * num_drafts(wrong) > 0
        for name, drafter in (("wrong", wrong), ("right", right)):
            assert stage.metric("spec_decode_auto_steps_total", drafter=name) == num_drafts(drafter)
        before = num_drafts(wrong)
        await stage.steps(sampling=SHORT, speculation=AUTO)
        assert num_drafts(wrong) <= before + 1, "the next request begins with what was measured"


async def test_of_two_that_are_right_the_quicker_one_is_asked() -> None:
    slow, quick = fake_drafter(always_right), fake_drafter(always_right)
    async with on_stage({"slow": slow, "quick": quick}) as stage:
        slow_down(stage.verifier, "verify", 0.1)
        slow_down(slow, "draft", 0.3)
        await stage.steps(sampling=LONG, speculation=AUTO)
        assert num_drafts(quick) > 3 * num_drafts(slow) > 0


async def test_a_drafter_that_fails_costs_trials_and_no_token() -> None:
    broken, right = fake_drafter(always_right), fake_drafter(always_right)
    broken.error = DrafterError("no memory")
    async with on_stage({"broken": broken, "right": right}) as stage:
        slow_down(stage.verifier, "verify", 0.1)
        steps = await stage.steps(sampling=LONG, speculation=AUTO)
        assert sum(step.num_tree_nodes > 0 for step in steps) > len(steps) / 2


@pytest.mark.parametrize("speculation", [AUTO, replace(PRE_DRAFTING, drafter=AUTO_DRAFTER)])
async def test_requests_with_and_without_a_choice_run_side_by_side(
    speculation: SpeculationParams,
) -> None:
    drafters = {"one": fake_drafter(hit_rate=0.6), "two": fake_drafter(never_right)}
    async with on_stage(drafters, max_sequences=4, overlap=True) as stage:
        tasks = [
            stage.start([n, 7], SHORT, how)
            for n, how in enumerate([speculation, replace(FIXED, drafter="two")] * 4)
        ]
        found = await asyncio.gather(*tasks)
        assert found == [stage.plain([n, 7]) for n in range(8)]
        if speculation is AUTO:
            chosen = [stage.metric("spec_decode_auto_steps_total", drafter=n) for n in drafters]
            assert 0 < sum(chosen) < sum(map(num_drafts, drafters.values()))


async def test_without_drafting_nothing_is_asked() -> None:
    drafter = fake_drafter(always_right)
    off = SpeculationParams(policy="off", drafter=AUTO_DRAFTER)
    async with on_stage({"one": drafter}) as stage:
        await stage.steps(speculation=off)
        assert not drafter.batches
        assert not stage.metric("spec_decode_auto_steps_total", drafter="one")


async def test_a_drafter_with_nothing_to_propose_does_not_keep_others_from_being_tried() -> None:
    silent, right = fake_drafter(empty), fake_drafter(always_right)
    async with on_stage({"silent": silent, "right": right}) as stage:
        slow_down(stage.verifier, "verify", 0.1)
        steps = await stage.steps(sampling=LONG, speculation=AUTO)
        assert sum(step.num_tree_nodes > 0 for step in steps) > len(steps) / 2


async def test_requests_whose_drafts_are_all_made_ahead_try_every_drafter() -> None:
    one, two = fake_drafter(right_and_sure), fake_drafter(right_and_sure)
    async with on_stage({"one": one, "two": two}, overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.1)
        for _ in range(2):
            steps = await stage.steps(speculation=replace(PRE_DRAFTING, drafter=AUTO_DRAFTER))
            assert {step.pre_draft for step in steps[1:-1]} == {"hit"}
        assert one.batches and two.batches
