"""Answers do not change while the processes that make them are killed, stopped and delayed.

Requests, greedy and sampled, from several users at once; meanwhile a seeded agent of chaos kills or
stops a process of a random role every few hundred tokens. Every answer must be the one of plain
decoding in one process, token for token; none may be lost or stuck. `make chaos` asks 200.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from ray.cluster_utils import Cluster

from actors.pipeline import Pipeline, RoleReport
from actors.settings import PipelineConfig
from diffuspec.bench.questions import load_questions
from diffuspec.engine import Engine, Prompt
from diffuspec.tiny import QUESTIONS, TARGET
from diffuspec.types import SamplingParams, SpeculationParams
from tests.actors.conftest import tiny_pipeline

NUM_USERS = 4
MAX_TOKENS = 32
TOKENS_BETWEEN_FAULTS = (300, 700)  # answered in peace, once the last fault has healed
MAX_STOP_SECONDS = 1.5  # of a process that goes on afterwards
MAX_RECOVERY_SECONDS = 90.0  # until the next token after a fault, on a machine at work
SEED = 20
PLAIN = SpeculationParams(policy="off")
DEADLINES = {"draft_seconds": 2, "verify_seconds": 3, "health_seconds": 0.5}

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(540)]


@dataclass(frozen=True)
class Question:
    """One request, and what plain decoding answers."""

    prompt: Prompt
    sampling: SamplingParams
    answer: tuple[int, ...]


@dataclass
class Watch:
    """When tokens came, to tell how long a fault was felt."""

    last_token_at: float = field(default_factory=time.monotonic)
    num_tokens: int = 0
    gaps: list[float] = field(default_factory=list)

    def tick(self, num_tokens: int) -> None:
        now = time.monotonic()
        self.num_tokens += num_tokens
        self.gaps.append(now - self.last_token_at)
        self.last_token_at = now


@pytest.fixture(scope="module")
def questions(request: pytest.FixtureRequest) -> Iterator[list[Question]]:
    """Held-out questions with their plain answers, decoded together in this process."""
    loaded = [one for one in load_questions(QUESTIONS) if one.category != "code"]
    prompts: list[Prompt] = [[{"role": "user", "content": one.turns[0]}] for one in loaded]
    rng = random.Random(SEED)
    num_requests = request.config.getoption("--chaos-requests")
    drawn = [(rng.choice(prompts), _sampling(number)) for number in range(num_requests)]
    config = tiny_pipeline({"target": {"path": TARGET, "device": "cpu", "max_sequences": 8}}).engine
    with Engine.from_config(config.model_copy(update={"drafter": None})) as engine:
        answers: dict[SamplingParams, Iterator[tuple[int, ...]]] = {}
        for sampling in dict.fromkeys(sampling for _, sampling in drawn):
            asked = [prompt for prompt, other in drawn if other == sampling]
            completions = engine.generate(asked, sampling, PLAIN)
            answers[sampling] = iter([one.token_ids for one in completions])
    yield [Question(prompt, sampling, next(answers[sampling])) for prompt, sampling in drawn]


def _sampling(number: int) -> SamplingParams:
    if number % 2:
        return SamplingParams(max_tokens=MAX_TOKENS)
    return SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=number % 6)


@pytest.mark.parametrize("overlap", [True, False], ids=["overlapped", "sequential"])
async def test_no_answer_changes_while_processes_die_and_stop(
    questions: list[Question], overlap: bool, cluster: Cluster
) -> None:
    config = _config(overlap)
    num_asked = len(questions) if overlap else len(questions) // 2
    watch = Watch()
    faults: list[str] = []
    async with Pipeline(config) as pipeline:
        async with _chaos(pipeline, watch, random.Random(SEED), faults):
            wrong = await _ask_all(pipeline, questions[:num_asked], watch)
        status = await pipeline.status()
    assert not wrong
    assert status.num_running == status.num_waiting == 0
    assert faults, "the questions were over before anything went wrong"
    assert max(watch.gaps) < MAX_RECOVERY_SECONDS
    print(f"\n{num_asked} answers, {len(faults)} faults: {', '.join(faults)}")
    print(
        "longest waits for a token:", [f"{gap:.1f} s" for gap in sorted(watch.gaps)[-len(faults) :]]
    )


def _config(overlap: bool) -> PipelineConfig:
    return tiny_pipeline(
        {"coordinator": {"overlap": overlap}, "speculation": {"policy": "cost_aware"}},
        deadlines=DEADLINES,
    )


async def _ask_all(pipeline: Pipeline, questions: Sequence[Question], watch: Watch) -> list[str]:
    """Several users ask one question after the other; return what went wrong."""
    numbered = iter(enumerate(questions))
    wrong: list[str] = []

    async def user() -> None:
        for number, question in numbered:
            token_ids: list[int] = []
            async for increment in pipeline.stream(
                question.prompt, question.sampling, request_id=f"chaos-{number}"
            ):
                token_ids += increment.token_ids
                watch.tick(len(increment.token_ids))
            if tuple(token_ids) != question.answer:
                wrong.append(f"{number}: {token_ids} instead of {question.answer}")

    async with asyncio.TaskGroup() as users:
        for _ in range(NUM_USERS):
            users.create_task(user())
    return wrong


@contextlib.asynccontextmanager
async def _chaos(
    pipeline: Pipeline, watch: Watch, rng: random.Random, faults: list[str]
) -> AsyncGenerator[None]:
    """Let things go wrong as long as the block runs."""
    agent = asyncio.create_task(_break_things(pipeline, watch, rng, faults))
    try:
        yield
    finally:
        agent.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await agent


async def _break_things(
    pipeline: Pipeline, watch: Watch, rng: random.Random, faults: list[str]
) -> None:
    actions = itertools.cycle(rng.sample(["kill", "stop", "pause"], 3))
    for action in actions:
        await _answered(watch, rng.randint(*TOKENS_BETWEEN_FAULTS))
        victim = rng.choice(await _victims(pipeline))
        assert victim.place is not None
        faults.append(f"{action} {victim.name}")
        await _harm(victim.place.pid, action, rng)


async def _victims(pipeline: Pipeline) -> list[RoleReport]:
    """Every process but the coordinator's, which users' connections end with."""
    reports = await pipeline.describe()
    return [one for one in reports if one.place is not None and one.name != "coordinator"]


async def _harm(pid: int, action: str, rng: random.Random) -> None:
    """Kill a process; stop it for good; or stop it for a moment."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        if action == "pause":
            await asyncio.sleep(rng.uniform(0.1, MAX_STOP_SECONDS))
            os.kill(pid, signal.SIGCONT)


async def _answered(watch: Watch, num_tokens: int) -> None:
    """Wait until so many tokens more have come."""
    enough = watch.num_tokens + num_tokens
    while watch.num_tokens < enough:
        await asyncio.sleep(0.05)
