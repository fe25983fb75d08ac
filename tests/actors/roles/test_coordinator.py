"""A coordinator over roles behind gRPC, as plain objects: Ray is not needed."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from actors.roles.coordinator import CoordinatorActor, verifier_at
from actors.roles.drafter import DrafterActor
from actors.roles.path_scorer import PathScorerActor
from actors.roles.verifier import VerifierRank
from actors.settings import PipelineConfig
from diffuspec.core.errors import (
    BrokenEngineError,
    ConfigError,
    DrafterError,
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    VerifierLostError,
    VerifierUnavailableError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
from diffuspec.engine.engine import Engine
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.security import Security
from diffuspec.rpc.server import health
from diffuspec.text.tokenizer import load_tokenizer
from tests.actors.conftest import tiny_pipeline
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.hanging import answer_while_hanging

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOST = "127.0.0.1"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
SHORT = SamplingParams(max_tokens=24)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)
PLAIN = SpeculationParams(policy="off")
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=8)


@pytest.fixture(scope="module")
def expected(pipeline) -> tuple[int, ...]:
    with Engine.from_config(pipeline.engine.model_copy(update={"drafter": None})) as engine:
        [answer] = engine.generate([MESSAGES], SHORT)
    return answer.token_ids


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier_address(pipeline, security) -> AsyncIterator[str]:
    verifier = VerifierRank(pipeline, security)
    yield await verifier.start("", HOST)
    await verifier.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafter_address(pipeline, security, target_info, vocabulary) -> AsyncIterator[str]:
    scorer, drafter = PathScorerActor(pipeline, security), DrafterActor(pipeline, security)
    scorer_address = await scorer.start(target_info, HOST)
    yield await drafter.start(target_info, vocabulary, scorer_address, HOST)
    await drafter.stop()
    await scorer.stop()


@contextlib.asynccontextmanager
async def serving(config: PipelineConfig, security: Security, verifier: str) -> AsyncIterator[Any]:
    """A coordinator that is `ready`, and a `client` of it."""
    actor: Any = CoordinatorActor(config, security)
    actor.ready = await actor.start(partial(verifier_at, verifier, config, security), HOST)
    actor.client = await RemoteCoordinator.connect(actor.ready.address, security)
    yield actor
    await actor.client.close()
    await actor.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def coordinator(pipeline, security, verifier_address) -> AsyncIterator[Any]:
    async with serving(pipeline, security, verifier_address) as actor:
        yield actor


async def test_answers_are_plain_and_the_status_says_so_until_a_drafter_connects(
    coordinator, drafter_address, expected
):
    answer = await coordinator.engine.complete(MESSAGES, SHORT, PLAIN)
    assert answer.token_ids == expected
    assert (await coordinator.status()).degraded_reasons == ("drafter 0: it has not connected yet",)
    await coordinator.connect_drafter("drafter 0", drafter_address)
    await coordinator.test_drafting()
    answer = await coordinator.engine.complete(MESSAGES, SHORT, DRAFTED)
    assert answer.token_ids == expected and len(answer.steps) < len(expected)


async def test_a_drafter_that_connects_is_used_at_once(coordinator, drafter_address):
    for _ in range(3):  # each failure makes the backoff longer
        answer = await coordinator.engine.complete(MESSAGES, SHORT, DRAFTED)
        assert not any(step.num_tree_nodes for step in answer.steps)
    await coordinator.connect_drafter("drafter 0", drafter_address)
    answer = await coordinator.engine.complete(MESSAGES, SHORT, DRAFTED)
    assert any(step.num_tree_nodes for step in answer.steps)


async def test_clients_are_answered_over_grpc(coordinator, expected):
    increments = [increment async for increment in coordinator.client.stream(MESSAGES, SHORT)]
    assert tuple(i for increment in increments for i in increment.token_ids) == expected
    with pytest.raises(InvalidRequestError, match="empty"):
        await anext(coordinator.client.stream([], SHORT))


async def test_a_form_that_takes_too_much_is_refused_to_its_client_alone(coordinator):
    async def ask(pattern: str) -> str:
        form = SamplingParams(max_tokens=4, structured_output=StructuredOutput(grammar=pattern))
        return "".join([output.text async for output in coordinator.client.stream(MESSAGES, form)])

    bomb = " & ".join(f"/(.|\\n)*a.{{{count}}}b(.|\\n)*/" for count in range(20))
    refused = asyncio.create_task(ask(f"start: T\nT: {bomb}"))
    assert await ask('start: "yes"') == "yes"
    with pytest.raises(InvalidRequestError, match="it takes more than"):
        await refused


async def test_while_it_drains_it_answers_and_is_not_serving(coordinator):
    client = coordinator.client
    answer = client.stream(MESSAGES, LONG, PLAIN, "long")
    await anext(answer)
    draining = asyncio.create_task(coordinator.drain(30))
    await asyncio.sleep(0)
    assert not await client.check_health(5), "clients have to go elsewhere"
    assert await coordinator.is_healthy(), "it must not be replaced"
    with pytest.raises(OverloadedError, match="shutting down"):
        await anext(client.stream(MESSAGES, SHORT))
    status = await client.status()
    assert status.num_running == 1 and not draining.done()
    [request] = status.requests
    assert "long" in request.request_id and request.num_output_tokens > 0
    assert await client.cancel("long")
    with pytest.raises(RequestCancelledError):
        async for _ in answer:
            pass
    await draining


async def test_a_disconnected_drafter_is_named_in_the_status(coordinator, drafter_address):
    await coordinator.connect_drafter("drafter 0", drafter_address)
    status = await coordinator.status()
    assert status.degraded_reasons == ()
    assert [(role.name, role.is_healthy) for role in status.roles] == [
        ("verifier", True),
        ("drafter 0", True),
    ]
    await coordinator.disconnect_drafter("drafter 0", "its node is gone")
    assert (await coordinator.status()).degraded_reasons == ("drafter 0: its node is gone",)
    with pytest.raises(DrafterError, match="decoded plainly"):
        await coordinator.test_drafting()


async def test_a_drafter_that_does_not_answer_is_refused(coordinator):
    with pytest.raises(DrafterError, match=r"127\.0\.0\.1:1"):
        await coordinator.connect_drafter("drafter 0", "127.0.0.1:1")


async def test_a_drafter_of_the_same_name_takes_over(coordinator, drafter_address, expected):
    await coordinator.connect_drafter("drafter 0", drafter_address)
    await coordinator.connect_drafter("drafter 0", drafter_address)
    answer = await coordinator.engine.complete(MESSAGES, SHORT, DRAFTED)
    assert answer.token_ids == expected and len(answer.steps) < len(expected)


async def test_several_drafters_share_the_requests(
    security, expected, verifier_address, drafter_address
):
    config = tiny_pipeline(placement={"drafter": {"count": 2}})
    async with (
        serving(config, security, verifier_address) as actor,
        contextlib.AsyncExitStack() as stack,
    ):
        ready = actor.ready
        scorer, drafter = PathScorerActor(config, security), DrafterActor(config, security)
        stack.push_async_callback(scorer.stop)
        stack.push_async_callback(drafter.stop)
        scorer_address = await scorer.start(ready.info, HOST)
        address = await drafter.start(ready.info, ready.vocabulary, scorer_address, HOST)
        await actor.connect_drafter("drafter 0", drafter_address)
        await actor.connect_drafter("drafter 1", address)
        asked = [remote.num_bytes_sent for remote in actor.drafters.remotes.values()]
        answers = [actor.engine.complete(MESSAGES, SHORT, DRAFTED) for _ in range(4)]
        assert {answer.token_ids for answer in await asyncio.gather(*answers)} == {expected}
        asked_now = [remote.num_bytes_sent for remote in actor.drafters.remotes.values()]
        assert all(now > before for now, before in zip(asked_now, asked, strict=True))


async def test_it_audits_answers_also_those_that_began_at_another_one(
    security, verifier_address, expected
):
    config = tiny_pipeline({"drafter": {"kind": "pld"}}, audit_rate=1.0)
    async with serving(config, security, verifier_address) as actor:
        for committed in ((), expected[:9], (expected[0] + 1,)):  # the last is not plain decoding's
            answer = actor.client.stream(MESSAGES, SHORT, None, "a", committed)
            assert [one async for one in answer]
        await actor.auditor.finish()
        text = await actor.metrics()
    assert 'audits_total{result="same"} 2.0' in text
    assert 'audits_total{result="different"} 1.0' in text


async def test_it_is_not_healthy_while_its_event_loop_hangs(security, verifier_address):
    config = tiny_pipeline({"drafter": None}, deadlines={"health_seconds": 0.05})
    async with serving(config, security, verifier_address) as actor:
        assert not await answer_while_hanging(actor.is_healthy)
        assert await actor.is_healthy()


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Have roles test themselves often."""
    monkeypatch.setattr(health, "_RECENT_SECONDS", 0.1)
    monkeypatch.setattr(health, "_CHECK_SECONDS", 0.05)


