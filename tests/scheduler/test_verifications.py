"""Verifications: what is verified together, prompts in chunks, failures and outages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

import pytest

from diffuspec.core.errors import InvalidRequestError, VerifierError, VerifierUnavailableError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Verdict, VerifyRequest
from tests.support.fakes import FakeVerifier, always_right, sometimes_right
from tests.support.stage import (
    FOREVER,
    LONG,
    PROMPT,
    UNAVAILABLE,
    fail_verifications,
    fake_drafter,
    on_stage,
    rest_of,
    slow_down,
    until,
)

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


async def test_requests_are_verified_together():
    async with on_stage(max_sequences=4) as stage:
        prompts = [[n, n + 1] for n in range(4)]
        answers = await asyncio.gather(*(stage.tokens(prompt) for prompt in prompts))
        assert answers == [stage.plain(prompt) for prompt in prompts]
        assert max(map(len, stage.verifier.batches)) > 1


async def test_a_draft_waits_for_one_under_way_if_verifying_both_takes_no_longer():
    async with on_stage(fake_drafter(always_right)) as stage:
        slow_down(stage.drafter, "draft", 0.2)
        slow_down(stage.verifier, "verify", 1.0)
        first = stage.start([0], LONG)
        await until(lambda: len(stage.verifier.batches) == 3)
        assert await stage.tokens([1], LONG) == stage.plain([1], LONG)
        assert await first == stage.plain([0], LONG)
        assert [len(batch) for batch in stage.verifier.batches[5:10]] == [2] * 5


async def test_requests_go_on_beside_one_that_the_verifier_holds():
    async with on_stage(fake_drafter(always_right), max_sequences=2) as stage:
        verify, num_held = stage.verifier.verify, 0

        async def hold_first(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            nonlocal num_held
            await asyncio.sleep(0.01)
            verdicts = await verify(requests)
            is_held = [one.prefix[0] == 1 and num_held < 20 for one in requests]
            num_held += any(is_held)
            pairs = zip(is_held, verdicts, strict=True)
            return [replace(v, is_held=True) if held else v for held, v in pairs]

        stage.verifier.verify = hold_first  # type: ignore[method-assign]
        held, other = stage.start([1], LONG), stage.start([2], LONG)
        assert await other == stage.plain([2], LONG)
        assert await held == stage.plain([1], LONG)
        assert num_held == 20


# ---- prefill


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 101])
async def test_a_prompt_read_in_chunks_gives_the_same_tokens(chunk):
    prompt = [n % 50 for n in range(100)]
    async with on_stage(prefill_chunk_tokens=chunk) as stage:
        assert await stage.tokens(prompt) == stage.plain(prompt)
        lengths = [len(r.prefix) for b in stage.verifier.batches for r in b][:3]
        assert lengths[0] == min(chunk, 100)


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
        assert {batch_size for batch_size, _ in chunks[:-1]} == {2}, "both go on"


async def test_on_a_slow_processor_a_long_prompt_holds_up_no_short_one():
    async with on_stage(None, max_sequences=2, max_prefill_seconds=0.25) as stage:
        verify, read = stage.verifier.verify, dict[str, int]()

        async def verify_slowly(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            verdicts = await verify(requests)
            for one, verdict in zip(requests, verdicts, strict=True):
                before = read.get(one.request_id, 0)
                read[one.request_id] = len(one.prefix) - verdict.num_unread_tokens
                num_rows = max(read[one.request_id] - before, 1) + one.tree.num_nodes
                await asyncio.sleep(0.005 * num_rows)  # 200 tokens a second
            return verdicts

        stage.verifier.verify = verify_slowly  # type: ignore[method-assign]
        await stage.coordinator.profile(20.0)
        one = SamplingParams(max_tokens=1)
        long = stage.start([1 + n % 49 for n in range(480)], one)
        await asyncio.sleep(0.5)
        started = time.monotonic()
        await stage.tokens([7, 8, 9], one)
        assert time.monotonic() - started < 0.7 and not long.done()
        await long


# ---- failures


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


@pytest.mark.parametrize(
    "error", [VerifierError("not finite"), InvalidRequestError("no"), RuntimeError("a bug")]
)
@pytest.mark.parametrize("bad", [(2,), (0, 3)])
@pytest.mark.parametrize("drafter", [None, "fake"])
async def test_a_request_that_the_verifier_fails_at_ends_alone(error, bad, drafter, quiet):
    async with on_stage(drafter, max_sequences=4) as stage:
        verify = stage.verifier.verify

        async def choosy(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            verdicts = await verify(requests)
            if any(r.prefix[0] in bad and len(r.prefix) > 4 for r in requests):
                raise error
            return verdicts

        stage.verifier.verify = choosy  # type: ignore[method-assign]
        tasks = [stage.start([n, 7]) for n in range(4)]
        await asyncio.wait(tasks)
        for n, task in enumerate(tasks):
            if n in bad:
                with pytest.raises((VerifierError, InvalidRequestError), match=str(error)):
                    await task
            else:
                assert await task == stage.plain([n, 7])
        assert max(map(len, stage.verifier.batches)) == 4
        await until(lambda: not stage.verifier.held)


async def test_a_verifier_that_returns_too_few_verdicts_has_failed(quiet):
    async with on_stage() as stage:

        async def no_verdicts(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            return []

        stage.verifier.verify = no_verdicts  # type: ignore[method-assign]
        with pytest.raises(VerifierError, match="0 verdicts for 1 requests"):
            await stage.tokens()


# ---- outages


@pytest.mark.parametrize("num_failures", [1, 2, 7])
async def test_requests_outlive_an_outage_of_the_verifier(num_failures, quiet):
    async with on_stage(max_sequences=4, prefill_chunk_tokens=16) as stage:
        prompts = [[n, 7] for n in range(3)] + [[n % 50 for n in range(60)]]
        streams = [stage.stream(prompt) for prompt in prompts]
        begun = [list((await anext(stream)).token_ids) for stream in streams[:2]]
        fail_verifications(stage, num_failures)
        rests = [asyncio.ensure_future(rest_of(stream)) for stream in streams]
        answers = [tokens + await rest for tokens, rest in zip(begun, rests[:2], strict=True)]
        answers += [await rest for rest in rests[2:]]
        assert answers == [stage.plain(prompt) for prompt in prompts]
        assert stage.metric("request_success_total", finished_reason="length") == 4


class ForgetfulVerifier(FakeVerifier):
    """Loses its cache every `period` calls; fails calls with more than `max_unread` to read."""

    def __init__(self, max_unread: int, period: int) -> None:
        super().__init__()
        self.num_losses = 0
        self._max_unread, self._period = max_unread, period
        self._num_left = period

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        for request in requests:
            num_read = self.num_read.get(request.request_id, 0)
            if len(request.up_to_limit(num_read).prefix) - num_read > self._max_unread:
                raise VerifierUnavailableError("late")
        self._num_left -= 1
        if not self._num_left:
            self._num_left, self.num_read = self._period, {}
            self.num_losses += 1
            raise VerifierUnavailableError("the cache is lost")
        return await super().verify(requests)


@pytest.mark.parametrize("overlap", [False, True])
async def test_a_verifier_that_lost_its_cache_reads_long_prefixes_in_chunks_again(overlap, quiet):
    verifier = ForgetfulVerifier(max_unread=16, period=60)
    prompts = [[n % 50 for n in range(100)], [7], [n % 40 for n in range(60)]]
    async with on_stage(verifier=verifier, overlap=overlap, prefill_chunk_tokens=16) as stage:
        answers = await asyncio.gather(*(stage.tokens(prompt, FOREVER) for prompt in prompts))
        assert answers == [stage.plain(prompt, FOREVER) for prompt in prompts]
    assert verifier.num_losses > 1
    requests = [request for batch in verifier.batches for request in batch]
    assert any(len(request.prefix) > 200 for request in requests)


async def test_an_outage_that_lasts_too_long_ends_the_requests_held(quiet):
    async with on_stage(max_verifier_outage_seconds=2) as stage:
        fail_verifications(stage, 10**6)
        tasks = [stage.start([n]) for n in range(3)]
        for task in tasks:
            with pytest.raises(VerifierUnavailableError, match="being rebuilt"):
                await task
        await until(lambda: stage.is_empty)


async def test_the_limit_on_an_outage_counts_from_its_own_beginning(quiet):
    async with on_stage(max_sequences=1, max_verifier_outage_seconds=5) as stage:
        for _ in range(4):
            fail_verifications(stage, 3)
            await stage.tokens()
        fail_verifications(stage, 8)
        assert await stage.tokens() == stage.plain()


async def test_a_request_cancelled_during_an_outage_is_freed(quiet):
    async with on_stage(max_sequences=1) as stage:
        fail_verifications(stage, 10**6)
        task = stage.start()
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: stage.is_empty)


async def test_pauses_grow_during_an_outage_and_start_over_after_it(quiet):
    async with on_stage(None) as stage:
        calls: list[float] = []
        verify = stage.verifier.verify

        async def timed(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            calls.append(time.monotonic())
            if len(calls) != 9:
                raise UNAVAILABLE
            return await verify(requests)

        stage.verifier.verify = timed  # type: ignore[method-assign]
        task = stage.start()
        await until(lambda: len(calls) == 12)
        task.cancel()
    pauses = [later - earlier for earlier, later in pairwise(calls)]
    assert pauses[:8] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1, 1, 1])
    assert pauses[8:] == pytest.approx([0, 0.05, 0.1]), "the ninth call succeeded"


@pytest.mark.parametrize("number", [1, 4])
async def test_an_outage_is_no_loss_of_drafts(number):
    async with on_stage(fake_drafter(sometimes_right), max_sequences=number) as stage:
        slow_down(stage.verifier, "verify", 0.02)
        slow_down(stage.drafter, "draft", 0.05 / number)
        await stage.coordinator.profile()
        verify, at, failures = stage.verifier.verify, time.monotonic() + 0.3, [UNAVAILABLE]

        async def fail_once(requests: Sequence[VerifyRequest]) -> list[Verdict]:
            if failures and time.monotonic() >= at:
                await asyncio.sleep(10)
                raise failures.pop()
            return await verify(requests)

        stage.verifier.verify = fail_once  # type: ignore[method-assign]
        some = SpeculationParams(num_outcomes=0)
        await asyncio.gather(*[stage.tokens([n, 2], FOREVER, some) for n in range(number)])
        assert (
            not failures and stage.coordinator.loop.learner.guard.num_stopped_steps("", number) == 0
        )
