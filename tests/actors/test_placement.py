"""Placement groups: what is granted, what is refused, and where the ranks of a verifier land."""

import asyncio

import pytest
from ray.util import placement_group_table

from actors.pipeline import Pipeline
from actors.placement import Placement, PlacementError, locate
from actors.placement_settings import NodeSettings
from actors.supervision.role_actor import kill
from diffuspec.core.errors import ConfigError, ModelLoadError
from tests.actors.conftest import tiny_pipeline
from tests.support.ray_cluster import NODE

pytestmark = pytest.mark.process

DEADLINES = {"placement_seconds": 2}


async def test_ranks_are_on_one_node_with_a_gpu_each_however_gpus_are_named(cluster, security):
    names = {"GPU-11111111-2222", "GPU-33333333-4444"}
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(names)}
    node = cluster.add_node(num_cpus=4, env_vars=variables, **{**NODE, "num_gpus": 2})
    verifier = {"tensor_parallel": 2, "num_gpus": 1}
    placement = await Placement.reserve(tiny_pipeline(placement={"verifier": verifier}), security)
    ranks = [placement.create_rank(rank) for rank in range(2)]
    places = await asyncio.gather(*map(locate, ranks))
    assert {place.node_id for place in places} == {node.node_id}
    assert {place.gpu_ids for place in places} == {(name,) for name in names}
    for rank in ranks:
        kill(rank)
    await placement.release()
    cluster.remove_node(node)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"verifier": {"tensor_parallel": 9, "num_gpus": 1}}, "verifier needs 9 CPU, 9 GPU on one"),
        ({"strategy": "STRICT_SPREAD"}, "verifier needs a node with labels {'ray.io/node-id': "),
    ],
)
async def test_what_the_cluster_lacks_is_named_at_once_and_in_time(
    cluster, placement, message, caplog
):
    pipeline = Pipeline(tiny_pipeline(placement=placement, deadlines=DEADLINES))
    with pytest.raises(PlacementError, match=message):
        await pipeline.start()
    [warning] = [record.message for record in caplog.records]
    assert "no room for the pipeline, waiting up to 2 s" in warning and message in warning
    assert {group["state"] for group in placement_group_table().values()} <= {"REMOVED"}


@pytest.mark.timeout(180)
async def test_a_start_waits_for_no_drafter_and_says_what_it_lacks(cluster):
    drafter = {"node": {"labels": {"zone": "b"}}}
    async with Pipeline(tiny_pipeline(placement={"drafter": drafter})) as pipeline:
        status = await pipeline.status()
        [reason] = status.degraded_reasons
        assert "drafter 0: no room: drafter 0 needs a node with labels {'zone': 'b'}" in reason
        tokens = [token async for step in pipeline.stream("a") for token in step.token_ids]
        assert tokens


async def test_what_ray_refuses_is_a_configuration_error(cluster, security):
    config = tiny_pipeline()
    node = NodeSettings.model_construct(labels={"a b": "c"}, resources={})
    coordinator = config.placement.coordinator.model_copy(update={"node": node})
    placement = config.placement.model_copy(update={"coordinator": coordinator})
    with pytest.raises(ConfigError, match="Ray cannot place the pipeline: "):
        await Placement.reserve(config.model_copy(update={"placement": placement}), security)


@pytest.mark.timeout(180)
async def test_a_target_that_is_not_there_is_named_and_nothing_stays(cluster, tmp_path):
    config = tiny_pipeline({"target": {"path": tmp_path / "nowhere"}, "drafter": None})
    with pytest.raises(ModelLoadError, match=r"nowhere does not exist.* \(on the node [0-9.]+\)"):
        await Pipeline(config).start()
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
