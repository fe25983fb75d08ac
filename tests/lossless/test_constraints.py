"""What constrains an answer holds with drafts and without, on the embedded pair."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jsonschema
import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SamplingParams, SpeculationParams, StructuredOutput, TreeShape
from diffuspec.core.types import Prompt
from diffuspec.engine.completion import Completion
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import DRAFTER, TARGET, tiny_config
from tests.support.lossless import PLAIN

CHAT: Prompt = [{"role": "user", "content": "What is the capital of France?"}]
STORY: Prompt = [{"role": "user", "content": "Tell me a short story about an owl named Rex."}]
DRAFTED = SpeculationParams(policy="fixed", num_draft_tokens=12)  # whatever it costs
Answers: TypeAlias = Callable[..., list[Completion]]
DRAWS: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 5}]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    config = tiny_config(
        target={"path": TARGET, "device": "cpu"}, drafter={"path": DRAFTER, "device": "cpu"}
    )
    with Engine.from_config(config) as engine:
        yield engine


@pytest.fixture(scope="module")
def answers_both_ways(engine: Engine) -> Answers:
    """Return the answers to both prompts, drafted; they must be those of plain decoding."""

    @functools.cache
    def answers(sampling: SamplingParams) -> list[Completion]:
        plain = engine.generate([CHAT, STORY], sampling, PLAIN)
        drafted = engine.generate([CHAT, STORY], sampling, DRAFTED)
        for one, other in zip(plain, drafted, strict=True):
            assert (one.token_ids, one.text) == (other.token_ids, other.text)
            assert one.finish_reason == other.finish_reason
            assert one.stop_reason == other.stop_reason
        return drafted

    return lambda **params: answers(SamplingParams(**{"max_tokens": 40, **params}))


def num_steps(answers: list[Completion]) -> int:
    return sum(len(answer.steps) for answer in answers)


@pytest.mark.parametrize("how", DRAWS, ids=["greedy", "sampled"])
def test_bad_words_do_not_appear(answers_both_ways: Answers, how: dict[str, Any]) -> None:
    free = answers_both_ways(**how)
    words = [word for answer in free for word in answer.text.split()[:6] if word.isalpha()]
    answers = answers_both_ways(bad_words=words, **how)
    found = {word.strip(".,!?") for answer in answers for word in answer.text.split()}
    assert words and found.isdisjoint(words)


@pytest.mark.parametrize("how", DRAWS, ids=["greedy", "sampled"])
def test_no_answer_ends_before_min_tokens(answers_both_ways: Answers, how: dict[str, Any]) -> None:
    [short, _] = answers_both_ways(**how)
    answers = answers_both_ways(min_tokens=30, stop=["a", "e"], **how)
    assert len(short.token_ids) < 30
    assert all(len(answer.token_ids) > 30 for answer in answers)


def test_a_drafter_knows_of_the_bias(answers_both_ways: Answers) -> None:
    """A drafter that did not would propose only tokens that are banned."""
    free = answers_both_ways()
    banned = {token_id for answer in free for token_id in answer.token_ids}
    bias = dict.fromkeys(banned, -100.0)
    biased = answers_both_ways(logit_bias=bias, max_tokens=20)
    assert banned.isdisjoint(token_id for answer in biased for token_id in answer.token_ids)
    assert sum(len(answer.token_ids) for answer in biased) > num_steps(biased)


@pytest.mark.parametrize("how", DRAWS, ids=["greedy", "sampled"])
def test_an_answer_has_allowed_tokens_only(answers_both_ways: Answers, how: dict[str, Any]) -> None:
    said = {token_id for answer in answers_both_ways() for token_id in answer.token_ids}
    allowed = tuple(sorted(said)[::2])
    answers = answers_both_ways(allowed_token_ids=allowed, max_tokens=20, **how)
    assert all(set(answer.token_ids) <= set(allowed) for answer in answers)
    assert sum(len(answer.token_ids) for answer in answers) > num_steps(answers)


def test_allowed_tokens_hold_within_a_form_as_far_as_it_has_them(
    answers_both_ways: Answers, engine: Engine
) -> None:
    form = {"structured_output": {"regex": "[a-z]{4}"}}
    allowed = engine.encode("nest").tolist()
    for answer in answers_both_ways(allowed_token_ids=allowed, **form):
        assert re.fullmatch("[a-z]{4}", answer.text) and answer.finish_reason == "stop"


@pytest.mark.parametrize("includes", [False, True])
def test_the_text_that_ends_an_answer_is_told_and_kept_or_cut(
    answers_both_ways: Answers, includes: bool
) -> None:
    free, _ = answers_both_ways()
    stop = free.text[4:9]
    answer, _ = answers_both_ways(stop=[stop], include_stop_str_in_output=includes)
    assert answer.stop_reason == stop and free.stop_reason is None
    assert answer.text == free.text[: 9 if includes else 4]
    token_id = free.token_ids[3]
    answer, _ = answers_both_ways(stop_token_ids=[token_id], include_stop_str_in_output=includes)
    assert (answer.stop_reason, answer.token_ids[-1]) == (token_id, token_id)
    assert free.text.startswith(answer.text) and len(answer.text) > 0


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


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"},
        "country": {"enum": ["France", "Spain"]},
        "is_capital": {"type": "boolean"},
    },
    "required": ["city", "country", "is_capital"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
FORMS: list[dict[str, Any]] = [
    {"json_schema": json.dumps(CITY)},
    {"choice": ["Paris is it.", "The capital is Paris.", "Madrid"]},
    {"regex": r"The [a-z]{2,9} of [A-Z][a-z]{2,7} is [A-Z][a-z]{2,7}\."},
    {"grammar": 'start: "yes" ("," /[a-z]{2,5}/){1,3} "."'},
]


def has_form(text: str, form: dict[str, Any]) -> bool:
    if "json_schema" in form:
        jsonschema.validate(json.loads(text), json.loads(form["json_schema"]))
        return True
    pattern = form.get("regex", r"yes(,[a-z]{2,5}){1,3}\.")
    return text in form["choice"] if "choice" in form else bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("how", DRAWS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: next(iter(form)))
def test_answers_have_their_form(
    answers_both_ways: Answers, form: dict[str, Any], how: dict[str, Any]
) -> None:
    answers = answers_both_ways(structured_output=form, max_tokens=80, **how)
    for answer in answers:
        assert answer.finish_reason == "stop" and has_form(answer.text, form)
    assert sum(len(answer.token_ids) for answer in answers) > 1.2 * num_steps(answers)


@pytest.mark.parametrize("shape", ["path", "beams"])
def test_a_draft_of_any_shape_is_kept_to_the_form(engine: Engine, shape: TreeShape) -> None:
    sampling = SamplingParams(structured_output=StructuredOutput(**FORMS[0]), max_tokens=80)
    [plain] = engine.generate([CHAT], sampling, PLAIN)
    [drafted] = engine.generate([CHAT], sampling, SpeculationParams(tree_shape=shape))
    assert drafted.token_ids == plain.token_ids


def test_an_answer_that_is_cut_is_the_beginning_of_one(answers_both_ways: Answers) -> None:
    form = {"structured_output": FORMS[0]}
    [whole, _] = answers_both_ways(max_tokens=80, **form)
    [cut, _] = answers_both_ways(max_tokens=9, **form)
    assert cut.finish_reason == "length" and cut.token_ids == whole.token_ids[:9]


async def test_constrained_and_free_requests_share_a_batch(engine: Engine) -> None:
    """Each answer is the one that its request gets alone, without drafts."""
    samplings = [
        SamplingParams(max_tokens=30, structured_output=None if form is None else form)
        for form in (None, StructuredOutput(**FORMS[0]), None, StructuredOutput(**FORMS[2]))
    ]
    alone = [await engine.complete(CHAT, sampling, PLAIN) for sampling in samplings]
    together = await asyncio.gather(*(engine.complete(CHAT, one) for one in samplings))
    await engine.stop()
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]


async def test_a_structured_answer_goes_on_after_committed_tokens(engine: Engine) -> None:
    sampling = SamplingParams(max_tokens=80, structured_output=StructuredOutput(**FORMS[0]))
    whole = await engine.complete(CHAT, sampling)
    rest = [
        token_id
        async for output in engine.stream(CHAT, sampling, committed_token_ids=whole.token_ids[:7])
        for token_id in output.token_ids
    ]
    await engine.stop()
    assert rest == list(whole.token_ids[7:])


def test_a_form_that_cannot_be_is_refused_before_any_work(engine: Engine) -> None:
    sampling = SamplingParams(structured_output=StructuredOutput(regex="("))
    with pytest.raises(InvalidRequestError, match=r"structured_output cannot be used.*unclosed"):
        engine.generate([CHAT], sampling)