async def becomes_healthy(client: RemoteCoordinator, is_healthy: bool) -> None:
    async with asyncio.timeout(30):
        while await client.check_health(5) != is_healthy:
            await asyncio.sleep(0.05)


async def test_an_idle_coordinator_serves_while_its_verifier_does(security, impatient):
    config = tiny_pipeline({"drafter": None})
    verifier = VerifierRank(config, security)
    address = await verifier.start("", HOST)
    async with serving(config, security, address) as actor:
        await becomes_healthy(actor.client, True)
        await verifier.stop()
        await becomes_healthy(actor.client, False)
        verifier = VerifierRank(config, security)
        await verifier.start("", HOST, int(address.rpartition(":")[2]))
        await becomes_healthy(actor.client, True)
    await verifier.stop()


class HangingVerifier(FakeVerifier):
    """Claims to be healthy even while it hangs."""

    num_bytes_sent = num_bytes_received = 0
    drafters = ()
    problem = ""

    async def check_health(self, timeout: float) -> bool:
        return True


async def test_a_coordinator_whose_verifier_hangs_is_not_serving_until_it_does_not(security):
    config = tiny_pipeline({"drafter": None}, deadlines={"verify_seconds": 0.2})
    actor = CoordinatorActor(config, security)
    vocab_size = len(load_tokenizer(config.engine.target.path))
    verifier = HangingVerifier(replace(FAKE_TARGET, vocab_size=vocab_size))
    ready = await actor.start(lambda: contextlib.nullcontext(verifier), HOST)
    client = await RemoteCoordinator.connect(ready.address, security)
    await becomes_healthy(client, True)
    verifier.gate.close()
    answer = asyncio.create_task(actor.engine.complete([1, 2, 3], SHORT, PLAIN))
    await verifier.gate.arrival()
    await becomes_healthy(client, False)
    verifier.gate.open()
    await answer
    await becomes_healthy(client, True)
    await client.close()
    await actor.stop()


