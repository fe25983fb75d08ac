"""The loop, against fake workers: nothing that a worker or a client does stops or corrupts it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence as Batch
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from diffuspec.coordinator import (
    coordinator as coordinator_module,
    draft_lane as draft_lane_module,
)
from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.coordinator.request import Request
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import (
    ContextLengthError,
    DrafterError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    VerifierError,
    VerifierUnavailableError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, FinishReason, Verdict, VerifyRequest
from tests.support.fakes import (
    FAKE_TARGET,
    INVALID,
    FakeDrafter,
    FakeVerifier,
    HangingDrafter,
    always_right,
    oracle_of,
    sometimes_right,
)
from tests.support.stage import FIXED, FOREVER, PROMPT, SHORT, Stage, on_stage, slow_down, until

OFF = SpeculationParams(policy="off")

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


# ---- what comes out


@pytest.mark.parametrize("drafter", [None, "sometimes_right"])
async def test_the_tokens_are_those_of_plain_decoding(drafter):
    async with on_stage(drafter) as stage:
        assert await stage.tokens() == stage.plain()


async def test_increments_tell_accepted_tokens_from_the_targets_own():
    async with on_stage() as stage:
        increments = [step async for step in stage.stream()]
    assert all(len(i.token_ids) == i.num_accepted_tokens + 1 for i in increments)
    assert max(i.num_accepted_tokens for i in increments) > 1
    assert [i.finish_reason for i in increments[:-1]] == [None] * (len(increments) - 1)
    assert increments[-1].finish_reason is FinishReason.LENGTH


async def test_requests_are_verified_together():
    async with on_stage(max_sequences=4) as stage:
        prompts = [[n, n + 1] for n in range(4)]
        answers = await asyncio.gather(*(stage.tokens(prompt) for prompt in prompts))
        assert answers == [stage.plain(prompt) for prompt in prompts]
        assert max(map(len, stage.verifier.batches)) > 1


async def test_requests_may_share_an_id_and_a_prompt():
    async with on_stage() as stage:
        same = [stage.tokens(request_id="same") for _ in range(2)]
        assert await asyncio.gather(*same) == [stage.plain()] * 2
        seen = {r.request_id for batch in stage.verifier.batches for r in batch}
        assert len(seen) == 2 and all(name.startswith("same-") for name in seen)


async def test_a_slow_consumer_gets_everything_and_holds_nobody_up():
    async with on_stage() as stage:
        slow = stage.stream()
        received = list((await anext(slow)).token_ids)
        assert await stage.tokens([9, 9]) == stage.plain([9, 9])
        await until(lambda: not stage.verifier.held)
        received += [i async for step in slow for i in step.token_ids]
        assert received == stage.plain()


async def test_everything_held_is_released_at_the_end():
    async with on_stage() as stage:
        await stage.tokens()
        await until(lambda: not stage.verifier.held and stage.drafter.released)
        assert stage.metric("num_requests_running") == 0


# ---- admission


async def test_requests_are_admitted_in_the_order_they_came():
    async with on_stage(None, max_sequences=1) as stage:
        tasks = [stage.start([n], SamplingParams(max_tokens=2)) for n in range(1, 6)]
        await asyncio.gather(*tasks)
        prompts = [batch[0].prefix[0] for batch in stage.verifier.batches]
        assert prompts == sorted(prompts)


async def test_a_full_queue_refuses_and_takes_again_later():
    async with on_stage(None, max_sequences=1, max_waiting=1) as stage:
        stage.verifier.gate.close()
        tasks = [stage.start() for _ in range(2)]
        await stage.verifier.gate.arrival()
        with pytest.raises(OverloadedError, match="1 requests are waiting"):
            await stage.tokens()
        stage.verifier.gate.open()
        assert await asyncio.gather(*tasks) == [stage.plain()] * 2
        assert await stage.tokens() == stage.plain()


async def test_with_no_queue_one_request_may_follow_another_at_once():
    async with on_stage(max_sequences=1, max_waiting=0) as stage:
        for _ in range(5):
            assert await stage.tokens() == stage.plain()


@pytest.mark.parametrize(
    ("prompt", "sampling", "speculation", "error", "message"),
    [
        ([], SHORT, FIXED, InvalidRequestError, "the prompt is empty"),
        ([1, -1], SHORT, FIXED, InvalidRequestError, "from 0 to 49, got -1"),
        ([1, 50], SHORT, FIXED, InvalidRequestError, "from 0 to 49, got 50"),
        ([1, 2**40], SHORT, FIXED, InvalidRequestError, f"got {2**40}"),
        ([1] * 489, SHORT, FIXED, ContextLengthError, "489 .* 24 do not fit .* 512"),
        ([1], replace(SHORT, max_tokens=512), FIXED, ContextLengthError, "do not fit"),
        ([1], replace(SHORT, temperature=1.0), FIXED, InvalidRequestError, "seed must be given"),
        ([1], replace(SHORT, stop_token_ids=(50,)), FIXED, InvalidRequestError, "stop_token_ids"),
        ([1], replace(SHORT, stop_token_ids=(-1,)), FIXED, InvalidRequestError, "got -1"),
    ],
)
async def test_bad_requests_are_refused_before_any_work(
    prompt, sampling, speculation, error, message
):
    async with on_stage() as stage:
        with pytest.raises(error, match=message):
            await stage.tokens(prompt, sampling, speculation)
        assert not stage.verifier.batches and not stage.drafter.batches


async def test_more_nodes_than_the_target_verifies_are_refused():
    verifier = FakeVerifier(replace(FAKE_TARGET, max_tree_nodes=8))
    async with Coordinator(verifier, None, CoordinatorConfig(), DraftLengthConfig()) as coordinator:
        with pytest.raises(InvalidRequestError, match="at most 8, got 32"):
            await anext(coordinator.stream(np.array([1]), SHORT, FIXED))


async def test_a_request_that_fills_the_context_exactly_is_answered():
    async with on_stage() as stage:
        assert len(await stage.tokens([1] * 488)) == 24


# ---- chunked prefill


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 101])
async def test_a_prompt_read_in_chunks_gives_the_same_tokens(chunk):
    prompt = [n % 50 for n in range(100)]
    async with on_stage(prefill_chunk_tokens=chunk) as stage:
        assert await stage.tokens(prompt) == stage.plain(prompt)
        lengths = [len(r.prefix) for b in stage.verifier.batches for r in b][:3]
        assert lengths[0] == min(chunk, 100)


async def test_reading_a_prompt_in_pieces_counts_as_verifying():
    async with on_stage(None, prefill_chunk_tokens=16) as stage:
        verify = stage.verifier.verify

        async def timed(requests: Batch[VerifyRequest]) -> list[Verdict]:
            verdicts = await verify(requests)
            return [replace(v, verify_seconds=1.0, transport_seconds=0.5) for v in verdicts]

        stage.verifier.verify = timed  # type: ignore[method-assign]
        prompt = [n % 50 for n in range(60)]
        first, second, *_ = [step.step async for step in stage.stream(prompt, SHORT)]
        assert (first.verify_seconds, first.transport_seconds) == (4.0, 2.0)
        assert (second.verify_seconds, second.transport_seconds) == (1.0, 0.5)


async def test_others_go_on_between_the_chunks_of_a_long_prompt():
    async with on_stage(None, prefill_chunk_tokens=16) as stage:
        other = stage.stream(PROMPT, FOREVER)
        async with aclosing(other):
            await anext(other)
            long = stage.start([n % 50 for n in range(160)], SamplingParams(max_tokens=1))
            await long
        chunks = [
            (len(batch), request)
            for batch in stage.verifier.batches
            for request in batch
            if request.prefix[0] == 0
        ]
        assert [len(request.prefix) for _, request in chunks] == list(range(16, 161, 16))
        assert {batch_size for batch_size, _ in chunks[:-1]} == {2}, "the other goes on beside them"


# ---- cancellation


@pytest.mark.parametrize("num_steps", [0, 1, 3])
async def test_closing_a_stream_frees_its_slot_within_a_step(num_steps):
    async with on_stage(max_sequences=1) as stage:
        stream = stage.stream(PROMPT, FOREVER)
        async with aclosing(stream):
            for _ in range(num_steps + 1):
                await anext(stream)
        num_batches = len(stage.verifier.batches)
        await until(lambda: not stage.verifier.held)
        assert len(stage.verifier.batches) <= num_batches + 1
        assert stage.metric("request_cancelled_total") == 1
        assert await stage.tokens() == stage.plain()


async def test_cancelling_while_waiting_leaves_the_queue():
    async with on_stage(max_sequences=1, max_waiting=1) as stage:
        stage.verifier.gate.close()
        first, waiting = stage.start(), stage.start([9])
        await stage.verifier.gate.arrival()
        assert stage.metric("num_requests_waiting") == 1
        waiting.cancel()
        await asyncio.wait([waiting])
        assert stage.metric("num_requests_waiting") == 0
        assert stage.metric("request_cancelled_total") == 1
        stage.verifier.gate.open()
        await first
        assert not any(r.prefix[0] == 9 for b in stage.verifier.batches for r in b)


async def test_cancelling_while_drafting_frees_the_slot_without_a_verification():
    async with on_stage(max_sequences=1) as stage:
        stage.drafter.gate.close()
        task = stage.start()
        await stage.drafter.gate.arrival()
        task.cancel()
        await asyncio.wait([task])
        stage.drafter.gate.open()
        assert await stage.tokens([9]) == stage.plain([9])
        assert all(r.prefix[0] == 9 for b in stage.verifier.batches for r in b)


async def test_cancelling_while_verifying_frees_the_slot_right_after_it():
    async with on_stage(max_sequences=1) as stage:
        stage.verifier.gate.close()
        task = stage.start()
        await stage.verifier.gate.arrival()
        task.cancel()
        await asyncio.wait([task])
        stage.drafter.gate.close()
        stage.verifier.gate.open()
        await until(lambda: not stage.verifier.held)  # without another draft
        stage.drafter.gate.open()
        assert await stage.tokens([9]) == stage.plain([9])
        assert [r.prefix[0] for b in stage.verifier.batches for r in b].count(3) == 1


async def test_cancelling_one_request_leaves_its_neighbours_alone():
    async with on_stage(max_sequences=4) as stage:
        kept = [stage.start([n]) for n in (7, 8)]
        stream = stage.stream([9], FOREVER)
        async with aclosing(stream):
            await anext(stream)
        assert await asyncio.gather(*kept) == [stage.plain([7]), stage.plain([8])]


async def test_cancel_ends_what_was_submitted_under_that_id_and_nothing_else():
    async with on_stage(max_sequences=4) as stage:
        ids = ("mine", "mine", "mine-2", "request", None, None)
        tasks = [stage.start([n], request_id=name) for n, name in enumerate(ids)]
        await until(lambda: stage.metric("num_requests_running") == 4)
        assert stage.coordinator.cancel("request") == 1
        assert stage.coordinator.cancel("mine") == 2
        assert stage.coordinator.cancel("request-5") == 0
        await asyncio.wait(tasks)
        are_cancelled = [type(task.exception()) is RequestCancelledError for task in tasks]
        assert are_cancelled == [name in ("mine", "request") for name in ids]


async def test_a_finished_request_does_not_count_as_cancelled():
    async with on_stage() as stage:
        await stage.tokens()
        assert stage.metric("request_cancelled_total") == 0
        assert stage.metric("request_success_total", finished_reason="length") == 1


async def test_requests_that_are_refused_or_fail_are_counted(quiet):
    async with on_stage(None, max_sequences=1, max_waiting=0) as stage:
        with pytest.raises(ContextLengthError):
            await stage.tokens([1] * 600)
        stage.verifier.gate.close()
        failing = stage.start()
        await stage.verifier.gate.arrival()
        with pytest.raises(OverloadedError):
            await stage.tokens()
        stage.verifier.error = VerifierError("device lost")
        stage.verifier.gate.open()
        await asyncio.wait([failing])
        refused = ("ContextLengthError", "OverloadedError")
        assert [stage.metric("request_refused_total", error=name) for name in refused] == [1, 1]
        assert stage.metric("request_failed_total", error="VerifierError") == 1
        assert stage.metric("request_cancelled_total") == 0


async def test_the_log_has_one_line_for_every_request_and_no_tokens(caplog):
    caplog.set_level(logging.INFO)
    async with on_stage(max_sequences=2) as stage:
        await stage.tokens(request_id="done")
        async with aclosing(stage.stream(PROMPT, FOREVER, request_id="gone")) as stream:
            await anext(stream)
        stage.verifier.error = VerifierError("device lost")
        with pytest.raises(VerifierError):
            await stage.tokens()
    lines = [r.getMessage() for r in caplog.records if r.name == "diffuspec.coordinator.request"]
    done, gone, failed = [line.rpartition(" (")[0] for line in lines]
    assert done == "request done-1: 5 prompt tokens, 24 output tokens, length"
    assert gone.startswith("request gone-2: 5 prompt tokens, ") and gone.endswith(", cancelled")
    assert failed == "request request-3: 5 prompt tokens, 0 output tokens, VerifierError"


# ---- a drafter that fails


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers fail here: neither report it nor wait long for them at shutdown."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(coordinator_module, "_GRACE_SECONDS", 0.02)


@pytest.mark.parametrize("error", [DrafterError("no memory"), ValueError("a bug")])
async def test_a_failing_drafter_costs_speed_only(error, quiet):
    async with on_stage() as stage:
        stage.drafter.error = error
        increments = [step async for step in stage.stream()]
        assert [i for step in increments for i in step.token_ids] == stage.plain()
        assert increments[0].step.fallback == "drafter_error"
        assert {step.step.fallback for step in increments[1:-1]} == {"drafter_unavailable"}
        assert stage.drafter.num_calls == 1, "the breaker keeps it from being asked again"
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        assert stage.metric("fallback_total", reason="drafter_unavailable") == 22


async def test_a_drafter_that_recovers_is_used_again_by_the_same_request(quiet):
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.05)
        stage.drafter.error = DrafterError("for a while")
        stream = stage.stream(PROMPT, FOREVER)
        async with aclosing(stream):
            first = await anext(stream)
            stage.drafter.error = None
            async for step in stream:
                if step.num_accepted_tokens:
                    break
        assert first.step.fallback == "drafter_error"
        assert step.step.fallback is None


async def test_a_drafter_that_failed_is_probed_with_one_draft_beside_the_requests(quiet):
    async with on_stage(max_sequences=4) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        stage.drafter.error = DrafterError("for a while")
        tasks = [stage.start([n, 7], FOREVER) for n in range(4)]
        await until(lambda: stage.metric("fallback_total", reason="drafter_error") > 0)
        stage.drafter.gate.close()
        await stage.drafter.gate.arrival()
        num_calls, num_steps = stage.drafter.num_calls, len(stage.verifier.batches)
        await until(lambda: len(stage.verifier.batches) > num_steps + 10)
        assert stage.drafter.num_calls == num_calls, "nobody asks while the probe is under way"
        assert len(stage.drafter.batches[-1]) == 1
        assert {len(batch) for batch in stage.verifier.batches[num_steps:]} == {4}, "all go on"
        stage.drafter.error = None
        stage.drafter.gate.open()
        for n, task in enumerate(tasks):
            assert await task == stage.plain([n, 7], FOREVER)
        assert max(len(batch) for batch in stage.drafter.batches[num_calls:]) > 1


async def test_a_drafter_that_hangs_holds_a_request_up_for_one_deadline_in_all(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_draft_seconds=5) as stage:
        slow_down(stage.verifier, "verify", 0.05)
        began = time.monotonic()
        assert await stage.tokens(PROMPT, FOREVER) == stage.plain(PROMPT, FOREVER)
        assert drafter.num_calls > 2, "it is probed"
        assert time.monotonic() - began == pytest.approx(5 + FOREVER.max_tokens * 0.05)
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        assert not stage.coordinator._economics.costs.draft.is_known
        busy = stage.coordinator._draft_busy.seconds(time.monotonic())
        assert busy == pytest.approx(5), "a probe is no work"


@pytest.mark.parametrize("end", ["cancelled", "finished"])
async def test_a_probe_ends_with_its_request_and_leaves_the_next_one_to_another(end, quiet):
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
        steps = [step.step async for step in stage.stream([2], SHORT)]
        assert any(step.num_tree_nodes for step in steps)


async def test_a_probe_under_way_is_cancelled_at_shutdown(quiet):
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


@pytest.fixture
def clock(monkeypatch):
    """A time that the test advances."""
    moment = [100.0]
    monkeypatch.setattr("diffuspec.coordinator.draft_lane.time.monotonic", lambda: moment[0])
    return moment


def test_the_breaker_pauses_longer_after_every_failure_up_to_a_limit(clock):
    breaker = draft_lane_module.Breaker()
    assert breaker.is_closed
    pauses = []
    for _ in range(9):
        breaker.failed()
        began = clock[0]
        while not breaker.take_trial():
            clock[0] += 0.25
        pauses.append(clock[0] - began)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    breaker.succeeded()
    assert breaker.is_closed
    breaker.failed()
    clock[0] += 0.5
    assert breaker.take_trial()


def test_the_breaker_lets_one_probe_through_at_a_time(clock):
    breaker = draft_lane_module.Breaker()
    assert not breaker.take_trial(), "there is nothing to find out while it is closed"
    breaker.failed()
    clock[0] += 1
    assert breaker.take_trial() and not breaker.take_trial()
    breaker.give_up_trial()
    assert breaker.take_trial()


@pytest.mark.parametrize("strategy", INVALID)
async def test_nonsense_from_a_drafter_is_dropped_for_that_request_alone(strategy, quiet):
    async with on_stage() as stage:
        honest = stage.drafter.strategy

        def mixed(rng: Any, request: DraftRequest, truth: list[int]) -> Draft:
            return (strategy if request.prefix[0] == 9 else honest)(rng, request, truth)

        stage.drafter.strategy = mixed
        bad, good = await asyncio.gather(stage.tokens([9]), stage.tokens())
        assert (bad, good) == (stage.plain([9]), stage.plain())
        assert stage.metric("fallback_total", reason="invalid_draft") > 0
        assert stage.metric("spec_decode_num_accepted_tokens_total") > 0


async def test_a_drafter_that_miscounts_has_failed(quiet):
    class Miscounting(FakeDrafter):
        async def draft(self, requests: Batch[DraftRequest]) -> list[Draft]:
            return []

    verifier = FakeVerifier()
    async with on_stage(Miscounting(oracle_of(verifier), always_right)) as stage:
        assert await stage.tokens() == stage.plain()
        assert stage.metric("fallback_total", reason="drafter_error") == 1


async def test_a_drafter_that_is_late_is_given_up(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_draft_seconds=0.02) as stage:
        assert await stage.tokens() == stage.plain()
        assert drafter.was_cancelled
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        await until(lambda: not stage.verifier.held)


async def test_cancelling_while_a_drafter_hangs_frees_slot_and_drafter_at_once(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_sequences=1) as stage:
        task, waiting = stage.start(), stage.start([9], SHORT, OFF)
        await drafter.is_asked.wait()
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: drafter.was_cancelled)
        assert await waiting == stage.plain([9])
        assert stage.metric("fallback_total", reason="drafter_error") == 0


async def test_a_call_that_others_wait_for_goes_on_when_one_is_cancelled():
    async with on_stage(max_sequences=2) as stage:
        stage.drafter.gate.close()
        gone, kept = stage.start([1]), stage.start([2])
        await stage.drafter.gate.arrival()
        assert len(stage.drafter.batches[0]) == 2
        gone.cancel()
        await asyncio.wait([gone])
        stage.drafter.gate.open()
        assert await kept == stage.plain([2])
        assert stage.drafter.num_calls == len(stage.drafter.batches)


async def test_a_hanging_drafter_holds_up_those_that_wait_behind_it_only_once(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter, max_sequences=2, max_draft_seconds=0.05) as stage:
        first = stage.start([1])
        await drafter.is_asked.wait()
        second = stage.start([2])
        assert await first == stage.plain([1]) and await second == stage.plain([2])
        assert stage.metric("fallback_total", reason="drafter_error") == 1
        assert stage.metric("fallback_total", reason="drafter_unavailable") > 1


async def test_a_drafter_that_will_not_release_holds_nobody_up(quiet):
    async with on_stage(max_sequences=1) as stage:

        async def never(request_id: str) -> None:
            await asyncio.Event().wait()

        stage.drafter.release = never
        for prompt in ([7], [8]):
            assert await stage.tokens(prompt) == stage.plain(prompt)


# ---- a verifier that fails


@pytest.mark.parametrize("error", [VerifierError("device lost"), RuntimeError("a bug")])
async def test_a_failing_verifier_ends_the_requests_of_that_batch_alone(error, quiet):
    async with on_stage(None, max_sequences=2) as stage:
        stage.verifier.gate.close()
        failing = [stage.start([n]) for n in (7, 8)]
        waiting = stage.start([9])
        await stage.verifier.gate.arrival()
        assert [r.prefix[0] for r in stage.verifier.batches[0]] == [7, 8]
        stage.verifier.error = error
        stage.verifier.gate.open()
        await until(lambda: all(task.done() for task in failing))
        stage.verifier.error = None
        for task in failing:
            with pytest.raises(VerifierError, match=r"device lost|a bug"):
                await task
        assert await waiting == stage.plain([9])
        await until(lambda: not stage.verifier.held)
        assert stage.metric("request_cancelled_total") == 0


GONE = VerifierUnavailableError("the group is being rebuilt")


def fail_verifications(stage: Any, count: int) -> None:
    """The next so many verifications find nobody there."""
    verify, left = stage.verifier.verify, [count]

    async def failing(requests: Batch[VerifyRequest]) -> list[Verdict]:
        if left[0]:
            left[0] -= 1
            raise GONE
        return await verify(requests)

    stage.verifier.verify = failing


@pytest.mark.parametrize("num_failures", [1, 2, 7])
async def test_requests_outlive_an_outage_of_the_verifier(num_failures, quiet):
    async with on_stage(max_sequences=4, prefill_chunk_tokens=16) as stage:
        prompts = [[n, 7] for n in range(3)] + [[n % 50 for n in range(60)]]
        streams = [stage.stream(prompt) for prompt in prompts]
        begun = [list((await anext(stream)).token_ids) for stream in streams[:2]]
        fail_verifications(stage, num_failures)
        others = [asyncio.ensure_future(collect(stream)) for stream in streams]
        answers = [tokens + await rest for tokens, rest in zip(begun, others[:2], strict=True)]
        answers += [await rest for rest in others[2:]]
        assert answers == [stage.plain(prompt) for prompt in prompts]
        assert stage.metric("request_success_total", finished_reason="length") == 4


class ForgetfulVerifier(FakeVerifier):
    """Made anew again and again, each time without its cache; late with much that is unread."""

    def __init__(self, max_unread: int, lasts: int) -> None:
        super().__init__()
        self.num_lost = 0
        self._max_unread, self._lasts = max_unread, lasts
        self._num_left = lasts
        self._num_read: dict[str, int] = {}

    async def verify(self, requests: Batch[VerifyRequest]) -> list[Verdict]:
        for request in requests:
            num_read = self._num_read.get(request.request_id, 0)
            if len(request.prefix) - num_read > self._max_unread:
                raise VerifierUnavailableError("late")
        self._num_left -= 1
        if not self._num_left:
            self._num_left, self._num_read = self._lasts, {}
            self.num_lost += 1
            raise VerifierUnavailableError("made anew")
        verdicts = await super().verify(requests)
        for request, verdict in zip(requests, verdicts, strict=True):
            num_committed = len(verdict.token_ids)
            self._num_read[request.request_id] = len(request.prefix) + num_committed - 1
        return verdicts


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_verifier_made_anew_reads_long_prefixes_in_chunks_again(overlap, quiet):
    verifier = ForgetfulVerifier(max_unread=16, lasts=60)
    drafter = FakeDrafter(oracle_of(verifier), sometimes_right)
    config = CoordinatorConfig(overlap=overlap, prefill_chunk_tokens=16)
    prompts = [[n % 50 for n in range(100)], [7], [n % 40 for n in range(60)]]
    async with Coordinator(verifier, drafter, config, DraftLengthConfig()) as coordinator:
        stage = Stage(coordinator, verifier, drafter)
        answers = await asyncio.gather(*(stage.tokens(prompt, FOREVER) for prompt in prompts))
        assert answers == [stage.plain(prompt, FOREVER) for prompt in prompts]
    assert verifier.num_lost > 1
    requests = [request for batch in verifier.batches for request in batch]
    assert any(len(request.prefix) > 200 for request in requests)


async def collect(stream: Any) -> list[int]:
    return [i async for step in stream for i in step.token_ids]


async def test_an_outage_that_lasts_too_long_ends_what_it_held_up(quiet):
    async with on_stage(max_verifier_outage_seconds=2) as stage:
        fail_verifications(stage, 10**6)
        tasks = [stage.start([n]) for n in range(3)]
        for task in tasks:
            with pytest.raises(VerifierUnavailableError, match="being rebuilt"):
                await task
        await until(lambda: not list(stage.coordinator._admission))


async def test_every_outage_has_its_own_patience(quiet):
    async with on_stage(max_sequences=1, max_verifier_outage_seconds=5) as stage:
        for _ in range(4):
            fail_verifications(stage, 3)
            await stage.tokens()
        fail_verifications(stage, 8)
        assert await stage.tokens() == stage.plain()


async def test_a_request_cancelled_during_an_outage_is_gone_at_once(quiet):
    async with on_stage(max_sequences=1) as stage:
        fail_verifications(stage, 10**6)
        task = stage.start()
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not list(stage.coordinator._admission))


async def test_pauses_grow_while_the_verifier_is_unavailable_and_start_over_when_it_is_back(quiet):
    async with on_stage(None) as stage:
        calls: list[float] = []
        verify = stage.verifier.verify

        async def timed(requests: Batch[VerifyRequest]) -> list[Verdict]:
            calls.append(time.monotonic())
            if len(calls) != 9:
                raise GONE
            return await verify(requests)

        stage.verifier.verify = timed  # type: ignore[method-assign]
        task = stage.start()
        await until(lambda: len(calls) == 12)
        task.cancel()
    pauses = [later - earlier for earlier, later in pairwise(calls)]
    assert pauses[:8] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1])
    assert pauses[8:] == pytest.approx([0, 0.05, 0.1]), "the ninth call succeeded"


async def test_a_verifier_that_miscounts_has_failed(quiet):
    async with on_stage() as stage:

        async def no_verdicts(requests: Batch[VerifyRequest]) -> list[Verdict]:
            return []

        stage.verifier.verify = no_verdicts  # type: ignore[method-assign]
        with pytest.raises(VerifierError, match="0 verdicts for 1 requests"):
            await stage.tokens()


async def test_a_verifier_that_cannot_release_stops_nobody(quiet):
    async with on_stage(max_sequences=1) as stage:
        stage.verifier.release_error = OSError("connection lost")
        for prompt in ([7], [8]):
            assert await stage.tokens(prompt) == stage.plain(prompt)


async def test_a_bug_in_the_loop_ends_its_requests_and_not_the_loop(quiet, monkeypatch):
    async with on_stage() as stage:
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_module, "step_stats", lambda *_: 1 / 0)
            with pytest.raises(VerifierError, match="division by zero"):
                await stage.tokens()
        assert await stage.tokens() == stage.plain()


async def test_a_bug_in_how_requests_end_leaves_nobody_waiting(quiet, monkeypatch):
    async with on_stage(max_sequences=2) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_module, "step_stats", lambda *_: 1 / 0)
            patch.setattr(coordinator_module.Coordinator, "_free", lambda *_: [][0])
            for task in [stage.start([n]) for n in range(4)]:
                with pytest.raises(VerifierError, match=r"broke off|failed: division"):
                    await task
        for request in list(stage.coordinator._admission):
            stage.coordinator._free(request)
        assert await stage.tokens() == stage.plain()


async def test_a_bug_at_the_beginning_of_a_request_ends_that_one_and_frees_its_slot(
    quiet, monkeypatch
):
    async with on_stage(max_sequences=1) as stage:
        stage.drafter.gate.close()
        running = stage.start()
        await stage.drafter.gate.arrival()
        failing, waiting = stage.start([9]), stage.start([8], SHORT, OFF)
        plan_draft = Request.plan_draft
        monkeypatch.setattr(
            Request,
            "plan_draft",
            lambda self: 1 // (self.prefix[0] != 9) and plan_draft(self),
        )
        running.cancel()
        with pytest.raises(VerifierError, match="by zero"):
            await failing
        assert await waiting == stage.plain([8])
        with pytest.raises(VerifierError, match="by zero"):
            await stage.tokens([9])
        assert await stage.coordinator.drain(1), "nobody holds a slot any more"


# ---- shutdown


@pytest.mark.parametrize("where", ["verifier", "drafter"])
async def test_shutdown_ends_every_stream_with_an_error(where):
    async with on_stage(max_sequences=1) as stage:
        getattr(stage, where).gate.close()
        tasks = [stage.start() for _ in range(3)]
        await getattr(stage, where).gate.arrival()
    done, pending = await asyncio.wait(tasks, timeout=5)
    assert not pending
    assert {type(task.exception()) for task in done} == {RequestCancelledError}


async def test_shutdown_does_not_wait_for_a_worker_that_hangs(quiet):
    drafter = HangingDrafter()
    async with on_stage(drafter) as stage:
        task = stage.start()
        await drafter.is_asked.wait()
    assert drafter.was_cancelled
    with pytest.raises(RequestCancelledError, match="shut down"):
        await task


async def test_draining_lets_everybody_finish_and_nobody_in():
    async with on_stage(max_sequences=1) as stage:
        stage.verifier.gate.close()
        tasks = [stage.start([n]) for n in range(3)]
        await stage.verifier.gate.arrival()
        draining = asyncio.create_task(stage.coordinator.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="shutting down"):
            await stage.tokens()
        stage.verifier.gate.open()
        assert await draining is True
        assert [await task for task in tasks] == [stage.plain([n]) for n in range(3)]


async def test_draining_cancels_what_does_not_finish_in_time():
    async with on_stage(max_sequences=1) as stage:
        running, waiting = stage.start([1], FOREVER), stage.start([2])
        await until(lambda: len(stage.verifier.batches) > 2)
        stage.verifier.gate.close()
        await stage.verifier.gate.arrival()
        assert await stage.coordinator.drain(0.01) is False
        for task in (running, waiting):
            with pytest.raises(RequestCancelledError, match=r"0\.01 s after the notice"):
                await task
        stage.verifier.gate.open()
        await until(lambda: not stage.verifier.held)


async def test_draining_an_idle_coordinator_takes_no_time():
    async with on_stage() as stage:
        assert await stage.coordinator.drain(0.0) is True


async def test_requests_before_the_start_and_after_shutdown_are_refused():
    async with on_stage() as stage:
        pass
    with pytest.raises(RequestCancelledError, match="not running"):
        await stage.tokens()


async def test_what_had_been_committed_before_shutdown_is_delivered():
    async with on_stage(None, max_sequences=1) as stage:
        stream = stage.stream(PROMPT, FOREVER)
        received = list((await anext(stream)).token_ids)
        await until(lambda: len(stage.verifier.batches) > 5)
    with pytest.raises(RequestCancelledError):
        async for step in stream:
            received += step.token_ids
    assert len(received) >= 5
    assert received == stage.plain(PROMPT, FOREVER)[: len(received)]


# ---- costs that are learnt


async def test_costs_are_learnt_from_decoding_steps_and_not_from_prompts():
    async with on_stage(prefill_chunk_tokens=16) as stage:
        costs = stage.coordinator._economics.costs
        await stage.tokens([1] * 100, SamplingParams(max_tokens=1))
        assert not costs.verify.is_known and not costs.draft.is_known
        assert costs.overhead_seconds == 0
        await stage.tokens()
        assert costs.verify.is_known and costs.draft.is_known
