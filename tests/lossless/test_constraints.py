"""What constrains an answer holds with drafts and without, on the embedded pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.engine import Completion, Engine
from diffuspec.pairs.tiny import DRAFTER, TARGET, tiny_config
from tests.support.lossless import PLAIN

CHAT: Prompt = [{"role": "user", "content": "What is the capital of France?"}]
STORY: Prompt = [{"role": "user", "content": "Tell me a short story about an owl named Rex."}]
DRAWS: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 5}]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = tiny_config(
        target={"path": TARGET, "device": "cpu"}, drafter={"path": DRAFTER, "device": "cpu"}
    )
    with Engine.from_config(config) as engine:
        yield engine


def answers_both_ways(engine: Engine, **params: Any) -> list[Completion]:
    """Return the answers to both prompts, drafted; they must be those of plain decoding."""
    sampling = SamplingParams(**{"max_tokens": 40, **params})
    plain = engine.generate([CHAT, STORY], sampling, PLAIN)
    drafted = engine.generate([CHAT, STORY], sampling, SpeculationParams())
    for one, other in zip(plain, drafted, strict=True):
        assert (one.token_ids, one.text) == (other.token_ids, other.text)
        assert one.finish_reason == other.finish_reason
    return drafted


def num_steps(answers: list[Completion]) -> int:
    return sum(len(answer.steps) for answer in answers)


@pytest.mark.parametrize("how", DRAWS, ids=["greedy", "sampled"])
def test_bad_words_do_not_appear(engine: Engine, how: dict[str, Any]) -> None:
    free = answers_both_ways(engine, **how)
    words = [word for answer in free for word in answer.text.split()[:6] if word.isalpha()]
    answers = answers_both_ways(engine, bad_words=words, **how)
    found = {word.strip(".,!?") for answer in answers for word in answer.text.split()}
    assert words and found.isdisjoint(words)


@pytest.mark.parametrize("how", DRAWS, ids=["greedy", "sampled"])
def test_no_answer_ends_before_min_tokens(engine: Engine, how: dict[str, Any]) -> None:
    [short, _] = answers_both_ways(engine, **how)
    answers = answers_both_ways(engine, min_tokens=30, stop=["a", "e"], **how)
    assert len(short.token_ids) < 30
    assert all(len(answer.token_ids) > 30 for answer in answers)


def test_a_drafter_knows_of_the_bias(engine: Engine) -> None:
    """A drafter that did not would propose only tokens that are banned."""
    free = answers_both_ways(engine)
    banned = {token_id for answer in free for token_id in answer.token_ids}
    bias = dict.fromkeys(banned, -100.0)
    biased = answers_both_ways(engine, logit_bias=bias, max_tokens=20)
    assert banned.isdisjoint(token_id for answer in biased for token_id in answer.token_ids)
    assert sum(len(answer.token_ids) for answer in biased) > num_steps(biased)


def test_several_answers_to_a_prompt_are_those_of_consecutive_seeds(engine: Engine) -> None:
    sampling = SamplingParams(temperature=1.0, seed=11, max_tokens=12)
    choices = engine.generate([CHAT, STORY], sampling, n=2)
    alone = [
        engine.generate([prompt], sampling.choice(index))[0]
        for prompt in (CHAT, STORY)
        for index in range(2)
    ]
    assert [one.token_ids for one in choices] == [one.token_ids for one in alone]
    assert [one.seed for one in choices] == [11, 12, 11, 12]