async def test_without_a_verifier_nothing_is_served(pipeline, security):
    actor = CoordinatorActor(pipeline, security)
    with pytest.raises(VerifierUnavailableError):
        await actor.start(partial(verifier_at, "127.0.0.1:1", pipeline, security), HOST)
    assert not await actor.is_healthy()
    await actor.stop()


async def test_off_loopback_without_tls_no_verifier_is_made(pipeline, security):
    with pytest.raises(ConfigError, match="without TLS"):
        await CoordinatorActor(pipeline, security).start(None, "0.0.0.0")  # type: ignore[arg-type]


async def test_a_trace_is_whole_once_the_coordinator_stops(security, verifier_address, tmp_path):
    config = tiny_pipeline({"drafter": None}, trace=tmp_path / "trace.json")
    async with serving(config, security, verifier_address) as actor:
        await actor.engine.complete(MESSAGES, SHORT)
    events = json.loads((tmp_path / "trace.json").read_text())
    assert any(event["ph"] == "X" for event in events)


async def test_failures_in_a_coordinator_end_its_requests_then_the_coordinator(
    pipeline, security, verifier_address, expected, caplog
):
    async with serving(pipeline, security, verifier_address) as actor:
        working = asyncio.create_task(actor.run())
        for number in range(3):
            if not number:
                stream = actor.client.stream(MESSAGES, LONG, PLAIN)
                await anext(stream)
            actor.engine._coordinator.loop.events.put(lambda: [][0])
            if not number:
                with pytest.raises(VerifierLostError, match="broke off"):
                    _ = [output async for output in stream]
                answer = [o async for o in actor.client.stream(MESSAGES, SHORT, PLAIN)]
                assert sum((output.token_ids for output in answer), ()) == expected
            await asyncio.sleep(0.01)
        with pytest.raises(BrokenEngineError):
            await working
        assert not await actor.is_healthy()
        with pytest.raises(VerifierUnavailableError):
            _ = [output async for output in actor.client.stream(MESSAGES, SHORT, PLAIN)]
    assert "gives up" in caplog.text
