"""The coordinator over fake workers: what streams yield, and how requests end."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import (
    ContextLengthError,
    OverloadedError,
    RequestCancelledError,
    VerifierError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import FinishReason
from diffuspec.scheduler import coordinator as coordinator_module
from diffuspec.scheduler.coordinator import MAX_UNREAD_OUTPUTS, Coordinator
from diffuspec.scheduler.loop import Loop
from tests.support.fakes import FakeVerifier, HangingDrafter
from tests.support.stage import FOREVER, OFF, PROMPT, SHORT, Stage, on_stage, rest_of, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.timeout(60)]


@pytest.mark.parametrize("drafter", [None, "fake"])
async def test_the_tokens_are_those_of_plain_decoding(drafter):
    async with on_stage(drafter) as stage:
        assert await stage.tokens() == stage.plain()


async def test_an_output_counts_accepted_tokens_apart_from_the_targets_own():
    async with on_stage() as stage:
        outputs = [output async for output in stage.stream()]
    assert all(len(one.token_ids) == one.num_accepted_tokens + 1 for one in outputs)
    assert max(one.num_accepted_tokens for one in outputs) > 1
    assert [one.finish_reason for one in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason is FinishReason.LENGTH


async def test_an_output_has_its_draft_only_if_that_is_asked_for():
    async with on_stage() as stage:
        silent = [output async for output in stage.stream()]
        asked = SpeculationParams(policy="fixed", report_drafts=True)
        outputs = [output async for output in stage.stream(speculation=asked)]
    assert not any(output.draft for output in silent)
    drafted = [output for output in outputs if output.step.num_tree_nodes]
    assert drafted
    for output in drafted:
        taken = [output.draft.tree.token_ids[node] for node in output.draft.accepted_nodes]
        assert taken == list(output.token_ids[: output.num_accepted_tokens])
        assert len(output.draft.confidences) == output.step.num_tree_nodes


async def test_requests_may_share_an_id_and_a_prompt():
    async with on_stage() as stage:
        same = [stage.tokens(request_id="same") for _ in range(2)]
        assert await asyncio.gather(*same) == [stage.plain()] * 2
        seen = {r.request_id for batch in stage.verifier.batches for r in batch}
        assert len(seen) == 2 and all(name.startswith("same-") for name in seen)


async def test_a_slow_consumer_gets_every_token_and_delays_no_other_request():
    async with on_stage() as stage:
        slow = stage.stream()
        received = list((await anext(slow)).token_ids)
        assert await stage.tokens([9, 9]) == stage.plain([9, 9])
        await until(lambda: not stage.verifier.held)
        assert received + await rest_of(slow) == stage.plain()


# ---- cancellation


@pytest.mark.parametrize("num_steps", [0, 1, 3])
async def test_closing_a_stream_frees_its_slot_within_one_step(num_steps):
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


async def test_a_request_cancelled_while_waiting_leaves_the_queue():
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


async def test_a_request_cancelled_while_drafting_is_freed_without_a_verification():
    async with on_stage(max_sequences=1) as stage:
        stage.drafter.gate.close()
        task = stage.start()
        await stage.drafter.gate.arrival()
        task.cancel()
        await asyncio.wait([task])
        stage.drafter.gate.open()
        assert await stage.tokens([9]) == stage.plain([9])
        assert all(r.prefix[0] == 9 for b in stage.verifier.batches for r in b)


async def test_a_request_cancelled_while_verifying_is_freed_right_after_it():
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


async def test_cancelling_a_request_does_not_touch_others_in_its_batch():
    async with on_stage(max_sequences=4) as stage:
        kept = [stage.start([n]) for n in (7, 8)]
        stream = stage.stream([9], FOREVER)
        async with aclosing(stream):
            await anext(stream)
        assert await asyncio.gather(*kept) == [stage.plain([7]), stage.plain([8])]


async def test_cancel_ends_all_requests_submitted_under_an_id_and_no_others():
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


# ---- what is counted and learnt


async def test_a_finished_request_does_not_count_as_cancelled():
    async with on_stage() as stage:
        await stage.tokens()
        assert stage.metric("request_cancelled_total") == 0
        assert stage.metric("request_success_total", finished_reason="length") == 1


async def test_refused_and_failed_requests_are_counted_by_error(quiet):
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


async def test_costs_are_learnt_from_decoding_steps_and_not_from_prompts():
    async with on_stage(prefill_chunk_tokens=16) as stage:
        await stage.tokens([1] * 96, SamplingParams(max_tokens=1))
        costs = stage.coordinator.loop.learner.costs
        assert not costs.drafters[""].is_known
        await stage.tokens()
        costs = stage.coordinator.loop.learner.costs
        assert costs.is_known and costs.drafters[""].is_known


# ---- bugs


async def test_a_bug_in_the_loop_ends_its_requests_and_not_the_loop(quiet, monkeypatch):
    async with on_stage() as stage:
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_module, "report_step", lambda *_: 1 / 0)
            with pytest.raises(VerifierError, match="division by zero"):
                await stage.tokens()
        assert await stage.tokens() == stage.plain()


async def test_a_bug_in_how_requests_end_leaves_no_stream_waiting(quiet, monkeypatch):
    async with on_stage(max_sequences=2) as stage:
        with monkeypatch.context() as patch:
            patch.setattr(coordinator_module, "report_step", lambda *_: 1 / 0)
            patch.setattr(coordinator_module.Coordinator, "_free", lambda *_: [][0])
            for task in [stage.start([n]) for n in range(4)]:
                with pytest.raises(VerifierError, match=r"broke off|failed: division"):
                    await task
        for request in list(stage.coordinator.admission):
            stage.coordinator.admission.leave(request)
        assert await stage.tokens() == stage.plain()


async def test_a_bug_at_the_beginning_of_a_request_ends_that_request_and_frees_its_slot(
    quiet, monkeypatch
):
    async with on_stage(max_sequences=1) as stage:
        stage.drafter.gate.close()
        running = stage.start()
        await stage.drafter.gate.arrival()
        failing, waiting = stage.start([9]), stage.start([8], SHORT, OFF)
        begin_step = Loop.begin_step
        monkeypatch.setattr(
            Loop,
            "begin_step",
            lambda self, request, *step: (
                1 // (request.prefix[0] != 9) and begin_step(self, request, *step)
            ),
        )
        running.cancel()
        with pytest.raises(VerifierError, match="by zero"):
            await failing
        assert await waiting == stage.plain([8])
        with pytest.raises(VerifierError, match="by zero"):
            await stage.tokens([9])
        assert await stage.coordinator.drain(1), "no request holds a slot"


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


async def test_requests_before_the_start_and_after_shutdown_are_refused():
    config, lengths = CoordinatorConfig(), DraftLengthConfig()
    stage = Stage(Coordinator(FakeVerifier(), None, config, lengths), FakeVerifier(), None)
    with pytest.raises(RequestCancelledError, match="not running"):
        await stage.tokens()
    async with stage.coordinator:
        assert await stage.tokens() == stage.plain()
    with pytest.raises(RequestCancelledError, match="not running"):
        await stage.tokens()


async def test_tokens_committed_before_shutdown_are_delivered():
    async with on_stage(None, max_sequences=1) as stage:
        stream = stage.stream(PROMPT, FOREVER)
        received = list((await anext(stream)).token_ids)
        await until(lambda: len(stage.verifier.batches) > 5)
    with pytest.raises(RequestCancelledError):
        async for output in stream:
            received += output.token_ids
    assert len(received) >= 5
    assert received == stage.plain(PROMPT, FOREVER)[: len(received)]


@pytest.mark.parametrize("drains", [True, False])
async def test_shutdown_releases_the_requests_of_the_verification_that_it_cancels(drains):
    async with on_stage(None, max_sequences=2) as stage:
        streams = [stage.stream([n], FOREVER) for n in range(2)]
        for stream in streams:
            await anext(stream)
        stage.verifier.gate.close()
        await stage.verifier.gate.arrival()
        if drains:
            assert not await stage.coordinator.drain(0.01)
    assert not stage.verifier.held and not stage.coordinator.admission.num_running


# ---- streams that are not read


async def test_a_stream_that_nobody_reads_stops_decoding_and_goes_on_when_it_is_read():
    async with on_stage(None) as stage:
        stream, other = stage.stream(PROMPT, FOREVER), stage.stream([9], FOREVER)
        tokens = list((await anext(stream)).token_ids)
        assert await rest_of(other) == stage.plain([9], FOREVER), "it holds up no other"
        [held] = stage.coordinator.requests()
        assert (held.state, held.waits_for) == ("waiting", "its reader")
        assert held.num_output_tokens == 1 + MAX_UNREAD_OUTPUTS
        for _ in range(MAX_UNREAD_OUTPUTS // 2 - 1):
            tokens += (await anext(stream)).token_ids
        assert stage.coordinator.requests()[0].waits_for == "its reader"
        assert tokens + await rest_of(stream) == stage.plain(PROMPT, FOREVER)


async def test_a_stream_that_waits_for_its_reader_does_not_count_as_decoding():
    async with on_stage(max_sequences=4) as stage:
        stream = stage.stream(PROMPT, FOREVER, OFF)
        await anext(stream)
        loop = stage.coordinator.loop
        await until(lambda: stage.coordinator.requests()[0].waits_for == "its reader")
        assert stage.coordinator.admission.num_running == 1 and not loop.requests
        assert await stage.tokens([9]) == stage.plain([9])
        assert len(await rest_of(stream)) == FOREVER.max_tokens - 1
        await until(lambda: stage.is_empty)
        assert not loop.requests


@pytest.mark.parametrize("end", ["close", "cancel", "shut down"])
async def test_a_stream_that_waits_for_its_reader_can_be_ended(end):
    async with on_stage() as stage:
        stream = stage.stream(PROMPT, FOREVER, OFF, request_id="held")
        await anext(stream)
        await until(lambda: stage.coordinator.requests()[0].waits_for == "its reader")
        if end == "close":
            await stream.aclose()
        elif end == "cancel":
            assert stage.coordinator.cancel("held") == 1
        if end != "shut down":
            await until(lambda: stage.is_empty and not stage.leftovers())
    if end != "close":
        with pytest.raises(RequestCancelledError):
            await rest_of(stream)
