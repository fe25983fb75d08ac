"""Answers whose coordinator is killed midway, while it serves and while the pipeline stops.

Every answer must be the one of an undisturbed engine in one process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline
from diffuspec.core.errors import OverloadedError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine import Engine
from tests.actors.conftest import tiny_pipeline
from tests.support.lossless import Answer, Job, answer, answer_all

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)
NUM_TOKENS = 160
JOBS = [
    Job(MESSAGES, SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True), DRAFTED),
    Job(
        MESSAGES,
        SamplingParams(
            max_tokens=NUM_TOKENS, ignore_eos=True, temperature=1.0, top_p=0.9, seed=7, logprobs=3
        ),
    ),
    Job(
        MESSAGES,
        SamplingParams(
            max_tokens=NUM_TOKENS,
            ignore_eos=True,
            temperature=0.8,
            seed=8,
            presence_penalty=0.5,
            frequency_penalty=0.5,
            repetition_penalty=1.2,
            logprobs=0,
        ),
        DRAFTED,
    ),
]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(cluster: Cluster) -> AsyncIterator[Pipeline]:
    """Two requests are decoded at a time; the others wait."""
    config = tiny_pipeline({"drafter": None}, deadlines={"health_seconds": 0.5})
    async with Pipeline(config) as pipeline:
        yield pipeline


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def expected(pipeline: Pipeline) -> list[Answer]:
    async with Engine.from_config(pipeline.config.engine) as engine:
        return await answer_all(
            lambda job, name: engine.stream(job.prompt, job.sampling, job.speculation, name), JOBS
        )


async def begin(pipeline: Pipeline) -> list[asyncio.Task[Answer]]:
    """Ask everything; return once two answers have begun."""
    tasks, begun = [], []
    for number, job in enumerate(JOBS):
        stream = pipeline.stream(job.prompt, job.sampling, job.speculation, f"job-{number}")
        begun.append(asyncio.Event())
        tasks.append(asyncio.create_task(answer(stream, begun[-1])))
    for event in begun[:2]:
        await event.wait()
    return tasks


async def kill_coordinator(pipeline: Pipeline) -> None:
    [place] = [one.place for one in await pipeline.describe() if one.name == "coordinator"]
    assert place is not None
    os.kill(place.pid, signal.SIGKILL)


async def test_answers_go_on_where_they_were_after_the_loss_of_the_coordinator(
    pipeline: Pipeline, expected: list[Answer]
) -> None:
    answers = await begin(pipeline)
    await kill_coordinator(pipeline)
    for found, wanted in zip(await asyncio.gather(*answers), expected, strict=True):
        found.assert_same(wanted)


async def test_answers_are_finished_after_a_loss_of_the_coordinator_while_it_drains(
    pipeline: Pipeline, expected: list[Answer]
) -> None:
    answers = await begin(pipeline)
    stopping = asyncio.create_task(pipeline.stop())
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="shutting down"):
        await anext(pipeline.stream("too late"))
    await kill_coordinator(pipeline)
    for found, wanted in zip(await asyncio.gather(*answers), expected, strict=True):
        found.assert_same(wanted)
    await stopping
