"""The library's losslessness suite against pipelines on a cluster: one rank and two.

The tests are those of test_pairs.py and test_targets.py; the fixtures here give them the roles of a
pipeline. They compare its answers with those of one process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline
from actors.roles.coordinator import verifier_at
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import Prompt
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import HEADS
from diffuspec.text.detokenizer import backend
from tests.actors.conftest import idle_status, tiny_pipeline
from tests.lossless.test_embedded_pair import questions
from tests.lossless.test_pairs import (
    Pair,
    test_a_request_is_cancelled_by_its_id,
    test_a_stop_string_cuts_where_plain_decoding_cuts,
    test_drafting_changes_the_speed_and_nothing_else,
    test_requests_that_are_cancelled_leave_the_others_as_they_are,
)
from tests.lossless.test_targets import (
    Served,
    test_no_draft_changes_what_a_real_target_says,
    test_stops_inside_accepted_runs_cut_at_the_same_place,
)
from tests.support.lossless import Answer, Job

__all__ = [
    "test_a_request_is_cancelled_by_its_id",
    "test_a_stop_string_cuts_where_plain_decoding_cuts",
    "test_drafting_changes_the_speed_and_nothing_else",
    "test_no_draft_changes_what_a_real_target_says",
    "test_requests_that_are_cancelled_leave_the_others_as_they_are",
    "test_stops_inside_accepted_runs_cut_at_the_same_place",
]

# They read the hidden states of rank 0.
BESIDE_THE_TARGET = ("medusa", "hydra", "eagle", "eagle2", "dflash")
MAX_TOKENS = 16  # of an answer by the whole pipeline
MAX_SCRIPTED_TOKENS = 11  # of one by its verifier, with drafts made up

pytestmark = [
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[1, 2], ids=["one rank", "two ranks"]
)
async def pipeline(request: pytest.FixtureRequest, cluster: Cluster) -> AsyncIterator[Pipeline]:
    engine = {
        "target": {"device": "cpu", "max_sequences": 8},
        "coordinator": {"overlap": True, "prefill_chunk_tokens": 32},
        "drafters": {kind: {"kind": kind, "path": HEADS[kind]} for kind in BESIDE_THE_TARGET},
    }
    config = tiny_pipeline(engine, placement={"verifier": {"tensor_parallel": request.param}})
    async with Pipeline(config) as pipeline:
        yield pipeline
        status = await idle_status(pipeline)
        assert status.num_waiting == 0
        assert status.degraded_reasons == ()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reference() -> AsyncIterator[Engine]:
    with Engine.from_config(tiny_pipeline().engine) as engine:
        yield engine
        await engine.stop()


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return questions()


@pytest.fixture(scope="module")
def plainly() -> dict[SamplingParams, list[Answer]]:
    return {}


@pytest.fixture(params=[True, False], ids=["overlapped", "sequential"])
def pair(
    request: pytest.FixtureRequest,
    pipeline: Pipeline,
    reference: Engine,
    prompts: list[Prompt],
    plainly: dict[SamplingParams, list[Answer]],
) -> Pair:
    drafters = (None, *BESIDE_THE_TARGET)
    is_overlapped = request.param
    return Pair(
        pipeline, reference, prompts, MAX_TOKENS, 1.5, is_overlapped, plainly, drafters=drafters
    )


@pytest.fixture(scope="module")
def known_plainly() -> dict[Job, Answer]:
    return {}


@pytest_asyncio.fixture(loop_scope="module")
async def served(
    pipeline: Pipeline, reference: Engine, known_plainly: dict[Job, Answer]
) -> AsyncIterator[Served]:
    """The pipeline's own verifier, as another coordinator sees it."""
    [address] = [one.address for one in await pipeline.describe() if one.name == "verifier rank 0"]
    tokenizer = backend(reference.tokenizer)
    async with verifier_at(address, pipeline.config, pipeline.security) as verifier:
        yield Served(
            verifier, reference.verifier, tokenizer, MAX_SCRIPTED_TOKENS, known_plainly, every=4
        )
