"""A target and its diffusion drafter, end to end: the answers are those of plain decoding."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.config import EngineConfig, parse_config
from diffuspec.engine import Completion, Engine, Prompt
from diffuspec.tiny import DRAFTER, QUESTIONS, TARGET, tiny_config
from diffuspec.types import DraftLengthPolicy, SamplingParams, SpeculationParams, TreeShape

PLAIN = SpeculationParams(policy="off")
POLICIES: tuple[DraftLengthPolicy, ...] = ("cost_aware", "paper", "fixed")
SHAPES: tuple[TreeShape, ...] = ("best_first", "beams", "path")
SPECULATIONS = [
    SpeculationParams(policy=policy, tree_shape=shape, num_draft_tokens=11, drafter_weight=weight)
    for (policy, shape), weight in zip(
        itertools.product(POLICIES, SHAPES), itertools.cycle([0.5, "adaptive"]), strict=False
    )
]
SAMPLINGS = {
    "greedy": {},
    "cool": {"temperature": 0.3, "seed": 1},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "seed": 2},
    "hot, top-k, penalised": {
        "temperature": 1.5,
        "top_k": 30,
        "seed": 3,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
    },
}
NUM_QUESTIONS_PER_FAMILY = 4

pytestmark = pytest.mark.timeout(600)  # some 6,000 tokens of the tiny pair, on a machine at work


@dataclass(frozen=True)
class Pair:
    engine: Engine
    prompts: list[Prompt]
    max_tokens: int
    min_acceptance_length: float  # of greedy answers


@pytest.fixture(scope="module", params=["random", "tiny"])
def pair(
    request: pytest.FixtureRequest, target_path: Callable[[str], Path], drafter_path: Path
) -> Iterator[Pair]:
    config, prompts = (
        _random_pair(target_path("qwen2"), drafter_path)
        if request.param == "random"
        else _tiny_pair()
    )
    is_random = request.param == "random"
    with Engine.from_config(config) as engine:
        yield Pair(engine, prompts, 16 if is_random else 64, 1.0 if is_random else 2.0)


def _random_pair(target: Path, drafter: Path) -> tuple[EngineConfig, list[Prompt]]:
    config = parse_config(
        {
            "target": {"path": target, "device": "cpu", "max_sequences": 4},
            "drafter": {"path": drafter, "device": "cpu"},
            "coordinator": {"prefill_chunk_tokens": 24},
        }
    )
    return config, [f"{'ab ' * number}and so on" for number in range(18)]


def _tiny_pair() -> tuple[EngineConfig, list[Prompt]]:
    config = tiny_config(
        target={"path": TARGET, "device": "cpu"}, drafter={"path": DRAFTER, "device": "cpu"}
    )
    questions = first_per_family(load_questions(QUESTIONS), NUM_QUESTIONS_PER_FAMILY)
    return config, [[{"role": "user", "content": question.turns[0]}] for question in questions]


def answer_all(
    pair: Pair, sampling: SamplingParams, speculations: Sequence[SpeculationParams]
) -> list[Completion]:
    """Answer every prompt, each with the next of the speculations, all together."""
    engine = pair.engine

    async def run() -> list[Completion]:
        jobs = zip(pair.prompts, itertools.cycle(speculations), strict=False)
        return await asyncio.gather(*(engine.complete(p, sampling, s) for p, s in jobs))

    return asyncio.run(run())


@pytest.mark.parametrize("name", SAMPLINGS)
def test_drafting_changes_the_speed_and_nothing_else(pair, name):
    sampling = SamplingParams(max_tokens=pair.max_tokens, logprobs=1, **SAMPLINGS[name])
    plain = answer_all(pair, sampling, [PLAIN])
    drafted = answer_all(pair, sampling, SPECULATIONS)
    for expected, found in zip(plain, drafted, strict=True):
        assert found.token_ids == expected.token_ids
        assert (found.text, found.finish_reason) == (expected.text, expected.finish_reason)
        assert found.stats.num_output_tokens == len(found.token_ids)
        assert found.stats.num_fallbacks == 0
        own = [one.logprob for one in expected.logprobs or ()]
        assert [one.logprob for one in found.logprobs or ()] == pytest.approx(own, abs=1e-3)
    if name == "greedy":
        num_tokens = sum(len(answer.token_ids) for answer in drafted)
        num_steps = sum(answer.stats.num_steps for answer in drafted)
        assert num_tokens / num_steps >= pair.min_acceptance_length


def test_a_stop_string_cuts_where_plain_decoding_cuts(pair):
    whole = answer_all(pair, SamplingParams(max_tokens=pair.max_tokens), [PLAIN])
    text = next(answer.text for answer in whole if len(answer.text) > 12)
    stops = tuple({text[6:8], text[9:12]})
    sampling = SamplingParams(max_tokens=pair.max_tokens, stop=stops)
    plain = answer_all(pair, sampling, [PLAIN])
    drafted = answer_all(pair, sampling, SPECULATIONS)
    for expected, found in zip(plain, drafted, strict=True):
        assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
        assert found.finish_reason == expected.finish_reason
        assert not any(stop in found.text for stop in stops)
