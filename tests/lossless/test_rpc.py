"""The embedded pair with every role behind gRPC: the tokens are those of plain decoding."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace

import pytest

from diffuspec.algorithm.search import PathSearch
from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.core.config import EngineConfig
from diffuspec.core.drafter_config import DiffuSpecConfig
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput
from diffuspec.drafters.diffuspec import DiffuSpecDrafter
from diffuspec.drafters.path_search import make_path_search
from diffuspec.engine.completion import Completion
from diffuspec.engine.engine import Engine
from diffuspec.models.diffusion import DiffusionDrafter
from diffuspec.models.target import CausalTarget
from diffuspec.pairs.tiny import DRAFTER, QUESTIONS, TARGET, tiny_config
from diffuspec.rpc.client.roles import RemoteDrafter, RemotePathScorer, RemoteVerifier
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.server.servicers import DrafterServicer, PathScorerServicer, VerifierServicer
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.serving import serving

PLAIN = SpeculationParams(policy="off")
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=12)  # whatever it costs
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=32, logprobs=1),
    "sampled": SamplingParams(temperature=0.8, top_p=0.9, seed=2, max_tokens=32),
    "structured": SamplingParams(
        temperature=0.8,
        seed=2,
        max_tokens=32,
        structured_output=StructuredOutput(
            regex="The [a-z]+ of the [a-z]+ is [a-z ]{5,20}, I think"
        ),
    ),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Roles:
    """The roles of the embedded pair, in this process."""

    config: EngineConfig
    target: CausalTarget
    model: DiffusionDrafter
    search: PathSearch
    plainly: dict[SamplingParams, list[Completion]] = field(default_factory=dict)  # answered so far


@pytest.fixture
def security() -> Security:
    return Security(new_token())


@pytest.fixture(scope="module")
def roles() -> Iterator[Roles]:
    config = tiny_config(
        target={"path": TARGET, "device": "cpu"}, drafter={"path": DRAFTER, "device": "cpu"}
    )
    assert isinstance(config.drafter, DiffuSpecConfig)
    target = CausalTarget.load(config.target)
    model = DiffusionDrafter.load(config.drafter, target.info)
    yield Roles(config, target, model, make_path_search(config.search, target.info, TARGET))
    target.close()
    model.close()


@contextlib.asynccontextmanager
async def remote_engine(
    roles: Roles, security: Security, limits: RpcLimits
) -> AsyncIterator[Engine]:
    """Run an engine over three servers: path scorer, drafter and verifier."""
    async with contextlib.AsyncExitStack() as stack:
        scorers = await stack.enter_async_context(
            serving(
                PathScorerServicer(roles.search, roles.target.info),
                security=security,
                limits=limits,
            )
        )
        drafter = DiffuSpecDrafter(roles.model, await scorers.connect(RemotePathScorer))
        drafters = await stack.enter_async_context(
            serving(DrafterServicer(drafter, roles.target.info), security=security, limits=limits)
        )
        verifiers = await stack.enter_async_context(
            serving(VerifierServicer(roles.target), security=security, limits=limits)
        )
        verifier = await verifiers.connect(RemoteVerifier, limits=DEFAULT_LIMITS)
        remote_drafter = await drafters.connect(RemoteDrafter, limits=DEFAULT_LIMITS)
        tokenizer = load_tokenizer(roles.config.target.path)
        engine = Engine(roles.config, verifier, remote_drafter, tokenizer)
        yield engine
        await engine.stop()
        engine.close()


def prompts() -> list[list[dict[str, str]]]:
    questions = first_per_family(load_questions(QUESTIONS), 1)
    return [[{"role": "user", "content": question.turns[0]}] for question in questions]


async def answer_all(
    engine: Engine, sampling: SamplingParams, speculation: SpeculationParams
) -> list[Completion]:
    answers = (engine.complete(prompt, sampling, speculation) for prompt in prompts())
    return await asyncio.gather(*answers)


async def plain_answers(roles: Roles, sampling: SamplingParams) -> list[Completion]:
    """Return the answers of plain decoding in this process."""
    if sampling not in roles.plainly:
        engine = Engine(roles.config, roles.target, None, load_tokenizer(TARGET))
        roles.plainly[sampling] = await answer_all(engine, sampling, PLAIN)
        await engine.stop()
        engine.close()
    return roles.plainly[sampling]


@pytest.mark.parametrize(
    ("name", "speculation", "limits"),
    [
        ("greedy", DRAFTED, DEFAULT_LIMITS),
        ("sampled", replace(DRAFTED, tree_shape="beams"), RpcLimits(max_prefixes=2)),
        ("structured", DRAFTED, RpcLimits(max_prefixes=2)),
        ("sampled", PLAIN, DEFAULT_LIMITS),
    ],
    ids=["greedy", "forgetful workers", "structured", "without drafts"],
)
async def test_remote_roles_change_nothing(name, speculation, limits, roles, security):
    plain = await plain_answers(roles, SAMPLINGS[name])
    async with remote_engine(roles, security, limits) as engine:
        answers = await answer_all(engine, SAMPLINGS[name], speculation)
    for found, expected in zip(answers, plain, strict=True):
        assert (found.token_ids, found.text) == (expected.token_ids, expected.text)
        assert found.finish_reason == expected.finish_reason
        assert found.stats.num_fallbacks == 0
    steps = [step for answer in answers for step in answer.steps]
    assert all(step.verify_seconds > 0 for step in steps)
    if speculation is not PLAIN:
        assert sum(step.num_committed_tokens for step in steps) > 1.4 * len(steps)
        assert all(step.draft_seconds > 0 for step in steps if step.num_draft_tokens)
