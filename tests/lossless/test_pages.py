"""Answers of many requests in a cache with room for a sixth of them: the bits of each alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from diffuspec.core.errors import VerifierError, VerifierUnavailableError
from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.engine.engine import Engine
from diffuspec.models.attention.segment import Segment
from diffuspec.pairs.tiny import TARGET, tiny_config
from tests.support.lossless import PLAIN, Job, answer_all

NUM_REQUESTS = 12
NUM_TOKENS = 64
NUM_PAGES = 5  # the requests take 30
MAX_TREE_NODES = 32
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
FORM = StructuredOutput(regex="[a-z ]{8,64}")
KINDS = (
    GREEDY,
    replace(GREEDY, temperature=0.9, top_p=0.95, seed=5),
    replace(GREEDY, ignore_eos=False, structured_output=FORM),
)
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]


def make_engine(**target: Any) -> Engine:
    settings = {
        "path": TARGET,
        "device": "cpu",
        "max_model_len": 512,
        "max_sequences": NUM_REQUESTS,
        "max_tree_nodes": MAX_TREE_NODES,
        "exact": True,
    }
    return Engine.from_config(tiny_config(target=settings | target))


def jobs(speculation: SpeculationParams) -> list[Job]:
    """Return prompts of 20 to 110 tokens, of which some begin alike, and ways to continue them."""
    random = np.random.default_rng(0)
    words = random.integers(40, 200, (4, 30))
    lengths = np.linspace(20, 110, NUM_REQUESTS).astype(int)
    prompts = [np.tile(words[n % 4], 20)[:length].tolist() for n, length in enumerate(lengths)]
    return [
        Job(prompt, KINDS[n % len(KINDS)], speculation)
        for n, prompt in enumerate(random.permutation(np.array(prompts, object)))
    ]


def lose_cache(engine: Engine) -> None:
    """Let the verifier lose its cache every 25 steps, as one that takes another's place has."""
    verify, numbers = engine.verifier.verify, itertools.count(1)

    async def losing(requests: Sequence[VerifyRequest]) -> list[Verdict]:
        if next(numbers) % 25 == 0:
            engine.runners[0].cache.reset()
            raise VerifierUnavailableError("the cache is lost")
        return await verify(requests)

    engine.verifier.verify = losing  # type: ignore[method-assign]


async def test_a_small_cache_changes_no_bit_of_any_answer() -> None:
    async with make_engine() as engine:
        store = engine.runners[0].cache.store
        page_bytes = store.shape.num_bytes(PAGE_SIZE, store.dtype)

        def ask(job: Job, name: str) -> Any:
            return engine.stream(job.prompt, job.sampling, job.speculation, f"{name} alone")

        alone = await answer_all(ask, jobs(PLAIN), "one after the other")
    async with make_engine(cache_memory=NUM_PAGES * page_bytes) as engine:
        cache, value = engine.runners[0].cache, engine.metrics.registry.get_sample_value
        assert cache.num_pages == NUM_PAGES

        def ask_small(job: Job, name: str) -> Any:
            return engine.stream(job.prompt, job.sampling, job.speculation, name)

        for speculation, loses in ((PLAIN, False), (DRAFTED, True)):
            if loses:
                lose_cache(engine)
            answers = await answer_all(ask_small, jobs(speculation), "together")
            for one, other in zip(answers, alone, strict=True):
                assert (one.token_ids, one.text) == (other.token_ids, other.text)
                assert one.logprobs == other.logprobs
        assert (value("diffuspec_num_preemptions_total") or 0) > 0
        assert (value("diffuspec_reread_tokens_total") or 0) > 0
    assert cache.use == (NUM_PAGES, 0), "every page was given back"


async def test_an_allocation_that_fails_ends_one_request_and_the_others_go_on() -> None:
    async with make_engine() as engine:
        forward = engine.runners[0].forward

        def fail_for_long_prompts(segments: Sequence[Segment], *states: Any) -> Any:
            if any(segment.start + segment.num_rows > 200 for segment in segments):
                raise torch.OutOfMemoryError("tried to allocate 2 GiB")
            return forward(segments, *states)

        engine.runners[0].forward = fail_for_long_prompts
        prompts = [[7] * length for length in (60, 250, 90)]
        answers = await asyncio.gather(
            *[engine.complete(prompt, GREEDY, PLAIN) for prompt in prompts], return_exceptions=True
        )
        failed = [isinstance(answer, VerifierError) for answer in answers]
        assert failed == [False, True, False] and "out of memory" in str(answers[1])
        engine.runners[0].forward = forward
        answer = await engine.complete(prompts[1], GREEDY, PLAIN)
        assert len(answer.token_ids) == NUM_TOKENS
