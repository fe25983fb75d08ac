"""A pipeline on a cluster of several nodes on this machine, with GPUs that are names alone."""

import asyncio
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio
from ray._private.node import Node as RayNode
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from actors.pipeline import Pipeline
from actors.role_reports import RoleReport
from actors.roles.coordinator import CoordinatorActor
from actors.settings import PipelineConfig
from actors.supervision.role_actor import ActorLostError
from diffuspec.core.errors import ConfigError, FatalRequestError, RequestCancelledError
from diffuspec.core.params import PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput
from diffuspec.engine.engine import Engine
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.telemetry.trace import numbered
from tests.actors.conftest import make_certificates, tiny_pipeline
from tests.support.ports import free_port
from tests.support.ray_cluster import NODE

pytestmark = [
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
]

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
SHORT = SamplingParams(max_tokens=24)
LONG = SamplingParams(max_tokens=160, ignore_eos=True)
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)
DRAFTER_NODE = {"diffuspec-role": "drafter"}
VERIFIER_NODE = {"diffuspec-role": "verifier"}
PLACEMENT: dict[str, Any] = {
    "coordinator": {
        "num_cpus": 0.5,
        "node": {"labels": {"diffuspec-role": "!in(drafter,verifier)"}},
    },
    "drafter": {
        "num_cpus": 0.5,
        "num_gpus": 0.9,
        "node": {"labels": DRAFTER_NODE, "resources": {"drafter_node": 1}},
    },
    "path_scorer": {"num_cpus": 0.5, "num_gpus": 0.1},
    "verifier": {"num_cpus": 0.5, "num_gpus": 1, "node": {"labels": VERIFIER_NODE}},
}
DEADLINES = {
    "placement_seconds": 20,
    "start_seconds": 120,
    "health_seconds": 0.5,
    "verify_seconds": 10,
    "drain_seconds": 30,
}


def add_drafter_node(cluster: Cluster) -> RayNode:
    asked: dict[str, Any] = {**NODE, "num_gpus": 1}
    return cluster.add_node(num_cpus=2, labels=DRAFTER_NODE, resources={"drafter_node": 1}, **asked)


def add_verifier_node(cluster: Cluster) -> RayNode:
    asked: dict[str, Any] = {**NODE, "num_gpus": 2}
    return cluster.add_node(num_cpus=2, labels=VERIFIER_NODE, **asked)


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[dict[str, RayNode]]:
    nodes = {"drafter": add_drafter_node(cluster), "verifier": add_verifier_node(cluster)}
    yield nodes
    for node in nodes.values():
        cluster.remove_node(node)


def make_config(engine: dict[str, Any] | None = None, **sections: Any) -> PipelineConfig:
    given = {"coordinator": {"profile_seconds": 0.5}, **(engine or {})}
    return tiny_pipeline(given, placement=PLACEMENT, deadlines=DEADLINES, **sections)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Certificates for this machine; with them the roles listen at its own address."""
    return make_certificates(tmp_path_factory.mktemp("tls")) | {"server_name": "diffuspec"}


@pytest.fixture(scope="module")
def expected() -> Callable[[SamplingParams], tuple[int, ...]]:
    """Plain decoding in one process."""
    with Engine.from_config(make_config({"drafter": None}).engine) as engine:
        answers = {one: engine.generate([MESSAGES], one)[0].token_ids for one in (SHORT, LONG)}
    return answers.__getitem__


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipeline(nodes, expected, tls, tmp_path_factory) -> AsyncIterator[Pipeline]:
    trace = tmp_path_factory.mktemp("trace") / "trace.json"
    rpc = {"tls": tls, "port": free_port()}
    async with Pipeline(make_config(rpc=rpc, trace=trace), "a-token-for-tests") as pipeline:
        yield pipeline


async def tokens_of(stream: AsyncIterator[RequestOutput]) -> list[int]:
    return [i async for step in stream for i in step.token_ids]


async def begun(pipeline: Pipeline) -> tuple[tuple[int, ...], AsyncIterator[RequestOutput]]:
    """Return the first tokens of a long answer, and the rest of it."""
    stream = pipeline.stream(MESSAGES, LONG, DRAFTED)
    return (await anext(stream)).token_ids, stream


async def answer(pipeline: Pipeline, sampling: SamplingParams) -> tuple[tuple[int, ...], int]:
    """Return an answer's tokens and how many of its steps had a draft."""
    steps = [step async for step in pipeline.stream(MESSAGES, sampling, DRAFTED)]
    tokens = tuple(i for step in steps for i in step.token_ids)
    return tokens, sum(step.step.num_tree_nodes > 0 for step in steps)


