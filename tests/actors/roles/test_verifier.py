"""A rank behind gRPC, as a plain object: Ray is not needed."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.placement_settings import VerifierSettings
from actors.roles import self_test
from actors.roles.verifier import RankStatus, VerifierRank
from actors.roles.watched_verifier import WatchedVerifier
from actors.settings import PipelineConfig, parse_pipeline
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import (
    ConfigError,
    ModelLoadError,
    VerifierError,
    VerifierUnavailableError,
)
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import EMPTY_TREE, Verdict, VerifyRequest
from diffuspec.models.target import CausalTarget
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.security import Security
from diffuspec.scheduler.coordinator import Coordinator
from tests.support.fakes import FAKE_TARGET, FakeVerifier, decode_plainly

PLAIN = SpeculationParams(policy="off")
STEP = [self_test.verify_request(FAKE_TARGET)]
SAMPLED = SamplingParams(temperature=0.8, seed=4)


@pytest.fixture
def config(target_path: Callable[[str], Path]) -> PipelineConfig:
    target = {"path": target_path("qwen2"), "device": "cpu", "max_sequences": 2}
    return parse_pipeline({"engine": {"target": target}})


@pytest.fixture
async def rank(config: PipelineConfig, security: Security) -> AsyncIterator[Any]:
    rank: Any = VerifierRank(config, security)
    rank.address = await rank.start("", LOOPBACK)
    yield rank
    await rank.stop()


def request(prefix: Sequence[int]) -> VerifyRequest:
    return VerifyRequest("r", np.array(prefix, np.int32), 3, EMPTY_TREE, SAMPLED)


async def decode(verifier: RemoteVerifier | CausalTarget, num_tokens: int) -> list[int]:
    token_ids = [5, 6, 7]
    for _ in range(num_tokens):
        [verdict] = await verifier.verify([request(token_ids)])
        token_ids += verdict.token_ids
    return token_ids


async def test_a_remote_rank_has_the_verdicts_of_a_local_target(rank, config, security):
    remote = await RemoteVerifier.connect(rank.address, security)
    local = CausalTarget.load(config.engine.target)
    assert remote.info == local.info
    assert await decode(remote, 12) == await decode(local, 12)
    local.close()
    assert await remote.check_health(5)
    status = await rank.status()
    assert (status.pid, status.step_seconds) == (os.getpid(), 0.0) and status.num_steps >= 13
    await remote.close()


async def test_a_rank_reports_its_state_while_a_step_blocks_its_event_loop(
    target_path, security, monkeypatch
):
    target = {"path": target_path("qwen2"), "device": "cpu", "max_sequences": 1}
    rank = VerifierRank(parse_pipeline({"engine": {"target": target}}), security)
    remote = await RemoteVerifier.connect(await rank.start("", LOOPBACK), security)
    has_begun, is_answered = threading.Event(), threading.Event()
    statuses: list[RankStatus] = []

    def ask() -> None:
        assert has_begun.wait(10)
        statuses.append(asyncio.run(rank.status()))
        is_answered.set()

    def verify(target: CausalTarget, requests: Sequence[VerifyRequest], admitted: Any) -> Any:
        has_begun.set()
        assert is_answered.wait(10)
        return verify_here(target, requests, admitted)

    verify_here = CausalTarget.verify_here
    monkeypatch.setattr(CausalTarget, "verify_here", verify)
    asker = threading.Thread(target=ask)
    asker.start()
    await remote.verify([request([5, 6, 7])])
    asker.join()
    assert statuses[0].step_seconds > 0
    await remote.close()
    await rank.stop()


async def test_a_stopped_rank_frees_its_port_and_ends_run(rank, config, security):
    run = asyncio.create_task(rank.run())
    await asyncio.sleep(0)
    await rank.stop()
    await run
    with socket.socket() as listener:
        listener.bind((LOOPBACK, int(rank.address.rpartition(":")[2])))
    with pytest.raises(VerifierUnavailableError):
        await RemoteVerifier.connect(rank.address, security)


async def test_what_prevents_a_start_is_named_before_anything_is_loaded(security, tmp_path):
    config = parse_pipeline({"engine": {"target": {"path": tmp_path / "nowhere"}}})
    rank = VerifierRank(config, security)
    with pytest.raises(ModelLoadError, match="nowhere does not exist"):
        await rank.start("", LOOPBACK)
    with pytest.raises(ConfigError, match="without TLS"):  # which is checked first
        await rank.start("", "0.0.0.0")
    tls = dict.fromkeys(("ca", "certificate", "key"), tmp_path / "none.pem")
    config = parse_pipeline({"engine": {"target": {"path": tmp_path}}, "rpc": {"tls": tls}})
    with pytest.raises(ConfigError, match=r"cannot read TLS file .*none\.pem"):
        await VerifierRank(config, config.security("a")).start("", "0.0.0.0")
    await rank.stop()


async def test_when_a_step_and_the_self_test_fail_the_verifier_has_to_be_replaced():
    verifier = FakeVerifier()
    watched = WatchedVerifier(verifier)
    watch = asyncio.create_task(watched.watch())
    await watched.verify(STEP)
    assert not watch.done()
    verifier.error = VerifierError("an illegal memory access")
    with pytest.raises(VerifierUnavailableError, match="an illegal memory access"):
        await watched.verify(STEP)
    with pytest.raises(VerifierUnavailableError, match="an illegal memory access"):
        await watch
    verifier.error = None  # too late
    with pytest.raises(VerifierUnavailableError, match="an illegal memory access"):
        await watched.verify(STEP)
    verifier.error = VerifierUnavailableError("rank 0 lost another rank")
    watched = WatchedVerifier(verifier)
    with pytest.raises(VerifierUnavailableError):
        await watched.verify(STEP)
    with pytest.raises(VerifierUnavailableError, match="lost another rank"):  # without a self-test
        await watched.watch()


async def test_when_the_self_test_succeeds_the_request_is_at_fault():
    class Choosy(FakeVerifier):
        async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
            if any(request.prefix[0] == 49 for request in requests):
                raise VerifierError("not finite")
            return await super().verify(requests)

    verifier = Choosy()
    watched = WatchedVerifier(verifier)
    watch = asyncio.create_task(watched.watch())
    for _ in range(10):
        with pytest.raises(VerifierError, match="not finite"):
            await watched.verify([request([49])])
    assert not watch.done() and not verifier.held
    watch.cancel()


class Replaced:
    """Stands in for a group that replaces its ranks a second after they broke."""

    def __init__(self) -> None:
        self.info = FAKE_TARGET
        self.ranks = FakeVerifier()
        self.num_builds = 0

    async def keep(self) -> None:
        while True:
            self.watched = WatchedVerifier(self.ranks)
            self.num_builds += 1
            with pytest.raises(VerifierUnavailableError):
                await self.watched.watch()
            await asyncio.sleep(1)
            self.ranks = FakeVerifier()

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        return await self.watched.verify(requests)

    async def release(self, request_id: str) -> None:
        await self.watched.release(request_id)


@pytest.mark.virtual_time
@pytest.mark.parametrize("num_requests", [1, 4])
async def test_answers_wait_for_other_ranks_when_every_step_fails(num_requests):
    verifier = Replaced()
    keeping = asyncio.create_task(verifier.keep())
    await asyncio.sleep(0)
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)

    async def answer(prompt: list[int]) -> list[int]:
        tokens: list[int] = []
        async for increment in coordinator.stream(np.array(prompt), sampling, PLAIN):
            tokens += increment.token_ids
            if len(tokens) == 5:
                verifier.ranks.error = VerifierError("an illegal memory access")
        return tokens

    prompts = [[n, 7] for n in range(num_requests)]
    config = CoordinatorConfig(), DraftLengthConfig()
    async with Coordinator(verifier, None, *config) as coordinator:
        found = await asyncio.gather(*map(answer, prompts))
    assert found == [decode_plainly(verifier.ranks, prompt, sampling) for prompt in prompts]
    assert verifier.num_builds > 1
    keeping.cancel()


async def test_the_age_of_a_running_step_is_known():
    verifier = FakeVerifier()
    watched = WatchedVerifier(verifier)
    verifier.gate.close()
    step: asyncio.Task[list[Verdict]] = asyncio.create_task(watched.verify(STEP))
    await verifier.gate.arrival()
    await asyncio.sleep(0.02)
    assert watched.oldest_seconds >= 0.02
    verifier.gate.open()
    await step
    assert (watched.oldest_seconds, watched.num_steps) == (0.0, 1)


def test_ranks_speak_to_each_other_on_loopback_alone(config, security, monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    placement = config.placement.model_copy(
        update={"verifier": VerifierSettings(tensor_parallel=2, num_gpus=1)}
    )
    VerifierRank(config.model_copy(update={"placement": placement}), security)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=lo"
