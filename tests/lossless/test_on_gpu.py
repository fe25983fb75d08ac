"""On a GPU in bfloat16, no drafter, no other request and no small cache changes one token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diffuspec.core.pages import PAGE_SIZE
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs import PAIRS
from diffuspec.pairs.tiny import DRAFTER, TARGET, tiny_config
from tests.lossless.test_embedded_pair import questions
from tests.support.gpu import NEEDS_GPU
from tests.support.lossless import PLAIN, Answer, Arrival, Job, answer_all

GREEDY = SamplingParams(max_tokens=40)
SAMPLINGS = (GREEDY, replace(GREEDY, temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=2))
WITHOUT_MODELS = ("pld", "samd", "samd_recycling", "token_recycling", "lookahead")

pytestmark = [NEEDS_GPU, pytest.mark.timeout(300)]


def make_engine(**target: Any) -> Engine:
    """Return the embedded target with drafters of every kind."""
    named = {kind: {"kind": kind} for kind in WITHOUT_MODELS} | PAIRS["tiny"].other_drafters()
    named["sps"] = {"kind": "sps", "path": DRAFTER, "device": "cuda"}
    settings = {"path": TARGET, "device": "cuda", "dtype": "bfloat16", "exact": True}
    config = tiny_config(
        target=settings | target,
        drafter={"path": DRAFTER, "device": "cuda"},
        drafters=named,
        coordinator={"profile_seconds": 0},
    )
    return Engine.from_config(config)


async def answers_of(
    engine: Engine, speculation: SpeculationParams, arrival: Arrival
) -> list[Answer]:
    jobs = [
        Job(prompt, sampling, speculation) for prompt in questions()[:3] for sampling in SAMPLINGS
    ]

    def ask(job: Job, name: str) -> Any:
        return engine.stream(job.prompt, job.sampling, job.speculation, name)

    return await answer_all(ask, jobs, arrival)


async def test_no_drafter_changes_a_token() -> None:
    async with make_engine() as engine:
        plain = await answers_of(engine, PLAIN, "alone")
        for name in (None, *engine.config.named_drafters):
            drafted = SpeculationParams(policy="fixed", num_draft_tokens=9, drafter=name)
            for answer, expected in zip(
                await answers_of(engine, drafted, "together"), plain, strict=True
            ):
                answer.assert_same(expected)


async def test_a_small_cache_changes_no_token() -> None:
    async with make_engine() as engine:
        plain = await answers_of(engine, PLAIN, "alone")
        store = engine.runners[0].cache.store
        page_bytes = store.shape.num_bytes(PAGE_SIZE, store.dtype)
    async with make_engine(cache_memory=12 * page_bytes, max_model_len=512) as engine:
        drafted = SpeculationParams(policy="fixed", num_draft_tokens=9)
        for answer, expected in zip(
            await answers_of(engine, drafted, "together"), plain, strict=True
        ):
            answer.assert_same(expected)
