"""Answers whose coordinator is killed midway, while it serves and while the pipeline stops.

Every answer must be the one of an undisturbed engine in one process, and what was committed before
the loss must not be decoded again.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline
from actors.roles import self_test
from diffuspec.core.errors import OverloadedError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput
from diffuspec.engine.engine import Engine
from tests.actors.conftest import tiny_pipeline
from tests.support.lossless import Answer, Job, answer, answer_all

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)
GREEDY = SamplingParams(max_tokens=160, ignore_eos=True)
PENALISED = replace(
    GREEDY,
    temperature=0.8,
    seed=8,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    repetition_penalty=1.2,
)
JOBS = [
    Job(MESSAGES, replace(PENALISED, logprobs=0), DRAFTED),
    Job(MESSAGES, replace(GREEDY, temperature=1.0, top_p=0.9, seed=7, logprobs=3)),
    Job(MESSAGES, GREEDY, DRAFTED),
]
NUM_READ = 60  # tokens of the first two answers, before the coordinator is killed

pytestmark = [
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


@dataclass(frozen=True)
class Asked:
    """Jobs, and their answers by an undisturbed engine."""

    jobs: Sequence[Job]
    answers: Sequence[Answer]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(cluster: Cluster) -> AsyncIterator[Pipeline]:
    """Two requests are decoded at a time; the others wait."""
    config = tiny_pipeline(
        {"drafter": None}, deadlines={"health_seconds": 0.5, "drain_seconds": 100}
    )
    async with Pipeline(config) as pipeline:
        yield pipeline


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asked(pipeline: Pipeline) -> Asked:
    """The first job is the second one with a stop string from the end of its text."""
    async with Engine.from_config(pipeline.config.engine) as engine:

        def ask(job: Job, name: str) -> AsyncIterator[RequestOutput]:
            return engine.stream(job.prompt, job.sampling, job.speculation, name)

        text = (await answer_all(ask, JOBS[:1]))[0].text
        pieces = [text[at : at + 8] for at in range(len(text) - 8)]
        last = [piece for at, piece in enumerate(pieces) if text.find(piece) == at][-1]
        stopped = replace(JOBS[0].sampling, stop=(last,))
        jobs = [Job(MESSAGES, stopped, DRAFTED), *JOBS]
        return Asked(jobs, await answer_all(ask, jobs))


async def begin(pipeline: Pipeline, jobs: Sequence[Job]) -> list[asyncio.Task[Answer]]:
    """Ask all; return once NUM_READ tokens of the first two answers have been read."""
    tasks, reached = [], []
    for number, job in enumerate(jobs):
        reached.append(asyncio.Event())
        stream = pipeline.stream(job.prompt, job.sampling, job.speculation, f"job-{number}")
        tasks.append(asyncio.create_task(answer(watched(stream, reached[-1]), asyncio.Event())))
    for event in reached[:2]:
        await event.wait()
    return tasks


async def watched(
    stream: AsyncIterator[RequestOutput], reached: asyncio.Event
) -> AsyncIterator[RequestOutput]:
    num_tokens = 0
    async for output in stream:
        num_tokens += len(output.token_ids)
        if num_tokens >= NUM_READ:
            reached.set()
        yield output


async def kill_coordinator(pipeline: Pipeline) -> None:
    [place] = [one.place for one in await pipeline.describe() if one.name == "coordinator"]
    assert place is not None
    os.kill(place.pid, signal.SIGKILL)


async def check(answers: Sequence[asyncio.Task[Answer]], asked: Asked) -> None:
    for found, expected in zip(await asyncio.gather(*answers), asked.answers, strict=True):
        found.assert_same(expected)


async def test_answers_go_on_after_what_a_lost_coordinator_had_committed(
    pipeline: Pipeline, asked: Asked
) -> None:
    answers = await begin(pipeline, asked.jobs)
    await kill_coordinator(pipeline)
    await check(answers, asked)
    metrics = await pipeline.metrics()
    [count] = re.findall(r"^diffuspec_generation_tokens_total (\S+)", metrics, re.M)
    num_decoded = float(count) - self_test.SAMPLING.max_tokens
    assert num_decoded <= sum(len(one.token_ids) for one in asked.answers) - 2 * NUM_READ


async def test_answers_are_finished_when_the_coordinator_is_lost_while_it_drains(
    pipeline: Pipeline, asked: Asked
) -> None:
    answers = await begin(pipeline, asked.jobs)
    stopping = asyncio.create_task(pipeline.stop())
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match="shutting down"):
        await anext(pipeline.stream("too late"))
    await kill_coordinator(pipeline)
    await check(answers, asked)
    await stopping
