"""The verify stage: batches, prefill in chunks, failures and outages of the verifier."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.control.costs import BusyTime, StepCosts
from diffuspec.coordinator.draft_batch import DraftBatch
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.verify_batch import StepResult, Verified
from diffuspec.coordinator.verify_stage import VerifyStage
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.errors import InvalidRequestError, VerifierError, VerifierUnavailableError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import Draft, Verdict, VerifyRequest
from tests.support.fakes import FakeVerifier, always_right
from tests.support.stage import (
    FOREVER,
    LONG,
    PROMPT,
    UNAVAILABLE,
    fail_verifications,
    fake_drafter,
    make_request,
    on_stage,
    pool_of,
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


async def test_a_draft_waits_for_one_under_way_where_verifying_both_takes_no_longer():
    async with on_stage(fake_drafter(always_right)) as stage:
        slow_down(stage.drafter, "draft", 0.2)
        slow_down(stage.verifier, "verify", 1.0)
        first = stage.start([0], LONG)
        await until(lambda: len(stage.verifier.batches) == 3)
        assert await stage.tokens([1], LONG) == stage.plain([1], LONG)
        assert await first == stage.plain([0], LONG)
        assert [len(batch) for batch in stage.verifier.batches[5:10]] == [2] * 5


@pytest.mark.parametrize(("comes_after", "ends_after", "size"), [(0.2, 0.2, 2), (9.0, 0.8, 1)])
async def test_a_draft_waits_no_longer_for_another_than_verifying_both_would_save(
    comes_after, ends_after, size
):
    costs, pool, now = StepCosts(), pool_of([fake_drafter()]), time.monotonic()
    for num_rows in (5, 10):
        costs.observe_verify(num_rows, 1, 5, 1.0)
    costs.observe_draft(4, 1, 0.2)
    costs.observe_draft(8, 2, 0.2)
    stage = VerifyStage(FakeVerifier(), CoordinatorConfig(), [costs], BusyTime(), pool)
    ready, coming = make_request(), make_request()
    for request in (ready, coming):
        request.reading.num_read, request.num_draft_tokens = len(PROMPT) - 1, 4
        request.enter("drafting", "a draft")
    coming.is_known_to_drafter = True
    pool.lanes[0].under_way = DraftBatch([coming], [], costs)  # takes 0.2 s
    stage.queue.put(ready)

    def arrive() -> None:
        pool.lanes[0].under_way = None
        stage.queue.put(coming)

    asyncio.get_running_loop().call_later(comes_after, arrive)
    batch = await stage.take()
    assert len(batch.requests) == size
    assert time.monotonic() - now == pytest.approx(ends_after, abs=0.01)


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


# ---- first tokens


def stage_of(costs: StepCosts) -> VerifyStage:
    return VerifyStage(FakeVerifier(), CoordinatorConfig(), [costs], BusyTime(), pool_of([]))


def costs_of(seconds_per_row: float) -> StepCosts:
    """Return the costs of a target whose verifications take a second, and that much for a row."""
    costs = StepCosts(crowding=1.0)
    costs.num_running = 4
    for num_rows in (1, 60, 120):
        costs.observe_verify(num_rows, 1, 1, 1.0 + seconds_per_row * num_rows)
    return costs


def reader(num_tokens: int = 50) -> Request:
    """Return a request whose prompt is to be read now."""
    request = make_request(range(num_tokens))
    request.enter("verifying", "the verifier")
    return request


def drafted(num_nodes: int) -> Request:
    """Return a request whose draft is to be verified now."""
    request = make_request()
    request.reading.num_read = len(PROMPT) - 1
    request.draft = Draft(chain([7] * num_nodes), (-0.1,) * num_nodes, num_nodes)
    request.enter("verifying", "the verifier")
    return request


@pytest.mark.parametrize(
    ("seconds_per_row", "num_nodes", "sizes"),  # a prompt comes with each verification but the last
    [
        (0.0, 20, [4, 1]),  # 3 x 21 rows are no more than 50 of the prompt and 32
        (0.1, 2, [4, 1]),  # and 3 x 3 take no longer than a verification of one row
        (0.1, 20, [1, 4]),
        (0.1, 90, [1, 2, 1, 2, 1, 2]),  # at least one is let in when all were put off before
    ],
)
async def test_drafts_that_would_delay_a_first_token_are_put_off_but_not_twice_in_a_row(
    seconds_per_row, num_nodes, sizes
):
    stage = stage_of(costs_of(seconds_per_row))
    for request in (reader(), *(drafted(num_nodes) for _ in range(3))):
        stage.queue.put(request)
    found = []
    while any(stage.queue):
        found.append(len((await stage.take()).requests))
        if len(found) < len(sizes):
            stage.queue.put(reader())
    assert found == sizes


@pytest.mark.parametrize(
    ("seconds_per_row", "num_tokens", "batches"),
    [
        (0.0, [400, 20, 30], [[400, 20, 30]]),  # a target that reads 450 tokens as fast as 20
        (0.1, [400, 20, 30], [[20, 30], [400]]),
        (0.1, [20, 40], [[20, 40]]),  # 4 s more, where a verification takes at least 1.1 s
        (0.1, [300, 20, 200], [[20], [200], [300]]),
        (0.1, [500, 20, 100, 200, 300, 400], [[20], [100], [200], [300, 400, 500]]),  # 3 waits
    ],
)
async def test_a_short_prompt_does_not_wait_for_much_longer_ones(
    seconds_per_row, num_tokens, batches
):
    stage = stage_of(costs_of(seconds_per_row))
    for number in num_tokens:
        stage.queue.put(reader(number))
    found = []
    while any(stage.queue):
        found.append([request.num_tokens for request in (await stage.take()).requests])
    assert [sorted(batch) for batch in found] == [sorted(batch) for batch in batches]


async def test_the_time_for_which_a_draft_is_put_off_is_no_cost_of_drafting():
    stage, request = stage_of(costs_of(0.1)), drafted(20)
    slow_down(stage._verifier, "verify", 2.0)
    stage.queue.put(reader())
    stage.queue.put(request)
    await stage.run(await stage.take(), lambda request, result: None)
    assert request.times.yielded_seconds == pytest.approx(2.0, abs=0.01)


async def test_requests_without_drafts_are_verified_beside_prompts():
    stage = stage_of(costs_of(0.1))
    for request in (reader(), *(drafted(0) for _ in range(3))):
        stage.queue.put(request)
    assert len((await stage.take()).requests) == 4


@pytest.mark.parametrize("seconds", [1.0, math.inf])
async def test_a_draft_call_that_would_delay_a_first_token_waits_for_it(seconds):
    stage = stage_of(costs_of(0.01))
    stage.queue.put(reader())
    waiting = asyncio.create_task(stage.let_prompts_go_first(seconds))
    batch = await stage.take()
    assert not waiting.done()

    def commit(request: Request, result: StepResult) -> None:
        assert isinstance(result, Verified)
        request.commit(result.verdict)

    await stage.run(batch, commit)
    await waiting


@pytest.mark.parametrize(("crowding", "seconds"), [(0.0, math.inf), (0.01, 1.0), (1.0, 0.01)])
async def test_a_draft_call_that_delays_no_first_token_begins_at_once(crowding, seconds):
    costs = costs_of(0.01)
    costs.crowding = crowding
    stage = stage_of(costs)
    stage.queue.put(reader())
    await asyncio.wait_for(stage.let_prompts_go_first(seconds), 1.0)


async def test_a_draft_call_does_not_wait_for_a_prompt_that_takes_several_verifications():
    stage = stage_of(costs_of(0.01))
    stage.queue.put(reader(CoordinatorConfig().prefill_chunk_tokens + 1))
    await asyncio.wait_for(stage.let_prompts_go_first(1.0), 1.0)


async def test_a_draft_call_waits_for_no_request_that_has_ended():
    stage, request = stage_of(costs_of(0.01)), reader()
    stage.queue.put(request)
    waiting = asyncio.create_task(stage.let_prompts_go_first(1.0))
    await asyncio.sleep(1.0)
    assert not waiting.done()
    request.close("cancelled")
    stage.drop(request)
    await asyncio.wait_for(waiting, 1.0)


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
        for request in map(self._up_to_limit, requests):
            if len(request.prefix) - self.num_read.get(request.request_id, 0) > self._max_unread:
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
