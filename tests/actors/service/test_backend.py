"""Requests over several pipelines: real gRPC, with answers that count from 0."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from actors.service import pool as pool_module
from actors.service.backend import PipelinesBackend
from actors.service.directory import Member
from actors.service.pool import PipelinePool
from diffuspec.core.errors import (
    FatalRequestError,
    OverloadedError,
    RequestCancelledError,
    VerifierLostError,
    VerifierUnavailableError,
    WorkerError,
)
from diffuspec.core.interfaces import RoleStatus, ServiceStatus, TargetInfo
from diffuspec.core.losses import Losses
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason, RequestOutput, StepStats
from diffuspec.rpc.client import resumption
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.server.health import StepHealth
from diffuspec.rpc.server.server import RoleServer
from diffuspec.text.prompt_memory import prompt_blocks
from tests.actors.conftest import tiny_pipeline

INFO = TargetInfo(1000, max_model_len=512, max_sequences=2, eos_token_ids=(0,))
PROMPT = np.arange(40, dtype=np.int32)
NUM_TOKENS = 12
SAMPLED = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0)
NO_RANKS = VerifierUnavailableError("no ranks")


class Counting:
    """A `Frontend` that answers 0, 1, 2 and so on, in steps of one, as far as it may."""

    def __init__(self) -> None:
        self.error: Exception | None = None  # raised in place of the next token
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.num_losses: list[int] = []  # of all requests
        self.seeds: list[int | None] = []  # of all requests
        self.num_open = 0
        self.health = StepHealth(60)

    def lose_verifier(self) -> None:
        with contextlib.suppress(VerifierUnavailableError), self.health.step():
            raise VerifierUnavailableError("its process has ended")

    async def stream(
        self,
        prompt: object,
        sampling: SamplingParams,
        speculation: object,
        request_id: str | None,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        self.num_losses.append(num_losses)
        self.seeds.append(sampling.seed)
        self.num_open += 1
        try:
            for number in range(len(committed_token_ids), sampling.max_tokens):
                if number > len(committed_token_ids):
                    await self.may_go_on.wait()
                if self.error is not None:
                    raise self.error
                is_last = number == sampling.max_tokens - 1
                reason = FinishReason.LENGTH if is_last else None
                yield RequestOutput((number,), 0, ("x",), "x", None, reason, StepStats(0, 0, 0, 1))
        finally:
            self.num_open -= 1

    def cancel(self, request_id: str) -> bool:
        self.error = RequestCancelledError("cancelled")
        self.may_go_on.set()
        return True

    async def status(self) -> ServiceStatus:
        return ServiceStatus((RoleStatus("verifier"),), ("drafter 0: gone",), num_running=1)


class Pipelines:
    """Pipelines, each with a server, and a directory of them."""

    def __init__(self) -> None:
        self.frontends: dict[str, Counting] = {}
        self.members: dict[str, Member] = {}
        self.is_away = False  # the directory
        self.servers: dict[str, RoleServer] = {}

    async def start(self, name: str) -> Counting:
        security = Security(f"token-of-{name}")
        frontend = self.frontends[name] = Counting()
        servicer = CoordinatorServicer(frontend, health=frontend.health)
        server = self.servers[name] = RoleServer([servicer], security)
        await server.__aenter__()
        self.members[name] = Member(name, server.address, security, INFO)
        return frontend

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).__aexit__()

    async def close(self) -> None:
        for frontend in self.frontends.values():
            frontend.may_go_on.set()
        for name in list(self.servers):
            await self.stop(name)

    async def list(self) -> Sequence[Member]:
        if self.is_away:
            raise WorkerError("it is started again")
        return tuple(self.members.values())


@pytest.fixture
async def pipelines(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pipelines]:
    monkeypatch.setattr(pool_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(resumption, "_FIRST_PAUSE_SECONDS", 0.01)
    pipelines = Pipelines()
    await pipelines.start("a")
    await pipelines.start("b")
    yield pipelines
    await pipelines.close()


@contextlib.asynccontextmanager
async def opened(pipelines: Pipelines, patience: float = 30.0) -> AsyncIterator[PipelinesBackend]:
    config = tiny_pipeline()

    async def list_series() -> dict[str, str]:
        return {"a": "tokens 1.0\n"}

    async with PipelinePool(config, pipelines.list) as pool:
        yield PipelinesBackend("tiny", config, None, pool, list_series, patience)


@pytest.fixture
async def backend(pipelines: Pipelines) -> AsyncIterator[PipelinesBackend]:
    async with opened(pipelines) as backend:
        await until(lambda: sum(one.is_healthy for one in backend.pool.usable().values()) == 2)
        yield backend


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def tokens(backend: PipelinesBackend, sampling: SamplingParams = SAMPLED) -> list[int]:
    stream = backend.stream(PROMPT, sampling, None, "one")
    return [i async for step in stream for i in step.token_ids]


def used(pipelines: Pipelines) -> tuple[str, str]:
    """Return the names of the pipeline that answers now and of the other one."""
    [name] = [name for name, one in pipelines.frontends.items() if one.num_open]
    return name, "b" if name == "a" else "a"


async def test_one_prompt_always_goes_to_the_same_pipeline(pipelines, backend):
    for _ in range(5):
        assert await tokens(backend) == [*range(NUM_TOKENS)]
    assert sorted(len(one.seeds) for one in pipelines.frontends.values()) == [0, 5]
    assert backend.model.max_model_len == 512 and backend.model.name == "tiny"


@contextlib.asynccontextmanager
async def halfway(pipelines: Pipelines, backend: PipelinesBackend):
    """Yield a stream after its first token; the rest does not come yet from where it began."""
    for one in pipelines.frontends.values():
        one.may_go_on.clear()
    async with contextlib.aclosing(backend.stream(PROMPT, SAMPLED, None, "one")) as stream:
        assert (await anext(stream)).token_ids == (0,)
        first, second = used(pipelines)
        pipelines.frontends[second].may_go_on.set()
        yield stream, first, second


async def rest(stream) -> list[int]:
    return [i async for step in stream for i in step.token_ids]


def announce_end(pipelines: Pipelines, name: str) -> None:
    pipelines.servers[name].announce_end()
    break_off(pipelines, name, RequestCancelledError("no time left"))


def break_off(pipelines: Pipelines, name: str, error: Exception = NO_RANKS) -> None:
    pipelines.frontends[name].error = error
    pipelines.frontends[name].may_go_on.set()


def lose_verifier(pipelines: Pipelines, name: str) -> None:
    """Lose the ranks, for which the answer would wait if there were no other pipeline."""
    pipelines.frontends[name].lose_verifier()


@pytest.mark.parametrize("lose", [announce_end, break_off, lose_verifier])
async def test_an_answer_goes_on_elsewhere_with_the_same_seed(pipelines, backend, lose):
    async with halfway(pipelines, backend) as (stream, first, second):
        lose(pipelines, first)
        assert await rest(stream) == [*range(1, NUM_TOKENS)]
        seeds = [pipelines.frontends[name].seeds for name in (first, second)]
        assert seeds[0] == seeds[1] != [None] and len(seeds[1]) == 1


async def test_an_answer_waits_for_new_ranks_if_no_pipeline_serves(pipelines, backend):
    async with halfway(pipelines, backend) as (stream, first, second):
        links = {link.member.name: link for link in backend.pool.links}
        for name in (second, first):
            pipelines.frontends[name].lose_verifier()
            await until(lambda link=links[name]: not link.is_healthy)
        pipelines.frontends[first].may_go_on.set()
        assert await rest(stream) == [*range(1, NUM_TOKENS)]
        assert not pipelines.frontends[second].seeds


async def test_an_answer_that_somebody_cancelled_ends(pipelines, backend):
    async with halfway(pipelines, backend) as (stream, first, _):
        break_off(pipelines, first, RequestCancelledError("by an operator"))
        with pytest.raises(RequestCancelledError, match="by an operator"):
            await rest(stream)


async def test_an_answer_goes_on_elsewhere_when_its_pipeline_is_gone(pipelines, backend):
    async with halfway(pipelines, backend) as (stream, first, second):
        await pipelines.stop(first)
        assert await rest(stream) == [*range(1, NUM_TOKENS)]
        del pipelines.members[first]
        await until(lambda: [link.member.name for link in backend.pool.links] == [second])


async def test_an_answer_waits_for_a_pipeline_that_is_started(pipelines, backend):
    async with halfway(pipelines, backend) as (stream, first, second):
        for name in (first, second):
            del pipelines.members[name]
            await pipelines.stop(name)
        await until(lambda: not backend.pool.links)
        waiting = asyncio.create_task(rest(stream))
        await pipelines.start("c")
        assert await waiting == [*range(1, NUM_TOKENS)]


async def test_without_another_pipeline_in_time_an_answer_ends_with_an_error(pipelines):
    async with opened(pipelines, patience=0.05) as backend:
        await until(lambda: len(backend.pool.usable()) == 2)
        async with halfway(pipelines, backend) as (stream, first, second):
            for name in (first, second):
                await pipelines.stop(name)
            with pytest.raises(TransportError):
                await rest(stream)


async def test_a_pipeline_that_drains_gets_no_new_requests(pipelines, backend):
    await tokens(backend)
    [name] = [name for name, one in pipelines.frontends.items() if one.seeds]
    pipelines.members[name] = replace(pipelines.members[name], accepts_requests=False)
    await until(lambda: name not in backend.pool.usable())
    assert await tokens(backend) == [*range(NUM_TOKENS)]
    assert len(pipelines.frontends[name].seeds) == 1


async def test_a_full_queue_sends_a_request_on_and_two_refuse_it(pipelines, backend):
    a, b = pipelines.frontends.values()
    a.error = b.error = OverloadedError("the queue is full")
    with pytest.raises(OverloadedError):
        await tokens(backend)
    assert len(a.seeds) == len(b.seeds) == 1
    b.error = None
    assert await tokens(backend) == [*range(NUM_TOKENS)]


async def test_requests_of_one_prompt_are_spread_when_its_pipeline_is_busy(pipelines, backend):
    for one in pipelines.frontends.values():
        one.may_go_on.clear()
    streams = [backend.stream(PROMPT, SAMPLED, None, f"{i}") for i in range(8)]
    for stream in streams:
        await anext(stream)
    assert sorted(one.num_open for one in pipelines.frontends.values()) == [3, 5]
    for stream in streams:
        await stream.aclose()
    await until(lambda: not any(one.num_open for one in pipelines.frontends.values()))


async def test_a_directory_that_is_away_changes_nothing(pipelines, backend):
    pipelines.is_away = True
    assert await tokens(backend) == [*range(NUM_TOKENS)]
    pipelines.is_away = False
    known, pipelines.members = pipelines.members, {}  # it was started again
    await asyncio.sleep(0.05)
    assert await tokens(backend) == [*range(NUM_TOKENS)]
    assert len(backend.pool.links) == len(known)


async def test_before_the_first_pipeline_requests_are_refused_at_once(pipelines):
    pipelines.members = {}
    async with opened(pipelines) as backend:
        with pytest.raises(VerifierUnavailableError):
            await tokens(backend)
        with pytest.raises(VerifierUnavailableError):
            _ = backend.model
        [role] = (await backend.status()).roles
        assert role.name == "pipeline" and not role.is_healthy


async def test_status_and_metrics_are_those_of_all_pipelines(pipelines, backend):
    status = await backend.status()
    names = [role.name for role in status.roles]
    assert names == ["verifier", *(f"pipeline {x}{y}" for x in "ab" for y in ("", ": verifier"))]
    assert all(role.is_healthy for role in status.roles) and status.num_running == 2
    assert status.degraded_reasons == tuple(f"pipeline {x}: drafter 0: gone" for x in "ab")
    series = '# HELP tokens \n# TYPE tokens untyped\ntokens{pipeline="a"} 1.0\n'
    assert await backend.metrics() == series


async def test_a_service_that_cannot_answer_names_what_is_missing(pipelines, backend):
    async def until_missing(name: str) -> None:
        while (first := (await backend.status()).roles[0]).is_healthy or first.name != name:
            await asyncio.sleep(0.01)

    for name in "ab":
        pipelines.frontends[name].lose_verifier()
    await until_missing("verifier")
    for name in "ab":
        await pipelines.stop(name)
    await until_missing("coordinator")
    pipelines.members = {}
    await until_missing("pipeline")


async def test_a_request_does_not_wander_for_ever(pipelines, backend, monkeypatch):
    monkeypatch.setattr(resumption, "_MAX_INTERRUPTIONS", 3)
    for one in pipelines.frontends.values():
        one.error = VerifierUnavailableError("no ranks")
    with pytest.raises(WorkerError):
        await tokens(backend)
    assert 2 <= sum(len(one.seeds) for one in pipelines.frontends.values()) <= 4


async def test_verifiers_lost_at_a_request_are_counted_and_the_third_ends_it(pipelines, backend):
    for one in pipelines.frontends.values():
        one.error = VerifierLostError("rank 0 died")
    with pytest.raises(FatalRequestError, match="rank 0 died"):
        await tokens(backend)
    said = [number for one in pipelines.frontends.values() for number in one.num_losses]
    assert sorted(said) == [0, 1, 2]


def test_suspects_share_a_pipeline_that_gets_nothing_else(backend):
    blocks, suspect, other = prompt_blocks(PROMPT), Losses(2), Losses(1)
    first, second = backend.choose(blocks, other)
    with second.answering("a", suspect):
        assert backend.choose(blocks, other) == [first]
        assert backend.choose(blocks, suspect) == [second]
        with first.answering("b", other):
            assert backend.choose(blocks, suspect) == [second]
        with first.answering("c", suspect):
            assert {*backend.choose(blocks, other)} == {first, second}, "there is no other"
    assert backend.choose(blocks, other) == [first, second]
