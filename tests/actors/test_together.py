"""A pipeline whose roles run together in one process of a Ray cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from ray.cluster_utils import Cluster

from actors.bundles import make_groups
from actors.pipeline import Pipeline
from actors.roles.colocated_verifier import ColocatedVerifier
from actors.settings import parse_pipeline
from diffuspec.core.errors import ConfigError, VerifierUnavailableError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import HEADS
from tests.actors.conftest import tiny_pipeline

TOGETHER = {"together": True, "coordinator": {"num_cpus": 0.5}}
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
LONG = SamplingParams(max_tokens=48, ignore_eos=True)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pipeline(cluster: Cluster) -> AsyncIterator[Pipeline]:
    engine = {"drafters": {"eagle": {"kind": "eagle", "path": HEADS["eagle"]}}}
    deadlines = {"health_seconds": 0.5, "start_seconds": 120}
    async with Pipeline(tiny_pipeline(engine, placement=TOGETHER, deadlines=deadlines)) as pipeline:
        yield pipeline


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.asyncio(loop_scope="module")
async def test_it_answers_as_plain_decoding_does_and_goes_on_in_a_new_process(pipeline):
    with Engine.from_config(tiny_pipeline({"drafter": None}).engine) as engine:
        [expected] = engine.generate([MESSAGES], LONG)
    for drafter in ("diffuspec", "eagle"):
        drafted = SpeculationParams(policy="fixed", num_draft_tokens=8, drafter=drafter)
        outputs = [output async for output in pipeline.stream(MESSAGES, LONG, drafted)]
        assert tuple(i for one in outputs for i in one.token_ids) == expected.token_ids
        assert any(one.step.num_tree_nodes for one in outputs), drafter
    [role] = await pipeline.describe()
    assert role.name == "coordinator" and role.place is not None
    stream = pipeline.stream(MESSAGES, LONG)
    token_ids = [*(await anext(stream)).token_ids]
    os.kill(role.place.pid, signal.SIGKILL)
    token_ids += [i async for output in stream for i in output.token_ids]
    assert tuple(token_ids) == expected.token_ids
    assert len(pipeline.coordinator.recoveries) == 1


def test_it_has_one_bundle_and_all_drafters_in_the_coordinators_process():
    config = tiny_pipeline(placement=TOGETHER)
    [group] = make_groups(config)
    assert [bundle.resources for bundle in group.bundles] == [{"CPU": 0.5}]
    assert [*config.drafters_in("coordinator")] == ["diffuspec"]
    assert config.drafter_processes == () and config.drafters_in("verifier") == {}


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"verifier": {"num_cpus": 2}, "path_scorer": {}}, "leave out path_scorer, verifier"),
        ({}, "engine.target.device is cuda, but placement.coordinator.num_gpus is 0"),
    ],
)
def test_what_has_no_effect_together_is_refused(placement, message):
    engine = {"preset": "tiny", "target": {"device": "cuda"}}
    with pytest.raises(ConfigError, match=message):
        parse_pipeline({"engine": engine, "placement": TOGETHER | placement})


class LostTarget:
    info = TargetInfo(16, 16, 1, (0,))

    async def verify(self, requests: object) -> list[object]:
        raise VerifierUnavailableError("the device is lost")


async def test_it_is_not_well_once_no_step_can_succeed():
    lost: Any = LostTarget()
    verifier = ColocatedVerifier(lost, 5.0)
    assert await verifier.check_health(1.0)
    with pytest.raises(VerifierUnavailableError):
        await verifier.verify([])
    assert not verifier.is_well
