"""Token ids over HTTP are those of plain decoding in the library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias

import pytest
from openai import OpenAI

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.engine.completion import Completion
from diffuspec.engine.engine import Engine
from diffuspec.pairs.tiny import QUESTIONS
from tests.support.engines import short_tiny_config
from tests.support.service import MODEL

NUM_TOKENS = 32
OFF = SpeculationParams(policy="off")
Plain: TypeAlias = Callable[[int, SamplingParams], Completion]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "nucleus": {"temperature": 0.8, "top_p": 0.9, "seed": 2},
    "shaped": {
        "temperature": 1.3,
        "seed": 3,
        "frequency_penalty": 0.2,
        "logit_bias": {"5": -100, "300": 2},
    },
}
MORE: dict[str, Any] = {
    "speculation": {"policy": "paper", "tree_shape": "path"},
    "top_k": 40,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "bad_words": ["the"],
    "allowed_token_ids": [*range(1000)],
}


pytestmark = [pytest.mark.slow, pytest.mark.no_cover]


@pytest.fixture(scope="module")
def plain() -> Iterator[Plain]:
    """Answer a question in the library, once with the same parameters."""
    with Engine.from_config(short_tiny_config(drafter=None)) as engine:
        yield cache(lambda number, params: engine.generate([question(number)], params, OFF)[0])


def question(number: int) -> Any:
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return [{"role": "user", "content": json.loads(lines[number])["turns"][0]}]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("more", [{}, MORE], ids=["", "more"])
@pytest.mark.parametrize(("number", "sampling"), [(0, "greedy"), (40, "nucleus"), (90, "shaped")])
def test_answers_over_http_have_the_tokens_of_plain_decoding(
    client: OpenAI, plain: Plain, number: int, sampling: str, more: dict[str, Any], is_streamed
):
    given = SAMPLINGS[sampling]
    library = given | {key: value for key, value in more.items() if key != "speculation"}
    expected = plain(number, SamplingParams(max_tokens=NUM_TOKENS, **library))
    asked = client.chat.completions.create(
        model=MODEL,
        messages=question(number),
        max_tokens=NUM_TOKENS,
        stream=is_streamed,
        extra_body={"return_token_ids": True, **more},
        **given,
    )
    choices = [one.choices[0] for one in asked] if is_streamed else [asked.choices[0]]
    token_ids = [i for one in choices for i in getattr(one, "token_ids", ())]
    assert token_ids == list(expected.token_ids)
    if is_streamed:
        text = "".join(one.delta.content or "" for one in choices)
    else:
        text = choices[0].message.content or ""
    assert (text, choices[-1].finish_reason) == (expected.text, expected.finish_reason)
