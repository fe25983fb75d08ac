"""A drafter behind gRPC that reads the target's hidden states: the tokens are those without it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from diffuspec.core.config import EngineConfig, SearchConfig
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest
from diffuspec.drafters import LocalDrafter, Target, load_drafter
from diffuspec.engine.completion import Completion
from diffuspec.engine.engine import Engine
from diffuspec.models.target import CausalTarget
from diffuspec.pairs import parse_config
from diffuspec.rpc.client.roles import RemoteDrafter, RemoteVerifier
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.server.servicers import DrafterServicer, VerifierServicer
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.heads import save_dflash
from tests.support.serving import serving

DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=5)
PROMPTS = ["ab " * 30, "ab " * 30 + "and so on", "another one"]
STATE_BYTES = 2 * 2 * 32  # of a token: two layers of 32 columns, in bfloat16
SAMPLINGS = [
    SamplingParams(max_tokens=14, ignore_eos=True),
    SamplingParams(max_tokens=14, temperature=0.8, seed=3),
]


@dataclass
class Replaced:
    """A drafter whose process is lost before every so many calls, and another one started."""

    make: Callable[[], LocalDrafter]
    every: int
    num_calls: int = 0

    def __post_init__(self) -> None:
        self.drafter = self.make()

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.num_calls += 1
        if self.num_calls % self.every == 0:
            self.drafter.close()
            self.drafter = self.make()
        return await self.drafter.draft(requests)

    async def release(self, request_id: str) -> None:
        await self.drafter.release(request_id)


@pytest.fixture(scope="module")
def config(
    target_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> EngineConfig:
    path = tmp_path_factory.mktemp("drafter")
    save_dflash(path)
    section = {"kind": "dflash_remote", "path": path, "device": "cpu"}
    target = {"path": target_path("qwen2"), "device": "cpu", "max_sequences": 2}
    chunks = {"prefill_chunk_tokens": 24}
    return parse_config({"target": target, "drafter": section, "coordinator": chunks})


@pytest.fixture(scope="module")
def target(config: EngineConfig) -> Iterator[CausalTarget]:
    target = CausalTarget.load(config.target)
    yield target
    target.close()


@contextlib.asynccontextmanager
async def remote_engine(
    config: EngineConfig, target: CausalTarget, every: int
) -> AsyncIterator[tuple[Engine, RemoteDrafter]]:
    """Run an engine over a server of the target and one of a drafter that is lost now and then."""
    security = Security(new_token())
    where = Target(target.info, None, config.target.path)
    section = config.drafter
    assert section is not None
    drafter = Replaced(lambda: load_drafter(section, SearchConfig(), where), every)
    async with (
        serving(VerifierServicer(target), security=security) as verifiers,
        serving(DrafterServicer(drafter, target.info), security=security) as drafters,
    ):
        remote = await drafters.connect(RemoteDrafter)
        verifier = await verifiers.connect(RemoteVerifier)
        engine = Engine(config, verifier, remote, load_tokenizer(config.target.path))
        yield engine, remote
        await engine.stop()
    drafter.drafter.close()


async def answers(
    engine: Engine, sampling: SamplingParams, speculation: SpeculationParams
) -> list[Completion]:
    return [await engine.complete(prompt, sampling, speculation) for prompt in PROMPTS]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled"])
async def test_a_drafter_that_is_sent_hidden_states_changes_nothing(
    config: EngineConfig, target: CausalTarget, sampling: SamplingParams
) -> None:
    alone = Engine(config, target, None, load_tokenizer(config.target.path))
    plain = await answers(alone, sampling, SpeculationParams(policy="off"))
    await alone.stop()
    async with remote_engine(config, target, every=1000) as (engine, remote):
        found = await answers(engine, sampling, DRAFTED)
        num_bytes = remote.num_bytes_sent
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    for one in found:  # all but the first steps and the last
        assert sum(bool(step.num_tree_nodes) for step in one.steps) >= len(one.steps) - 3
    tokenizer = load_tokenizer(config.target.path)
    num_tokens = sum(len(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS[1:])
    assert num_bytes > STATE_BYTES * num_tokens, "the first prompt is the beginning of the second"


async def test_a_drafter_that_is_lost_gets_its_states_by_another_prefill(
    config: EngineConfig, target: CausalTarget
) -> None:
    sampling = SAMPLINGS[0]
    alone = Engine(config, target, None, load_tokenizer(config.target.path))
    plain = await answers(alone, sampling, SpeculationParams(policy="off"))
    await alone.stop()
    async with remote_engine(config, target, every=4) as (engine, _):
        found = await answers(engine, sampling, DRAFTED)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    for one in found:
        drafted = [bool(step.num_tree_nodes) for step in one.steps[1:-1]]
        assert 0 < sum(drafted) < len(drafted), "it drafts again after each loss"
