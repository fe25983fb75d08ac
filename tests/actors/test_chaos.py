"""Answers do not change while processes and nodes are killed, stopped and slowed down.

Requests, greedy and sampled, overlapped and not, from several users at once, to a pipeline of two
ranks, while faults are injected. Every answer must have the tokens of plain decoding in one
process; none may be lost or stuck. `make chaos` asks 200, half of them to a pipeline of one rank.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from ray.util import placement_group_table

from actors.pipeline import Pipeline
from actors.settings import PipelineConfig
from benchmarks.recoveries import Tokens, table
from diffuspec.bench.questions import load_questions
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import QUESTIONS, TARGET
from tests.actors.chaos import LABEL, MAX_RECOVERY_SECONDS, Chaos, Nodes, gone
from tests.actors.conftest import idle_status, tiny_pipeline

NUM_USERS = 4
MANY_REQUESTS = 20
MAX_TOKENS = 48
SEED = 20  # of what is asked
PLAIN = SpeculationParams(policy="off")
SEQUENTIAL = SpeculationParams(num_outcomes=0)
OVERLAPPED = SpeculationParams(num_outcomes="auto")
DEADLINES = {"draft_seconds": 2, "verify_seconds": 3, "health_seconds": 0.5, "start_seconds": 120}
PLACEMENT = {
    "coordinator": {"num_cpus": 0.5, "node": {"labels": {LABEL: "!in(drafter,verifier)"}}},
    "drafter": {"num_cpus": 0.5, "node": {"labels": {LABEL: "drafter"}}},
    "path_scorer": {"num_cpus": 0.5},
}

pytestmark = [pytest.mark.process, pytest.mark.timeout(1200)]


@dataclass(frozen=True)
class Question:
    """One request, and what plain decoding answers."""

    prompt: Prompt
    sampling: SamplingParams
    speculation: SpeculationParams
    answer: tuple[int, ...]


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
    yield [
        Question(prompt, sampling, rng.choice([SEQUENTIAL, OVERLAPPED]), next(answers[sampling]))
        for prompt, sampling in drawn
    ]


def _sampling(number: int) -> SamplingParams:
    if number % 2:
        return SamplingParams(max_tokens=MAX_TOKENS)
    return SamplingParams(max_tokens=MAX_TOKENS, temperature=0.8, top_p=0.95, seed=number % 6)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Few requests go to two ranks alone: other tests lose a single one."""
    is_long = metafunc.config.getoption("--chaos-requests") >= MANY_REQUESTS
    if "num_ranks" in metafunc.fixturenames:
        metafunc.parametrize("num_ranks", [1, 2] if is_long else [2], ids="{} ranks".format)


async def test_no_answer_changes_while_processes_and_nodes_are_killed_stopped_and_slowed_down(
    questions, num_ranks, cluster, report, pytestconfig
):
    asked, tokens = questions[num_ranks - 1 :: 2], Tokens()
    async with Nodes(cluster) as nodes, Pipeline(_config(num_ranks)) as pipeline:
        rng = random.Random(pytestconfig.getoption("--chaos-seed") + num_ranks)
        chaos = Chaos(pipeline, nodes, tokens, rng, num_ranks)
        async with chaos.at_work():
            wrong = await _ask_all(pipeline, asked, tokens)
        status = await idle_status(pipeline)
    await gone(chaos.pids)
    assert {group["state"] for group in placement_group_table().values()} == {"REMOVED"}
    assert not wrong
    assert status.num_waiting == 0
    assert chaos.recoveries, "the questions were over before anything went wrong"
    assert max(map(tokens.longest_wait, chaos.recoveries)) < MAX_RECOVERY_SECONDS
    title = f"{len(asked)} answers, all as plain decoding has them; {num_ranks} verifier ranks"
    report(f"{title}\n{table(chaos.recoveries, tokens)}")


def _config(num_ranks: int) -> PipelineConfig:
    verifier = {
        "num_cpus": 0.5,
        "tensor_parallel": num_ranks,
        "node": {"labels": {LABEL: "verifier"}},
    }
    engine = {"coordinator": {"overlap": True}, "speculation": {"policy": "cost_aware"}}
    return tiny_pipeline(engine, placement={**PLACEMENT, "verifier": verifier}, deadlines=DEADLINES)


async def _ask_all(pipeline: Pipeline, questions: Sequence[Question], tokens: Tokens) -> list[str]:
    """Several users ask one question after the other; return what went wrong."""
    numbered = iter(enumerate(questions))
    wrong: list[str] = []

    async def user() -> None:
        for number, question in numbered:
            token_ids: list[int] = []
            times = tokens.asked()
            async for increment in pipeline.stream(
                question.prompt, question.sampling, question.speculation, f"chaos-{number}"
            ):
                token_ids += increment.token_ids
                tokens.came(times, len(increment.token_ids))
            if tuple(token_ids) != question.answer:
                wrong.append(f"{number}: {token_ids} instead of {question.answer}")

    async with asyncio.TaskGroup() as users:
        for _ in range(NUM_USERS):
            users.create_task(user())
    return wrong
