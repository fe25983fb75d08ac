"""A verifier of real actors: killed, stopped and replaced, with the verdicts of one process."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.placement import CONTROL
from actors.roles.verifier import RankStatus, VerifierRank
from actors.settings import PipelineConfig, parse_pipeline
from actors.supervision.verifier_group import SupervisedVerifier, VerifierGroup
from diffuspec.core.addresses import LOOPBACK
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.errors import ModelLoadError, VerifierError
from diffuspec.core.interfaces import Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.models.target import CausalTarget
from diffuspec.rpc.security import Security
from diffuspec.scheduler.coordinator import Coordinator
from tests.actors.chaos import fail_every_step, gone

NUM_TOKENS = 60
PLAIN = SpeculationParams(policy="off")
REQUESTS = [
    ([5, 6, 7], SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)),
    ([80, 81], SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.8, seed=4)),
    ([30, 20, 10], SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, presence_penalty=0.5)),
]
Answers = list[list[int]]

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(240)]


def pipeline(target: Path, num_ranks: int) -> PipelineConfig:
    return parse_pipeline(
        {
            "engine": {"target": {"path": target, "device": "cpu", "max_sequences": 3}},
            "placement": {"verifier": {"tensor_parallel": num_ranks}},
            "deadlines": {"start_seconds": 90, "verify_seconds": 8, "health_seconds": 0.5},
        }
    )


def make_group(config: PipelineConfig, security: Security) -> VerifierGroup:
    remote: Any = ray.remote
    kind = remote(num_cpus=1, max_restarts=0, concurrency_groups={CONTROL: 2})(VerifierRank)
    return VerifierGroup(
        lambda rank: kind.remote(config, security, rank),
        config.placement.verifier.tensor_parallel,
        config.deadlines,
        lambda place: LOOPBACK,
    )


@contextlib.asynccontextmanager
async def serving(config: PipelineConfig, security: Security) -> AsyncIterator[SupervisedVerifier]:
    """A verifier; once it is left, nothing of it is there."""
    group = make_group(config, security)
    seconds = config.deadlines.verify_seconds
    async with SupervisedVerifier(group, security, seconds) as verifier:
        yield verifier
        ranks, left = await group.ready(60), await pids(group)
    with pytest.raises(VerifierError, match="no verifier any more: it was stopped"):
        await group.ready(0)
    await gone(left)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, int(ranks.address.rpartition(":")[2])))
    for recovery in group.recoveries:
        print(f"back after {recovery.seconds:.1f} s: {recovery.reason[:80]}")


async def pids(group: VerifierGroup) -> list[int]:
    """The ranks' processes, once there are ranks."""
    ranks = await group.ready(90)
    statuses: list[RankStatus] = [await handle.status.remote() for handle in ranks.handles]
    return [status.pid for status in statuses]


async def answers(verifier: Verifier, halfway: Callable[[], None] = lambda: None) -> Answers:
    """Answer all requests together, and do something to the ranks when half of it is there."""
    num_tokens = 0

    async def answer(prompt: list[int], sampling: SamplingParams) -> list[int]:
        nonlocal num_tokens
        token_ids: list[int] = []
        stream = coordinator.stream(np.array(prompt, np.int32), sampling, PLAIN)
        async for increment in stream:
            token_ids += increment.token_ids
            num_tokens += 1
            if num_tokens == NUM_TOKENS:
                halfway()
        return token_ids

    config, lengths = CoordinatorConfig(), DraftLengthConfig()
    async with Coordinator(verifier, None, config, lengths) as coordinator:
        return await asyncio.gather(*(answer(*request) for request in REQUESTS))


@pytest.fixture
async def expected(target_path: Callable[[str], Path]) -> AsyncIterator[Answers]:
    """What one process says."""
    config = pipeline(target_path("qwen2"), 1)
    target = CausalTarget.load(config.engine.target)
    yield await answers(target)
    target.close()


async def test_one_rank_is_killed_and_the_next_one_s_steps_fail(target_path, security, expected):
    async with serving(pipeline(target_path("qwen2"), 1), security) as verifier:
        [pid] = await pids(verifier.group)
        assert await answers(verifier, lambda: os.kill(pid, signal.SIGKILL)) == expected
        assert len(verifier.group.recoveries) == 1
        assert await verifier.check_health(5)

        [rank] = (await verifier.group.ready(90)).handles
        await rank.__ray_call__.remote(fail_every_step)
        assert await answers(verifier) == expected
        assert "illegal memory access" in verifier.group.recoveries[1].reason


async def test_ranks_of_two_are_killed_and_stopped(target_path, security, expected):
    async with serving(pipeline(target_path("qwen2"), 2), security) as verifier:
        group = verifier.group
        before = await pids(group)
        assert await answers(verifier, lambda: os.kill(before[1], signal.SIGKILL)) == expected
        await gone(before)
        assert len(group.recoveries) == 1 and "rank 1" in group.recoveries[0].reason

        stopped = await pids(group)
        assert await answers(verifier, lambda: os.kill(stopped[0], signal.SIGSTOP)) == expected
        await gone(stopped)
        assert len(group.recoveries) == 2 and "did not answer" in group.recoveries[1].reason

        paused = await pids(group)

        def pause() -> None:
            os.kill(paused[1], signal.SIGSTOP)
            asyncio.get_running_loop().call_later(0.4, os.kill, paused[1], signal.SIGCONT)

        assert await answers(verifier, pause) == expected
        assert await pids(group) == paused and len(group.recoveries) == 2


async def test_a_rank_that_does_not_start_says_why_and_leaves_nothing(tmp_path, security):
    group = make_group(pipeline(tmp_path / "nowhere", 1), security)
    before = ray.available_resources()["CPU"]
    with pytest.raises(ModelLoadError, match="nowhere does not exist"):
        await group.start()
    async with asyncio.timeout(10):
        while ray.available_resources().get("CPU", 0.0) < before:  # more: tests before left some
            await asyncio.sleep(0.1)
    await group.stop()
