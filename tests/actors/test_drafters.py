"""Several drafters of one pipeline on a cluster: requests choose one, and no token changes.

One has a process of its own, two are in the coordinator's, and two beside the target in that of
rank 0, of two ranks.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline
from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.engine import Engine
from diffuspec.pairs.tiny import TARGET
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
    },
}
CHOICES = (None, "pld", "answers", "small", "recycling", "lookahead", "auto")


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
    stream = pipeline.stream(PROMPT, sampling, drafted_by(drafter))
    steps = [step async for step in stream]
    tokens = tuple(i for step in steps for i in step.token_ids)
    return tokens, sum(step.num_accepted_tokens for step in steps)


async def test_only_a_drafter_with_a_model_has_a_process(pipeline: Pipeline) -> None:
    names = [report.name for report in await pipeline.describe()]
    assert names == ["coordinator", "drafter small 0", "verifier rank 0", "verifier rank 1"]
    status = await pipeline.status()
    assert status.degraded_reasons == ()
    drafters = ["answers", "lookahead", "pld", "recycling", "small 0"]
    assert sorted(role.name for role in status.roles) == [
        *(f"drafter {name}" for name in drafters),
        "verifier",
    ]
    assert "path scorer" not in " ".join(await pipeline.link_bytes())


@pytest.mark.parametrize("drafter", CHOICES)
async def test_the_drafter_that_a_request_names_drafts(
    pipeline: Pipeline, expected: Mapping[SamplingParams, tuple[int, ...]], drafter: str | None
) -> None:
    tokens, num_accepted = await answer(pipeline, GREEDY, drafter)
    assert tokens == expected[GREEDY] and num_accepted > 0


async def test_requests_with_different_drafters_are_answered_together(
    pipeline: Pipeline, expected: Mapping[SamplingParams, tuple[int, ...]]
) -> None:
    jobs = [(sampling, drafter) for sampling in (GREEDY, SAMPLED) for drafter in CHOICES]
    answers = await asyncio.gather(*(answer(pipeline, *job) for job in jobs))
    assert [tokens for tokens, _ in answers] == [expected[sampling] for sampling, _ in jobs]


async def test_an_unknown_drafter_is_refused_with_the_known_ones(pipeline: Pipeline) -> None:
    with pytest.raises(InvalidRequestError, match=r"one of pld, answers, small, .*, got 'other'"):
        await answer(pipeline, GREEDY, "other")


@pytest.mark.parametrize(
    ("drafter", "victim"), [("small", "drafter small 0"), ("recycling", "verifier rank 0")]
)
async def test_drafts_come_back_when_their_process_is_lost_in_between(
    pipeline: Pipeline,
    expected: Mapping[SamplingParams, tuple[int, ...]],
    drafter: str,
    victim: str,
) -> None:
    stream = pipeline.stream(PROMPT, GREEDY, drafted_by(drafter))
    tokens = [*(await anext(stream)).token_ids]
    [place] = [one.place for one in await pipeline.describe() if one.name == victim]
    assert place is not None
    os.kill(place.pid, signal.SIGKILL)
    async for step in stream:
        tokens += step.token_ids
    assert tuple(tokens) == expected[GREEDY]
    num_accepted = 0
    while not num_accepted:
        again, num_accepted = await answer(pipeline, GREEDY, drafter)
        assert again == expected[GREEDY]
    while (await pipeline.status()).degraded_reasons:
        await asyncio.sleep(0.1)
