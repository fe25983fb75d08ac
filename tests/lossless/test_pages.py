"""Answers of many requests in a cache with room for a seventh of them: the bits of each alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
from diffuspec.engine.engine import Engine
from diffuspec.models.pages.store import PAGE_SIZE
from diffuspec.pairs.tiny import TARGET, tiny_config
from tests.support.lossless import PLAIN, Job, answer_all

NUM_REQUESTS = 12
NUM_TOKENS = 16
NUM_PAGES = 6  # the requests take 40
MAX_TREE_NODES = 32
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=2)
FORM = StructuredOutput(regex="[a-z ]{8,16}")
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
    """Return prompts of 60 to 260 tokens, of which some begin alike, and ways to continue them."""
    random = np.random.default_rng(0)
    words = random.integers(40, 200, (4, 30))
    lengths = np.linspace(60, 260, NUM_REQUESTS).astype(int)
    prompts = [np.tile(words[n % 4], 20)[:length].tolist() for n, length in enumerate(lengths)]
    return [
        Job(prompt, KINDS[n % len(KINDS)], speculation)
        for n, prompt in enumerate(random.permutation(np.array(prompts, object)))
    ]


async def test_a_small_cache_changes_no_bit_of_any_answer() -> None:
    async with make_engine() as engine:
        store = engine.runners[0].cache.store
        page_bytes = store.shape.num_bytes(PAGE_SIZE, store.dtype)

        def ask(job: Job, name: str) -> Any:
            return engine.stream(job.prompt, job.sampling, job.speculation, f"{name} alone")

        alone = await answer_all(ask, jobs(PLAIN), "one after the other")
    async with make_engine(cache_memory=NUM_PAGES * page_bytes) as engine:
        for speculation in (PLAIN, DRAFTED):
            cache = engine.runners[0].cache
            assert cache.num_pages == NUM_PAGES

            def ask_small(job: Job, name: str) -> Any:
                return engine.stream(job.prompt, job.sampling, job.speculation, name)

            answers = await answer_all(ask_small, jobs(speculation), "together")
            for one, other in zip(answers, alone, strict=True):
                assert (one.token_ids, one.text) == (other.token_ids, other.text)
                assert one.logprobs == other.logprobs
    assert cache.num_free_pages == NUM_PAGES, "every page was given back"
    assert cache.num_preemptions > 0
