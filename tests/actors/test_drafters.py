"""Several drafters of one pipeline on a cluster: requests choose one, and no token changes.

Two have a process of their own, one of which is sent hidden states of the target; two are in the
coordinator's, and three beside the target in that of rank 0, of two ranks.
"""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import pytest
import pytest_asyncio
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import HEADS, TARGET
from tests.actors.conftest import CPU, tiny_pipeline

pytestmark = [
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

PROMPT: Prompt = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = SamplingParams(max_tokens=32, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.8, seed=4)
ENGINE = {
    "target": {**CPU, "max_sequences": 4},
    "drafter": {"kind": "pld"},
    "drafters": {
        "answers": {"kind": "samd"},
        "small": {"kind": "sps", "path": TARGET, **CPU},
        "recycling": {"kind": "token_recycling"},
        "lookahead": {"kind": "lookahead"},
        "dflash": {"kind": "dflash", "path": HEADS["dflash"]},
        "remote": {"kind": "dflash_remote", "path": HEADS["dflash"], **CPU},
    },
}
STATE_BYTES = 2 * 4 * 192  # of a token: four layers of 192 columns, in bfloat16
CHOICES = (None, "pld", "answers", "small", "recycling", "lookahead", "dflash", "remote")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(cluster: Cluster) -> AsyncIterator[Pipeline]:
    sections = {
        "placement": {"verifier": {"tensor_parallel": 2}},
        "deadlines": {"verify_seconds": 10, "health_seconds": 0.5},
    }
    async with Pipeline(tiny_pipeline(ENGINE, **sections)) as pipeline:
        yield pipeline


@pytest.fixture(scope="module")
def expected(pipeline: Pipeline) -> Mapping[SamplingParams, tuple[int, ...]]:
    """Plain decoding in one process."""
    plain = pipeline.config.engine.model_copy(update={"drafter": None, "drafters": {}})
    with Engine.from_config(plain) as engine:
        return {s: engine.generate([PROMPT], s)[0].token_ids for s in (GREEDY, SAMPLED)}


def drafted_by(drafter: str | None) -> SpeculationParams:
    return SpeculationParams(policy="fixed", num_draft_tokens=4, drafter=drafter)


async def answer(
    pipeline: Pipeline, sampling: SamplingParams, drafter: str | None
) -> tuple[tuple[int, ...], int]:
    """Return an answer's tokens and how many of them were drafted."""
    return await rest(pipeline.stream(PROMPT, sampling, drafted_by(drafter)))


async def rest(stream: AsyncGenerator[RequestOutput]) -> tuple[tuple[int, ...], int]:
    """Return the tokens that are still to come, and how many of them were drafted."""
    steps = [step async for step in stream]
    tokens = tuple(i for step in steps for i in step.token_ids)
    return tokens, sum(step.num_accepted_tokens for step in steps)


async def settled(pipeline: Pipeline) -> ServiceStatus:
    """Return the status once every drafter has answered: on a busy machine, not at once."""
    async with asyncio.timeout(60):
        while (status := await pipeline.status()).degraded_reasons:
            await asyncio.sleep(0.1)
    return status


async def test_only_a_drafter_with_a_model_has_a_process(pipeline):
    names = [report.name for report in await pipeline.describe()]
    assert names == [
        "coordinator",
        "drafter small 0",
        "drafter remote 0",
        "path scorer remote 0",
        "verifier rank 0",
        "verifier rank 1",
    ]
    status = await settled(pipeline)
    drafters = ["answers", "dflash", "lookahead", "pld", "recycling", "remote 0", "small 0"]
    assert sorted(role.name for role in status.roles) == [
        *(f"drafter {name}" for name in drafters),
        "verifier",
    ]


async def test_each_of_several_requests_together_is_drafted_for_as_it_names(pipeline, expected):
    jobs = [(sampling, drafter) for sampling in (GREEDY, SAMPLED) for drafter in CHOICES]
    answers = await asyncio.gather(*(answer(pipeline, *job) for job in jobs))
    assert [tokens for tokens, _ in answers] == [expected[sampling] for sampling, _ in jobs]
    greedy = dict(zip(CHOICES, answers, strict=False))
    assert [drafter for drafter, (_, num_accepted) in greedy.items() if not num_accepted] == []


async def test_the_hidden_states_of_a_prompt_cross_to_the_drafter_that_reads_them(pipeline):
    async def num_bytes_sent(role: str) -> int:
        return (await pipeline.link_bytes())[f"coordinator - {role}"][0]

    question = "Where do bees live?"
    before = await num_bytes_sent("drafter remote 0")
    sampling = SamplingParams(max_tokens=4)
    prompt: Prompt = [{"role": "user", "content": question}]
    await rest(pipeline.stream(prompt, sampling, drafted_by("remote")))
    sent = await num_bytes_sent("drafter remote 0") - before
    assert sent > STATE_BYTES * len(question.split())


@pytest.mark.parametrize(
    ("drafters", "victims"),
    [
        (("small", "remote"), ("drafter small 0", "drafter remote 0")),
        (("recycling", "dflash"), ("verifier rank 0",)),
    ],
)
async def test_drafts_come_back_when_their_process_is_lost_in_between(
    pipeline, expected, drafters, victims
):
    places = {report.name: report.place for report in await pipeline.describe()}
    jobs = [*itertools.product((GREEDY, SAMPLED), drafters)]
    streams = [pipeline.stream(PROMPT, sampling, drafted_by(name)) for sampling, name in jobs]
    firsts = await asyncio.gather(*(anext(stream) for stream in streams))
    for victim in victims:
        place = places[victim]
        assert place is not None
        os.kill(place.pid, signal.SIGKILL)
    rests = await asyncio.gather(*(rest(stream) for stream in streams))
    for (sampling, _), first, (tokens, _) in zip(jobs, firsts, rests, strict=True):
        assert (*first.token_ids, *tokens) == expected[sampling]
    for drafter in drafters:
        num_accepted = 0
        while not num_accepted:
            again, num_accepted = await answer(pipeline, GREEDY, drafter)
            assert again == expected[GREEDY]
    while (await pipeline.status()).degraded_reasons:
        await asyncio.sleep(0.1)
