"""First tokens come soon: what is verified beside a prompt, and what waits until it is read."""

from __future__ import annotations

import asyncio
import math

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.control.costs import BusyTime, StepCosts
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.verify_batch import StepResult, Verified
from diffuspec.coordinator.verify_stage import VerifyStage
from diffuspec.core.config import CoordinatorConfig
from diffuspec.core.types import Draft
from tests.support.fakes import FakeVerifier
from tests.support.stage import FOREVER, PROMPT, make_request, on_stage, pool_of, slow_down

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


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


async def test_a_prompt_that_comes_while_the_verifier_keeps_the_loop_is_read_next():
    stage = stage_of(costs_of(0.01))
    stage.queue.put(drafted(0))

    async def ask() -> None:
        stage.queue.put(reader())

    asking = asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(ask()))
    assert len((await stage.take()).requests) == 2
    asking.cancel()


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


async def test_first_tokens_go_out_before_a_draft_call_that_waited_for_them():
    stage = stage_of(costs_of(0.01))
    going_out: list[asyncio.Task[None]] = []
    stage.queue.put(reader())

    async def go_out() -> None:
        for _ in range(2):  # turns of the loop: an output is taken, then its frame is sent
            await asyncio.sleep(0)

    def commit(request: Request, result: StepResult) -> None:
        assert isinstance(result, Verified)
        request.commit(result.verdict)
        going_out.append(asyncio.create_task(go_out()))

    async def verify() -> None:
        await stage.run(await stage.take(), commit)

    verifying = asyncio.create_task(verify())
    await stage.let_prompts_go_first(1.0)
    assert going_out[0].done()
    await verifying


@pytest.mark.parametrize(
    ("crowding", "seconds", "is_expected"),
    [
        (1.0, 2.0, True),
        (0.0, 2.0, False),  # a draft call would not delay a prompt
        (1.0, 0.5, False),  # a step without drafts would delay it longer: it takes 1.04 s
        (1.0, math.inf, True),  # a call that reads prompts has no estimated duration
    ],
)
async def test_a_draft_call_that_takes_longer_than_a_plain_step_waits_for_a_prompt_that_is_due(
    crowding, seconds, is_expected
):
    costs = costs_of(0.01)
    costs.crowding = crowding
    stage = stage_of(costs)
    for _ in range(2):
        stage.drop(drafted(0))
        found = stage.expects_prompt(seconds)
        stage.next_prompt.note_prompt()
    assert found == is_expected


@pytest.mark.parametrize(("waits", "counts"), [(False, range(2, 20)), (True, [0])])
async def test_others_step_without_drafts_only_while_clients_ask_again_at_once(waits, counts):
    async with on_stage() as stage:
        slow_down(stage.verifier, "verify", 0.001)
        slow_down(stage.drafter, "draft", 0.002)
        longer = asyncio.create_task(stage.steps(PROMPT, FOREVER))
        for number in range(4):
            assert await stage.tokens([number]) == stage.plain([number])
            await asyncio.sleep(0.01 if waits else 0.001)
        steps = await longer
        assert [step.num_draft_tokens for step in steps[:-1]].count(0) in counts
        assert {step.fallback for step in steps} == {None}
