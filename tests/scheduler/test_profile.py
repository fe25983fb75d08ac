"""The profile: what an engine measures before its first request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.core.errors import DrafterError, VerifierError
from diffuspec.core.types import Draft, DraftRequest, Verdict, VerifyRequest
from tests.support.fakes import FAKE_TARGET, FakeVerifier, HangingDrafter, empty
from tests.support.stage import fake_drafter, on_stage, pool_of, slow_down, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]

NAMES = {f"profile-{number}" for number in range(4)}
PROMPTS = {"profile-64", "profile-256", "profile-1024"}  # read to measure what reading takes


class SlowerByRow(FakeVerifier):
    """Takes 10 ms for a verification, and 1 ms for each root and node of it."""

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        num_rows = sum(1 + request.tree.num_nodes for request in requests)
        await asyncio.sleep(0.01 + 0.001 * num_rows)
        return await super().verify(requests)


def share_a_processor(verifier: Any, drafter: Any) -> None:
    """Let a call of one role wait for that of the other: 10 ms of either, one after the other."""
    processor = asyncio.Lock()
    verify, draft = verifier.verify, drafter.draft

    async def verify_alone(requests: Sequence[VerifyRequest]) -> list[Verdict]:
        async with processor:
            await asyncio.sleep(0.01)
        verdicts: list[Verdict] = await verify(requests)
        return verdicts

    async def draft_alone(requests: Sequence[DraftRequest]) -> list[Draft]:
        async with processor:
            await asyncio.sleep(0.01)
        drafts: list[Draft] = await draft(requests)
        return drafts

    verifier.verify, drafter.draft = verify_alone, draft_alone


# ---- what is learnt


async def test_it_learns_what_rows_of_a_verification_cost():
    async with on_stage(None, verifier=SlowerByRow()) as stage:
        await stage.coordinator.profile(10.0)
        costs = stage.coordinator.loop.learner.costs
        for num_rows, number in ((1, 1), (8, 1), (32, 1), (4, 4), (32, 4), (128, 4)):
            expected = pytest.approx(0.01 + 0.001 * num_rows, rel=0.15)
            assert costs.verify_seconds(num_rows, number) == expected


async def test_it_learns_what_the_drafts_of_a_call_cost():
    async with on_stage(max_sequences=4) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        slow_down(stage.drafter, "draft", 0.01)  # for each of them
        await stage.coordinator.profile(10.0)
        costs = stage.coordinator.loop.learner.costs.drafters[""]
        assert costs.seconds(4, 1) == pytest.approx(0.01)
        assert costs.seconds(16, 1) == pytest.approx(0.01)
        assert costs.seconds(4 * 16, 4) == pytest.approx(0.04)


async def test_it_learns_what_reading_a_prompt_costs():
    async with on_stage() as stage:
        draft = stage.drafter.draft

        async def read(requests):
            unread = sum(len(one.prefix) for one in requests if one.request_id in PROMPTS)
            await asyncio.sleep(0.01 + 0.0002 * min(unread, 256))
            return await draft(requests)

        stage.drafter.draft = read
        await stage.coordinator.profile(10.0)
        costs = stage.coordinator.loop.learner.costs.drafters[""]
        longest = stage.verifier.info.max_model_len // 2
        assert costs.reading_seconds(256) == pytest.approx(0.0512)
        assert costs.reading_seconds(longest) == pytest.approx(0.0512), "a part of it was read"


async def test_it_learns_the_costs_of_each_drafter():
    slow, quick = fake_drafter(), fake_drafter()
    slow_down(slow, "draft", 0.05)
    slow_down(quick, "draft", 0.01)
    async with on_stage({"slow": slow, "quick": quick}) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        await stage.coordinator.profile(10.0)
        drafters = stage.coordinator.loop.learner.costs.drafters
        found = {name: costs.seconds(8, 1) for name, costs in drafters.items()}
        assert found == pytest.approx({"slow": 0.05, "quick": 0.01})


async def test_a_drafter_with_nothing_to_propose_is_left_to_be_measured_while_decoding():
    async with on_stage(fake_drafter(empty)) as stage:
        slow_down(stage.drafter, "draft", 0.01)
        await stage.coordinator.profile(10.0)
        assert stage.drafter.num_calls == 1
        assert not stage.coordinator.loop.learner.costs.drafters[""].is_known


@pytest.mark.parametrize("changes", [{"max_sequences": 1}, {"max_tree_nodes": 4}])
async def test_no_call_is_larger_than_the_target_allows(changes):
    verifier = FakeVerifier(replace(FAKE_TARGET, **changes))
    async with on_stage(verifier=verifier) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        slow_down(stage.drafter, "draft", 0.01)
        await stage.coordinator.profile(10.0)  # the fake verifier checks its calls
        assert max(map(len, verifier.batches)) <= verifier.info.max_sequences
        assert stage.coordinator.loop.learner.costs.drafters[""].is_known


async def test_a_failed_drafter_does_not_keep_another_of_its_name_from_being_measured():
    pool = pool_of([fake_drafter(), fake_drafter()])
    async with on_stage(pool) as stage:
        pool.lanes[1].breaker.failed(time.monotonic())
        await stage.coordinator.profile(10.0)
        assert stage.coordinator.loop.learner.costs.drafters[""].is_known


# ---- its end


@pytest.mark.parametrize("max_seconds", [1.0, 2.0])
async def test_it_stops_at_its_time_limit(max_seconds):
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.1)
        slow_down(stage.drafter, "draft", 0.1)
        began = time.monotonic()
        await stage.coordinator.profile(max_seconds)
        reading = 2 * 0.1 + 2 * 2 * 0.1  # of the prompts: whatever the limit, once at each role
        assert time.monotonic() - began <= max_seconds + reading
        assert stage.coordinator.loop.learner.costs.verify_seconds(1, 1) == pytest.approx(0.1)


async def test_it_releases_its_requests_at_both_roles():
    async with on_stage(max_sequences=4) as stage:
        await stage.coordinator.profile(10.0)
        assert not stage.verifier.held and not stage.leftovers()
        assert {*stage.verifier.released} == NAMES
        assert {*stage.drafter.released} == NAMES | PROMPTS


async def test_a_role_that_cannot_release_it_does_no_harm():
    async with on_stage(max_sequences=4) as stage:
        stage.verifier.release_error = OSError("connection lost")
        await stage.coordinator.profile(10.0)
        assert {*stage.drafter.released} == NAMES | PROMPTS


async def test_requests_are_answered_after_it():
    async with on_stage(overlap=True) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        slow_down(stage.drafter, "draft", 0.001)
        await stage.coordinator.profile()
        await stage.check_requests(4)
        await until(lambda: not stage.leftovers())


# ---- roles that fail


async def test_a_failing_verifier_costs_a_warning_only(caplog):
    async with on_stage() as stage:
        stage.verifier.error = VerifierError("device lost")
        await stage.coordinator.profile(10.0)
        assert "is not profiled" in caplog.text and "device lost" in caplog.text
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        assert not stage.verifier.held
        stage.verifier.error = None
        assert await stage.tokens() == stage.plain()


async def test_a_failing_drafter_costs_a_warning_only(caplog):
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.01)
        stage.drafter.error = DrafterError("no memory")
        await stage.coordinator.profile(10.0)
        assert "is not profiled" in caplog.text and "no memory" in caplog.text
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        assert stage.coordinator.loop.learner.costs.verify_seconds(8, 1) == pytest.approx(0.01)
        stage.drafter.error = None
        await stage.check_requests(2)
        assert stage.metric("spec_decode_num_draft_tokens_total") > 0, "it may draft all the same"


async def test_a_drafter_that_hangs_costs_a_warning_only(caplog):
    async with on_stage(HangingDrafter(), max_draft_seconds=2.5) as stage:
        slow_down(stage.verifier, "verify", 0.01)
        await stage.coordinator.profile(10.0)
        assert stage.drafter.was_cancelled and "drafter is not profiled" in caplog.text
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        assert stage.coordinator.loop.learner.costs.verify_seconds(8, 1) == pytest.approx(0.01)
        assert not stage.verifier.held


async def test_a_verifier_that_hangs_costs_a_warning_only(caplog):
    async with on_stage(max_draft_seconds=2.5) as stage:
        slow_down(stage.drafter, "draft", 0.01)
        stage.verifier.gate.close()
        await stage.coordinator.profile(10.0)
        assert "the verifier is not profiled" in caplog.text
        assert {record.levelno for record in caplog.records} == {logging.WARNING}
        stage.verifier.gate.open()
        await stage.check_requests(2)


async def test_the_warning_says_how_long_a_role_that_hangs_was_waited_for(caplog):
    async with on_stage(HangingDrafter(), max_draft_seconds=2.5) as stage:
        await stage.coordinator.profile(1.0)
        assert "no answer within 2.5 s" in caplog.text


async def test_a_release_that_fails_leaves_the_others_released():
    async with on_stage(max_sequences=4) as stage:
        release, calls = stage.verifier.release, []

        async def fail_once(request_id: str) -> None:
            calls.append(request_id)
            if len(calls) == 1:
                raise OSError("connection lost")
            await release(request_id)

        stage.verifier.release = fail_once  # type: ignore[method-assign]
        await stage.coordinator.profile(10.0)
        assert len(stage.verifier.held) <= 1


async def test_a_role_is_given_up_for_one_late_answer_and_not_for_many_that_come_in_time():
    async with on_stage(max_sequences=4, max_draft_seconds=0.5) as stage:
        slow_down(stage.verifier, "verify", 0.1)
        slow_down(stage.drafter, "draft", 0.05)
        await stage.coordinator.profile(10.0)
        assert stage.coordinator.loop.learner.costs.drafters[""].is_known


async def test_interference_that_cannot_be_measured_stays_as_it_is_assumed():
    async with on_stage(overlap=False) as stage:  # roles that take no time
        await stage.coordinator.profile(1.0)
        assert stage.coordinator.loop.learner.costs.drafters[""].interference.value == 1.0