async def places(pipeline: Pipeline) -> dict[str, RoleReport]:
    return {report.name: report for report in await pipeline.describe()}


async def drafting_again(pipeline: Pipeline, sampling: SamplingParams) -> tuple[int, ...]:
    """Ask until an answer has drafts; return its tokens."""
    while True:
        tokens, num_drafts = await answer(pipeline, sampling)
        if num_drafts:
            return tokens
        await asyncio.sleep(0.2)


async def test_every_actor_lands_where_its_node_says(pipeline, nodes):
    found = await places(pipeline)
    drafter, scorer = found["drafter 0"].place, found["path scorer 0"].place
    coordinator, rank = found["coordinator"].place, found["verifier rank 0"].place
    assert drafter.node_id == scorer.node_id == nodes["drafter"].node_id
    assert drafter.gpu_ids == scorer.gpu_ids == ("0",)
    assert rank.node_id == nodes["verifier"].node_id and len(rank.gpu_ids) == 1
    assert coordinator.node_id not in (drafter.node_id, rank.node_id)
    assert coordinator.gpu_ids == ()
    assert len({place.pid for place in (drafter, scorer, coordinator, rank)}) == 4
    for report in found.values():
        assert report.address.rpartition(":")[0] in (report.place.ip, "")


async def test_answers_are_those_of_one_process(pipeline, expected):
    tokens, num_drafts = await answer(pipeline, SHORT)
    assert tokens == expected(SHORT) and num_drafts > 0
    assert (await pipeline.status()).degraded_reasons == ()
    assert "diffuspec_spec_decode_num_drafts_total" in await pipeline.metrics()


async def test_programs_with_the_token_reach_the_coordinator_at_its_port(pipeline, expected):
    config = pipeline.config
    assert pipeline.address.endswith(f":{config.rpc.port}")
    security = config.security("a-token-for-tests")
    client = await RemoteCoordinator.connect(pipeline.address, security)
    tokens = await tokens_of(client.stream(MESSAGES, SHORT))
    await client.close()
    assert tuple(tokens) == expected(SHORT)
    with pytest.raises(ConfigError, match="token is missing or wrong"):
        await RemoteCoordinator.connect(pipeline.address, config.security("another-token"))


async def test_a_scorer_that_dies_is_replaced_beside_the_same_drafter(pipeline, expected):
    before = await places(pipeline)
    os.kill(before["path scorer 0"].place.pid, signal.SIGKILL)
    tokens, _ = await answer(pipeline, SHORT)
    assert tokens == expected(SHORT)
    while (await places(pipeline))["path scorer 0"].address == before["path scorer 0"].address:
        await asyncio.sleep(0.1)
    assert await drafting_again(pipeline, SHORT) == expected(SHORT)
    assert (await places(pipeline))["drafter 0"].place == before["drafter 0"].place


async def test_answers_go_on_without_the_drafter_s_node_and_with_another(
    pipeline, cluster, nodes, expected
):
    begin, rest = await begun(pipeline)
    cluster.remove_node(nodes.pop("drafter"))
    assert (*begin, *await tokens_of(rest)) == expected(LONG)
    while not (await pipeline.status()).degraded_reasons:
        await asyncio.sleep(0.1)
    nodes["drafter"] = add_drafter_node(cluster)
    assert await drafting_again(pipeline, SHORT) == expected(SHORT)
    assert (await places(pipeline))["drafter 0"].place.node_id == nodes["drafter"].node_id


async def test_an_answer_waits_for_another_verifier_s_node_and_goes_on(
    pipeline, cluster, nodes, expected
):
    begin, rest = await begun(pipeline)
    cluster.remove_node(nodes.pop("verifier"))
    nodes["verifier"] = add_verifier_node(cluster)
    assert (*begin, *await tokens_of(rest)) == expected(LONG)
    assert (await places(pipeline))["verifier rank 0"].place.node_id == nodes["verifier"].node_id


async def kill_coordinator(pipeline: Pipeline) -> None:
    os.kill((await places(pipeline))["coordinator"].place.pid, signal.SIGKILL)


