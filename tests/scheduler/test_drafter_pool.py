"""Several drafters: each has requests of its own, and none waits for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from diffuspec.core.errors import DrafterError, InvalidRequestError
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.scheduler.drafters import DrafterPool
from tests.support.fakes import (
    FakeDrafter,
    FakeVerifier,
    HangingDrafter,
    oracle_of,
    sometimes_right,
)
from tests.support.stage import (
    FIXED,
    FOREVER,
    LONG,
    PRE_DRAFTING,
    SHORT,
    Stage,
    fake_drafters,
    hold_first_pre_drafts,
    on_a_pool,
    on_stage,
    pool_of,
    slow_down,
    until,
)

pytestmark = [
    pytest.mark.virtual_time,
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("quiet"),
]


def asked(drafter: FakeDrafter) -> set[int]:
    """Return the requests that it has drafted for, by the first token of their prompts."""
    return {int(one.prefix[0]) for batch in drafter.batches for one in batch}


async def test_drafters_may_join_and_leave_while_requests_run():
    first, second = fake_drafters(2)
    async with on_a_pool() as stage:
        pool: DrafterPool = stage.drafter
        steps = await stage.steps()
        assert {step.fallback for step in steps[:-1]} == {"drafter_unavailable"}
        pool.add(first, "drafter 0")
        await stage.check_requests(2)
        await until(lambda: len(first.released) == 2)
        pool.add(second, "drafter 1")
        pool.remove(first)
        pool.remove(first)
        num_calls = first.num_calls
        await stage.check_requests(2)
        assert first.num_calls == num_calls and second.num_calls
        assert stage.metric("fallback_total", reason="drafter_error") == 0


async def test_a_drafter_that_leaves_finishes_its_call_and_its_queue_moves_to_another():
    first, second = fake_drafters(2)
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


@pytest.mark.parametrize("speculation", [FIXED, PRE_DRAFTING])
async def test_a_request_stays_with_the_drafter_that_knows_its_prefix(speculation):
    drafters = fake_drafters(3)
    async with on_a_pool(drafters, overlap=True) as stage:
        await stage.check_requests(6, speculation=speculation)
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 20
    homes = [asked(drafter) for drafter in drafters]
    assert sorted(map(len, homes)) == [2, 2, 2] and set.union(*homes) == set(range(6))


async def test_requests_are_placed_with_the_drafter_that_has_the_fewest():
    drafters = fake_drafters(2)
    async with on_a_pool(drafters) as stage:
        for drafter in drafters:
            drafter.gate.close()
        tasks = [stage.start([n]) for n in range(4)]
        await drafters[0].gate.arrival()
        await drafters[1].gate.arrival()
        assert [asked(drafter) for drafter in drafters] == [{0, 2}, {1, 3}]
        for drafter in drafters:
            drafter.gate.open()
        await asyncio.gather(*tasks)


async def test_drafts_in_a_call_count_as_load():
    drafters = fake_drafters(2)
    async with on_a_pool(drafters) as stage:
        drafters[0].gate.close()
        held = stage.start([1])
        await drafters[0].gate.arrival()
        for n in (2, 3):
            assert await stage.tokens([n]) == stage.plain([n])
        assert asked(drafters[0]) == {1} and asked(drafters[1]) == {2, 3}
        drafters[0].gate.open()
        await held


async def test_a_request_is_released_at_every_drafter_that_drafted_for_it():
    drafters = fake_drafters(3)
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
        await until(lambda: not stage.leftovers())


# ---- drafters that leave during a call


async def hold_call(stage: Stage, drafter: FakeDrafter, kind: str) -> None:
    """Wait until a drafter has a call of this kind, and keep it in the call."""
    if kind == "trial":
        drafter.error = DrafterError("for a while")
        await until(lambda: stage.metric("fallback_total", reason="drafter_error"))
    if kind == "pre-draft":
        hold_first_pre_drafts(stage, drafter)
    else:
        drafter.gate.close()
    await drafter.gate.arrival()


@pytest.mark.parametrize("end", ["returns", "fails", "hangs"])
@pytest.mark.parametrize("kind", ["draft", "pre-draft", "trial"])
@pytest.mark.parametrize("has_other", [True, False])
async def test_a_drafter_may_leave_during_any_call(kind, end, has_other):
    leaving, *others = drafters = fake_drafters(1 + has_other)
    async with on_a_pool(drafters, overlap=True, max_draft_seconds=2) as stage:
        slow_down(stage.verifier, "verify", 0.3)
        requests = asyncio.create_task(stage.check_requests(4, speculation=PRE_DRAFTING))
        await hold_call(stage, leaving, kind)
        stage.drafter.remove(leaving)
        num_calls = leaving.num_calls
        if end != "hangs":
            leaving.error = DrafterError("gone") if end == "fails" else None
            leaving.gate.open()
        await requests
        await until(lambda: not stage.leftovers())
        await until(lambda: [lane.drafter for lane in stage.drafter.lanes] == others)
        assert leaving.num_calls == num_calls
        if kind != "trial" and end == "returns":
            assert stage.metric("fallback_total", reason="drafter_error") == 0


@pytest.mark.parametrize("end", ["returns", "fails"])
async def test_a_request_waits_for_its_pre_draft_where_it_is_made_though_that_drafter_left(end):
    leaving, other = drafters = fake_drafters(2)
    async with on_a_pool(drafters, overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.3)
        for drafter in drafters:
            hold_first_pre_drafts(stage, drafter)
        requests = [stage.start([n], speculation=PRE_DRAFTING) for n in range(2)]
        for drafter in drafters:
            await drafter.gate.arrival()
        stage.drafter.remove(leaving)
        await asyncio.sleep(0.5)  # both have their verdicts, and await their pre-drafts
        leaving.error = DrafterError("gone") if end == "fails" else None
        leaving.gate.open()
        other.gate.open()
        async with asyncio.timeout(20):
            assert [await request for request in requests] == [stage.plain([0]), stage.plain([1])]
        await until(lambda: not stage.leftovers())


async def test_a_drafter_that_joins_again_during_its_last_call_is_used_again():
    [drafter] = fake_drafters(1)
    async with on_a_pool([drafter]) as stage:
        drafter.gate.close()
        requests = asyncio.create_task(stage.check_requests(4))
        await drafter.gate.arrival()
        stage.drafter.remove(drafter)
        stage.drafter.add(drafter, "drafter 1")
        drafter.gate.open()
        await requests
        await until(lambda: not stage.leftovers())
        await until(lambda: [lane.name for lane in stage.drafter.lanes] == ["drafter 1"])
        assert drafter.num_calls > 2
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 0


# ---- failures


class Miscounting(FakeDrafter):
    """Returns no drafts at all."""

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        await super().draft(requests)
        return []


@pytest.mark.parametrize("kind", [FakeDrafter, Miscounting])
async def test_requests_of_a_drafter_that_fails_move_to_another(kind):
    bad, good = kind(oracle_of(FakeVerifier()), sometimes_right), fake_drafters(1)[0]
    bad.error = DrafterError("device lost") if kind is FakeDrafter else None
    async with on_a_pool([bad, good]) as stage:
        await stage.check_requests(4)
        assert bad.num_calls == 1, "it is not asked again"
        assert asked(bad) == {0, 2} and asked(good) == {0, 1, 2, 3}
        assert stage.metric("fallback_total", reason="drafter_error") == 2
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 0


@pytest.mark.no_cover
@pytest.mark.parametrize("speculation", [FIXED, PRE_DRAFTING])
async def test_a_hanging_drafter_delays_its_own_requests_once_and_no_others(speculation):
    [good] = fake_drafters(1)
    bad = HangingDrafter()
    gaps: dict[int, list[float]] = {n: [] for n in range(4)}

    async def consume(stage: Stage, number: int) -> None:
        last = time.monotonic()
        tokens: list[int] = []
        async for output in stage.stream([number, 7], FOREVER, speculation):
            gaps[number].append(time.monotonic() - last)
            last = time.monotonic()
            tokens += output.token_ids
        assert tokens == stage.plain([number, 7], FOREVER)

    async with on_a_pool([good, bad], overlap=True, max_draft_seconds=2) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        await asyncio.gather(*(consume(stage, n) for n in range(4)))
        assert bad.num_calls > 2, "trials are made"
    waits = {n: [gap for gap in times if gap > 0.2] for n, times in gaps.items()}
    assert {n: len(long) for n, long in waits.items()} == {0: 0, 1: 1, 2: 0, 3: 1}
    assert max(waits[1] + waits[3]) < 2.2


async def test_reading_a_prompt_at_another_drafter_does_not_count_as_the_cost_of_a_draft():
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
        costs = stage.coordinator.loop.learner.costs.drafters[""]
        assert costs.seconds(5, 1) == pytest.approx(0.01, abs=1e-3)


async def test_without_a_working_drafter_requests_go_on_without_drafts():
    drafters = fake_drafters(2)
    async with on_a_pool(drafters) as stage:
        for drafter in drafters:
            drafter.error = ValueError("a bug")
        await stage.check_requests(4)
        assert [drafter.num_calls for drafter in drafters] == [1, 1]
        assert stage.metric("fallback_total", reason="drafter_error") == 4
        assert stage.metric("fallback_total", reason="drafter_unavailable") > 40


async def test_a_drafter_that_recovers_drafts_for_new_requests():
    bad, good = fake_drafters(2)
    async with on_a_pool([bad, good]) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        bad.error = DrafterError("for a while")
        running = [stage.start([n], FOREVER) for n in range(2)]
        await until(lambda: bad.num_calls == 2)
        bad.error = None
        await until(lambda: bad.num_calls == 3)
        assert len(bad.batches[-1]) == 1, "a trial"
        assert await stage.tokens([9]) == stage.plain([9])
        assert 9 in asked(bad) and 9 not in asked(good)
        await asyncio.gather(*running)


@pytest.mark.parametrize("overlap", [False, True])
async def test_all_drafters_are_used_and_any_of_them_may_fail(overlap):
    drafters = fake_drafters(3)
    async with on_a_pool(drafters, overlap=overlap) as stage:
        running = asyncio.create_task(stage.check_requests(8, speculation=PRE_DRAFTING))
        await until(lambda: drafters[1].num_calls)
        drafters[1].error = DrafterError("gone")
        await running
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 0
        assert all(drafter.num_calls for drafter in drafters)
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 20


# ---- drafters by name


async def test_a_request_is_drafted_for_by_the_drafter_that_it_chooses():
    first, second = fake_drafters(2)
    async with on_stage({"one": first, "two": second}, max_sequences=8) as stage:
        tasks = [
            stage.start([n, 7], SHORT, replace(FIXED, drafter=name))
            for n, name in enumerate([None, "one", "two"])
        ]
        for n, task in enumerate(tasks):
            assert await task == stage.plain([n, 7])
        assert (asked(first), asked(second)) == ({0, 1}, {2})
        await until(lambda: (len(first.released), len(second.released)) == (2, 1))
        drafters = stage.coordinator.loop.learner.costs.drafters
        assert all(costs.is_known for costs in drafters.values())


async def test_what_one_drafter_costs_says_nothing_of_another():
    async with on_stage(dict(zip(("one", "two"), fake_drafters(2), strict=True))) as stage:
        await stage.tokens(speculation=replace(FIXED, drafter="two"))
        drafters = stage.coordinator.loop.learner.costs.drafters
        assert drafters["two"].is_known and not drafters["one"].is_known


async def test_no_other_drafter_takes_the_place_of_the_one_that_was_chosen():
    first, second = fake_drafters(2)
    second.error = DrafterError("no memory")
    async with on_stage({"one": first, "two": second}) as stage:
        await stage.tokens(speculation=replace(FIXED, drafter="two"))
        assert not first.batches


@pytest.mark.parametrize(
    ("names", "known"), [(["one", "two"], "one, two"), ([], "none, there are no names")]
)
async def test_an_unknown_name_is_refused_with_the_known_ones(names, known):
    drafter = dict(zip(names, fake_drafters(2), strict=False)) or fake_drafters(1)[0]
    async with on_stage(drafter) as stage:
        with pytest.raises(InvalidRequestError, match=f"drafter must be one of {known}.*'three'"):
            await stage.tokens(speculation=replace(FIXED, drafter="three"))


async def test_a_pool_drafts_for_one_coordinator_after_another():
    pool = pool_of(fake_drafters(2))
    for _ in range(2):
        async with on_stage(pool, max_sequences=8) as stage:
            assert await stage.tokens() == stage.plain()
            assert stage.metric("spec_decode_num_draft_tokens_total") > 0
