"""A drafter without a model on a cluster: it drafts, and no path scorer is started beside it."""

from __future__ import annotations

import pytest
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.engine import Engine
from tests.actors.conftest import CPU, tiny_pipeline

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

PROMPT: Prompt = [{"role": "user", "content": "What is the capital of France?"}]
SAMPLING = SamplingParams(max_tokens=48, ignore_eos=True)
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=4)


async def test_a_drafter_without_lattices_drafts_without_a_path_scorer(cluster: Cluster) -> None:
    target = {**CPU, "max_sequences": 1}
    config = tiny_pipeline({"target": target, "drafter": {"kind": "pld"}})
    async with Pipeline(config) as pipeline:
        steps = [step async for step in pipeline.stream(PROMPT, SAMPLING, DRAFTED)]
        names = [report.name for report in await pipeline.describe()]
        assert (await pipeline.status()).degraded_reasons == ()
        assert "path scorer" not in " ".join(await pipeline.link_bytes())
    assert names == ["coordinator", "drafter 0", "verifier rank 0"]
    assert sum(step.num_accepted_tokens for step in steps) > 0
    async with Engine.from_config(config.engine.model_copy(update={"drafter": None})) as engine:
        plain = await engine.complete(PROMPT, SAMPLING)
    assert tuple(i for step in steps for i in step.token_ids) == plain.token_ids