async def hang_coordinator(pipeline: Pipeline) -> None:
    def hang(coordinator: CoordinatorActor) -> None:
        loop = coordinator._heartbeat._beating.get_loop()
        loop.call_soon_threadsafe(time.sleep, 3600)

    service = await pipeline.coordinator.serving()
    await service.actor.handle.__ray_call__.remote(hang)


@pytest.mark.parametrize("lose", [kill_coordinator, hang_coordinator])
async def test_an_answer_goes_on_when_the_coordinator_is_lost(pipeline, expected, lose):
    begin, rest = await begun(pipeline)
    victim = pipeline.stream(MESSAGES, LONG, request_id="victim")
    await anext(victim)
    await lose(pipeline)
    assert await pipeline.cancel("victim") and not await pipeline.cancel("unknown")
    with pytest.raises(RequestCancelledError):
        await anext(victim)
    assert (*begin, *await tokens_of(rest)) == expected(LONG)
    assert await drafting_again(pipeline, SHORT) == expected(SHORT)
    number = pipeline.coordinator.num_starts
    first, last = pipeline.config.trace, numbered(pipeline.config.trace, number)
    assert number > 1 and '"verify"' in first.read_text() and last.is_file()


async def killing(pipeline: Pipeline, role: str, killed: set[int]) -> None:
    """Ask for an answer, and kill each process of a role that has a part in it."""
    async for _ in pipeline.stream(MESSAGES, LONG, PLAIN, "killer"):
        report = (await places(pipeline)).get(role)
        if report is not None and report.place.pid not in killed:
            killed.add(report.place.pid)
            os.kill(report.place.pid, signal.SIGKILL)


@pytest.mark.parametrize("role", ["coordinator", "verifier rank 0"])
async def test_a_request_at_which_processes_die_ends_and_the_one_beside_it_goes_on(
    pipeline, expected, role
):
    killed = set[int]()
    beside = asyncio.create_task(tokens_of(pipeline.stream(MESSAGES, LONG, PLAIN)))
    with pytest.raises(FatalRequestError, match="lost 3 times"):
        await killing(pipeline, role, killed)
    assert len(killed) == 3
    assert tuple(await beside) == expected(LONG)
    assert (await answer(pipeline, SHORT))[0] == expected(SHORT)


async def test_when_it_stops_answers_are_finished_and_nothing_stays(pipeline, expected):
    found = await places(pipeline)
    begin, rest = await begun(pipeline)
    stopping = asyncio.create_task(pipeline.stop())
    assert (*begin, *await tokens_of(rest)) == expected(LONG)
    await stopping
    with pytest.raises(ActorLostError, match="was stopped"):
        await anext(pipeline.stream(MESSAGES, SHORT))
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
    for report in found.values():
        await gone(report)


async def gone(report: RoleReport) -> None:
    """Wait until a process is no more; then its port is closed too."""
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(report.place.pid, 0)
            await asyncio.sleep(0.05)
    if report.address:
        host, port = report.address.split(":")
        with socket.socket() as client:
            assert client.connect_ex((host, int(port))) != 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def undrafted(nodes, tmp_path_factory) -> AsyncIterator[Pipeline]:
    """A pipeline whose drafter has other tokens than its target."""
    drafter = tmp_path_factory.mktemp("drafter") / "drafter"
    shutil.copytree(make_config().engine.drafter.path, drafter)
    tokenizer = json.loads((drafter / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = list(vocabulary)[300:302]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (drafter / "tokenizer.json").write_text(json.dumps(tokenizer))
    async with Pipeline(make_config({"drafter": {"path": drafter, "device": "cpu"}})) as pipeline:
        yield pipeline


async def test_a_drafter_that_does_not_fit_leaves_the_service_up_and_plain(undrafted, expected):
    [reason] = (await undrafted.status()).degraded_reasons
    assert "drafter 0" in reason and "different meanings" in reason
    assert await answer(undrafted, SHORT) == (expected(SHORT), 0)


async def test_a_stop_that_is_interrupted_leaves_nothing_either(undrafted):
    found = await places(undrafted)
    stream = undrafted.stream(MESSAGES, LONG)
    await anext(stream)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(undrafted.stop(), 0.1)
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
    with pytest.raises(ActorLostError, match="was stopped"):
        async for _ in stream:
            pass
    for name in ("coordinator", "verifier rank 0"):
        await gone(found[name])
