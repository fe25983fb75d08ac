"""A pool keeps drafting while any of its members does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from diffuspec.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.coordinator import Coordinator
from diffuspec.drafter_pool import DrafterPool
from diffuspec.errors import DrafterError
from diffuspec.types import Draft, DraftRequest, SamplingParams, SpeculationParams
from tests.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, oracle_of, sometimes_right
from tests.stage import SHORT, Stage

VERIFIER = FakeVerifier()
FIXED = SpeculationParams(policy="fixed", num_draft_tokens=4)

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def members(count: int) -> list[FakeDrafter]:
    return [FakeDrafter(oracle_of(VERIFIER), sometimes_right) for _ in range(count)]


def request(name: str, length: int = 3, num_draft_tokens: int = 4) -> DraftRequest:
    prefix = np.arange(1, length + 1, dtype=np.int32)
    return DraftRequest(
        name, prefix, num_draft_tokens, "best_first", 32, 0.5, SamplingParams(ignore_eos=True)
    )


def asked(drafter: FakeDrafter) -> list[str]:
    return [one.request_id for batch in drafter.batches for one in batch]


async def test_members_come_and_go():
    first, second = members(2)
    pool = DrafterPool()
    with pytest.raises(DrafterError, match="no drafter of the pool"):
        await pool.draft([request("a")])
    pool.add(first)
    assert len(await pool.draft([request("a")])) == 1
    pool.add(second)
    pool.remove(first)
    pool.remove(first)
    assert len(await pool.draft([request("a")])) == 1
    assert asked(second) == ["a"] and pool.num_available == 1
    await pool.release("a")
    assert first.released == [] and second.released == ["a"]


async def test_a_member_that_leaves_while_it_drafts_finishes_that():
    first, second = members(2)
    pool = DrafterPool([first, second])
    first.gate.close()
    drafting = asyncio.create_task(pool.draft([request("a")]))
    await first.gate.arrival()
    pool.remove(first)
    first.gate.open()
    assert len(await drafting) == 1
    await pool.draft([request("a")])
    assert asked(second) == ["a"]


async def test_drafts_come_in_the_order_of_their_requests():
    drafters = members(3)
    requests = [request(f"r{n}", length=n + 1) for n in range(7)]
    drafts = await DrafterPool(drafters).draft(requests)
    alone = [(await members(1)[0].draft([one]))[0] for one in requests]
    assert [draft.tree for draft in drafts] == [draft.tree for draft in alone]
    assert all(drafter.num_calls == 1 for drafter in drafters)
    assert await DrafterPool(drafters).draft([]) == []


async def test_load_is_balanced_by_positions():
    drafters = members(2)
    requests = [request("long", num_draft_tokens=12)] + [request(f"r{n}") for n in range(3)]
    await DrafterPool(drafters).draft(requests)
    assert asked(drafters[0]) == ["long"]
    assert asked(drafters[1]) == ["r0", "r1", "r2"]


async def test_what_is_under_way_counts_as_load():
    drafters = members(2)
    pool = DrafterPool(drafters)
    drafters[0].gate.close()
    first = asyncio.create_task(pool.draft([request("a")]))
    await drafters[0].gate.arrival()
    await pool.draft([request("b")])
    assert asked(drafters[1]) == ["b"]
    drafters[0].gate.open()
    await first


async def test_a_request_stays_where_its_prefix_is_known():
    drafters = members(2)
    pool = DrafterPool(drafters)
    for length in range(3, 8):
        await pool.draft([request("b", length), request("a", length), request("a", length + 1)])
    homes = [set(asked(drafter)) for drafter in drafters]
    assert homes == [{"b"}, {"a"}]


async def test_a_member_that_fails_is_set_aside_and_its_requests_move():
    drafters = members(2)
    pool = DrafterPool(drafters)
    await pool.draft([request("a"), request("b")])
    drafters[0].error = DrafterError("device lost")
    drafts = await pool.draft([request("a"), request("b")])
    assert len(drafts) == 2 and pool.num_available == 1
    assert asked(drafters[1]) == ["b", "b", "a"]
    await pool.draft([request("a"), request("b"), request("c")])
    assert drafters[0].num_calls == 2, "it is left alone"


async def test_a_member_that_miscounts_has_failed():
    class Miscounting(FakeDrafter):
        async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            return []

    good = members(1)[0]
    pool = DrafterPool([Miscounting(oracle_of(VERIFIER), sometimes_right), good])
    assert len(await pool.draft([request("a")])) == 1
    assert pool.num_available == 1


async def test_an_error_is_raised_only_when_none_is_left():
    drafters = members(2)
    pool = DrafterPool(drafters)
    for drafter in drafters:
        drafter.error = ValueError("a bug")
    with pytest.raises(DrafterError, match="no drafter of the pool") as failure:
        await pool.draft([request("a")])
    assert "failed: a bug" in str(failure.value.__cause__)
    with pytest.raises(DrafterError, match="no drafter of the pool"):
        await pool.draft([request("a")])
    drafters[1].error = None
    await asyncio.sleep(1)
    assert len(await pool.draft([request("a")])) == 1


async def test_a_member_that_is_well_again_is_used_again():
    drafters = members(2)
    pool = DrafterPool(drafters)
    drafters[0].error = DrafterError("for a while")
    await pool.draft([request("a")])
    drafters[0].error = None
    await asyncio.sleep(1)
    await pool.draft([request(f"r{n}") for n in range(4)])
    assert pool.num_available == 2 and drafters[0].num_calls == 2


async def test_a_probe_that_is_cancelled_may_be_made_again():
    [drafter] = members(1)
    pool = DrafterPool([drafter])
    drafter.error = DrafterError("once")
    with pytest.raises(DrafterError):
        await pool.draft([request("a")])
    drafter.error = None
    drafter.gate.close()
    await asyncio.sleep(1)
    probe = asyncio.create_task(pool.draft([request("a")]))
    await drafter.gate.arrival()
    probe.cancel()
    await asyncio.wait([probe])
    drafter.gate.open()
    assert len(await pool.draft([request("a")])) == 1


async def test_a_request_is_released_wherever_it_was():
    drafters = members(3)
    pool = DrafterPool(drafters)
    await pool.draft([request("a"), request("b")])
    drafters[0].error = DrafterError("gone")
    await pool.draft([request("a")])
    await pool.release("a")
    await pool.release("unknown")
    released = [drafter.released for drafter in drafters]
    assert released[0] == ["a"] and sum(map(len, released)) == 2
    assert not pool._homes.keys() & {"a"}


async def test_what_is_released_while_a_member_fails_at_it_is_forgotten():
    drafters = members(2)
    pool = DrafterPool(drafters)
    drafters[0].error = DrafterError("gone")
    drafters[0].gate.close()
    drafting = asyncio.create_task(pool.draft([request("a"), request("b"), request("c")]))
    await drafters[0].gate.arrival()
    await pool.release("a")
    drafters[0].gate.open()
    drafts = await drafting
    assert [draft.tree.num_nodes > 0 for draft in drafts] == [False, True, True]
    assert pool._homes.keys() == remembered(pool) == {"b", "c"}


def remembered(pool: DrafterPool) -> set[str]:
    return {name for member in pool._members for name in member.request_ids}


@asynccontextmanager
async def on_a_pool(drafters: Sequence[FakeDrafter], **config: object):
    verifier = FakeVerifier(replace(FAKE_TARGET, max_sequences=4))
    settings = CoordinatorConfig(**config)
    pool = DrafterPool(drafters)
    async with Coordinator(verifier, pool, settings, DraftLengthConfig()) as coordinator:
        yield Stage(coordinator, verifier, pool)


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_coordinator_uses_all_and_outlives_any(overlap):
    drafters = members(3)
    async with on_a_pool(drafters, overlap=overlap, num_draft_lanes=3) as stage:
        tasks = [stage.start([n, 7], SHORT, FIXED) for n in range(8)]
        drafters[1].error = DrafterError("gone")
        for n, task in enumerate(tasks):
            assert await task == stage.plain([n, 7])
        assert stage.metric("fallback_total", reason="drafter_error") == 0
        assert all(drafter.num_calls for drafter in drafters)
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 20
