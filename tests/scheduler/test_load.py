"""The default policy under load: on simulated machines, and over drafters of which one is bad."""

from __future__ import annotations

import asyncio
import time
from functools import cache

import pytest

from benchmarks.studies.virtual_time_cells import Cell, Figures, Plan, run_plan
from benchmarks.studies.virtual_time_regimes import REGIMES
from diffuspec.bench.planning.traffic import Answer, make_answers
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import SamplingParams, SpeculationParams
from tests.support.fakes import HangingDrafter, never_right, right_and_sure
from tests.support.stage import FIXED, OFF, fake_drafter, on_stage, slow_down

pytestmark = [pytest.mark.virtual_time, pytest.mark.no_cover, pytest.mark.timeout(60)]

LONG = SamplingParams(max_tokens=300, ignore_eos=True)


class ShortCell(Cell):
    """A cell with half of the answers."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        return make_answers(REGIMES[self.regime], 32)


@cache
def figures(machine: str, regime: str, load: int, policy: str) -> Figures:
    plan = Plan(SpeculationParams(policy=policy))  # type: ignore[arg-type]
    return run_plan(ShortCell(machine, regime, load), plan)


def speedup(machine: str, regime: str, load: int) -> float:
    on, off = (figures(machine, regime, load, policy) for policy in ("cost_aware", "off"))
    return on.tokens_per_second / off.tokens_per_second


@pytest.mark.parametrize(
    ("machine", "load", "least"),
    [("one_gpu", 1, 3), ("one_gpu", 8, 2), ("two_cores", 8, 1.3), ("own_gpu", 8, 2)],
)
def test_drafts_that_pay_decode_faster_than_plain_decoding(machine, load, least):
    assert speedup(machine, "greedy_pays", load) > least


@pytest.mark.parametrize("machine", ["slow_cpu", "two_cores"])
@pytest.mark.parametrize("load", [1, 8])
def test_drafts_that_do_not_pay_cost_hardly_any_of_the_speed_of_plain_decoding(machine, load):
    assert speedup(machine, "greedy_poor", load) >= 0.95


@pytest.mark.parametrize("regime", ["greedy_pays", "greedy_mixed", "greedy_poor"])
def test_first_tokens_come_about_as_soon_as_those_of_plain_decoding(regime):
    on, off = (figures("two_cores", regime, 8, policy) for policy in ("cost_aware", "off"))
    assert on.first_token_p50 <= 1.2 * off.first_token_p50


@pytest.mark.parametrize("regime", ["turns_good", "turns_bad"])
def test_drafts_begin_once_they_pay_and_stop_once_they_do_not(regime):
    assert speedup("one_gpu", regime, 4) > 1.1


def test_requests_whose_drafts_are_right_gain_beside_others_whose_drafts_are_not():
    assert speedup("one_gpu", "greedy_mixed", 8) > 1.2


# ---- requests of different kinds


@pytest.mark.parametrize("other", ["off", "cost_aware"])
async def test_a_request_of_fixed_length_goes_on_beside_one_that_decodes_plainly(other):
    async with on_stage(fake_drafter(never_right)) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        slow_down(stage.drafter, "draft", 0.05)
        await stage.coordinator.profile()
        plain = stage.start([1], LONG, SpeculationParams(policy=other))
        await stage.tokens([2], SamplingParams(max_tokens=3), FIXED)
        assert not plain.done()
        assert await plain == stage.plain([1], LONG)


async def test_drafts_begin_although_other_requests_keep_bringing_prompts():
    async with on_stage(fake_drafter(right_and_sure)) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(stage.drafter, "draft", 0.005)
        drafting = asyncio.ensure_future(stage.steps([1], LONG, SpeculationParams()))
        while not drafting.done():
            await stage.tokens([2] * 20, SamplingParams(max_tokens=1), OFF)
    assert len(drafting.result()) < 0.5 * LONG.max_tokens


# ---- several drafters


@pytest.mark.parametrize("count", [1, 2])
async def test_a_bad_drafter_does_not_stop_a_good_one(count):
    drafters = {"good": fake_drafter(right_and_sure), "bad": fake_drafter(never_right)}
    async with on_stage(drafters, max_sequences=4) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        for drafter in drafters.values():
            slow_down(drafter, "draft", 0.005)

        async def ask(name: str, number: int) -> float:
            speculation, started = SpeculationParams(drafter=name), time.monotonic()
            assert await stage.tokens([number], LONG, speculation) == stage.plain([number], LONG)
            return time.monotonic() - started

        asked = [ask(name, n) for n in range(count) for name in drafters]
        seconds = dict(zip([*drafters] * count, await asyncio.gather(*asked), strict=True))
    plain = 0.02 * LONG.max_tokens
    assert seconds["good"] < 0.6 * plain
    assert seconds["bad"] < 1.15 * plain


async def test_a_drafter_that_hangs_costs_its_deadline_once(quiet):
    good, hanging = fake_drafter(right_and_sure), HangingDrafter()
    drafters: dict[str, Drafter] = {"good": good, "hanging": hanging}
    async with on_stage(drafters, max_sequences=4, max_draft_seconds=2) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(good, "draft", 0.005)
        started = time.monotonic()
        speculation = SpeculationParams(drafter="hanging", policy="fixed")
        other = stage.start([1], LONG, SpeculationParams(drafter="good"))
        assert await stage.tokens([0], LONG, speculation) == stage.plain([0], LONG)
        seconds = time.monotonic() - started
        assert await other == stage.plain([1], LONG)
    assert hanging.was_cancelled and hanging.num_calls > 1, "trials are made"
    assert 2 < seconds < 2 + 1.15 * 0.02 * LONG.max_tokens
