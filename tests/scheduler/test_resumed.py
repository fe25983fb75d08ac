"""Requests that go on after the tokens committed by an interrupted run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from diffuspec.core.errors import InvalidRequestError, OverloadedError
from diffuspec.core.params import SamplingParams
from diffuspec.text.detokenizer import Detokenizer
from tests.support.checkpoints import byte_tokenizer
from tests.support.stage import FIXED, OFF, PROMPT, SHORT, Stage, on_stage

pytestmark = pytest.mark.virtual_time

SAMPLED = replace(SHORT, temperature=0.9, seed=7, frequency_penalty=0.5, repetition_penalty=1.2)


@pytest.mark.parametrize("sampling", [SHORT, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("speculation", [OFF, FIXED], ids=["plain", "drafted"])
@pytest.mark.parametrize("num_committed", [1, 5, 23])
async def test_a_resumed_request_yields_the_rest_of_the_uninterrupted_answer(
    sampling, speculation, num_committed
):
    async with on_stage() as stage:
        whole = await stage.tokens(PROMPT, sampling, speculation)
        rest = await stage.tokens(PROMPT, sampling, speculation, committed=whole[:num_committed])
        assert whole[:num_committed] + rest == whole


async def test_committed_tokens_are_read_in_chunks_like_a_prompt():
    async with on_stage(None, prefill_chunk_tokens=4) as stage:
        whole = stage.plain()
        assert await stage.tokens(committed=whole[:20]) == whole[20:]
        lengths = [len(request.prefix) for [request] in stage.verifier.batches]
        assert lengths[:6] == [4, 8, 12, 16, 20, 24]


async def test_resumed_requests_go_before_waiting_ones_and_keep_their_order():
    async with on_stage(None, max_sequences=1) as stage:
        stage.verifier.gate.close()
        first = stage.start([1])
        await stage.verifier.gate.arrival()
        waiting = [stage.start([n]) for n in (2, 3)]
        resumed = [stage.start([n], committed=stage.plain([n])[:4]) for n in (4, 5)]
        await asyncio.sleep(0)
        stage.verifier.gate.open()
        await asyncio.gather(first, *waiting, *resumed)
        prompts = [int(batch[0].prefix[0]) for batch in stage.verifier.batches]
        assert list(dict.fromkeys(prompts)) == [1, 4, 5, 2, 3]


async def test_a_full_queue_takes_a_bounded_number_of_resumed_requests():
    async with on_stage(None, max_sequences=1, max_waiting=1) as stage:
        stage.verifier.gate.close()
        tasks = [stage.start([n]) for n in (1, 2)]
        await stage.verifier.gate.arrival()
        with pytest.raises(OverloadedError):
            await stage.tokens([3])
        tasks += [stage.start([n], committed=stage.plain([n])[:4]) for n in (4, 5)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await stage.tokens([6], committed=stage.plain([6])[:4])
        stage.verifier.gate.open()
        await asyncio.gather(*tasks)


async def test_a_draining_coordinator_takes_resumed_requests_only():
    async with on_stage(None) as stage:
        stage.verifier.gate.close()
        first = stage.start([1])
        await stage.verifier.gate.arrival()
        drained = asyncio.create_task(stage.coordinator.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="shutting down"):
            await stage.tokens([2])
        resumed = stage.start([3], committed=stage.plain([3])[:4])
        await asyncio.sleep(0)
        stage.verifier.gate.open()
        assert await drained
        assert await first == stage.plain([1])
        assert await resumed == stage.plain([3])[4:]


@pytest.mark.parametrize(
    ("committed", "message"),
    [
        ([50], "committed token ids must be from 0 to 49, got 50"),
        ([1] * 24, "max_tokens must be above the number of committed tokens, 24, got 24"),
    ],
)
async def test_invalid_committed_tokens_are_refused(committed, message):
    async with on_stage(None) as stage:
        with pytest.raises(InvalidRequestError, match=message):
            await stage.tokens(committed=committed)
        assert not stage.verifier.batches


async def test_committed_tokens_that_end_the_request_are_refused():
    async with on_stage(None) as stage:
        [eos, *_] = stage.verifier.info.eos_token_ids
        with pytest.raises(InvalidRequestError, match="end the request already"):
            await stage.tokens(PROMPT, SamplingParams(max_tokens=24), committed=[1, eos])


async def test_text_held_back_before_an_interruption_is_released_after_it():
    """A stop string or a character may begin before the interruption and end after it."""
    tokenizer = byte_tokenizer()
    async with on_stage(None) as stage:

        async def text(stage: Stage, committed: list[int]) -> list[str]:
            detokenizer = Detokenizer(tokenizer, ("\x05\x06",))
            stream = stage.coordinator.stream(
                np.array(PROMPT), SHORT, OFF, detokenizer, None, np.array(committed, np.int32)
            )
            return [piece async for output in stream for piece in output.pieces]

        pieces = await text(stage, [])
        tokens = stage.plain()
        for cut in range(1, 24):
            assert await text(stage, tokens[:cut]) == pieces[cut:]
