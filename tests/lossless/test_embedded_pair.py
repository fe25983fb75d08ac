"""The suite of test_pairs.py on the embedded pair: long answers, of which much is drafted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from diffuspec.bench.questions import first_per_family, load_questions
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import Prompt
from diffuspec.engine.engine import Engine
from diffuspec.pairs import PAIRS
from diffuspec.pairs.tiny import DRAFTER, QUESTIONS, TARGET, tiny_config
from tests.lossless.test_pairs import (
    Pair,
    test_a_request_is_cancelled_by_its_id,
    test_a_stop_string_cuts_where_plain_decoding_cuts,
    test_drafting_changes_the_speed_and_nothing_else,
    test_requests_that_are_cancelled_leave_the_others_as_they_are,
)
from tests.support.lossless import Answer

__all__ = [
    "test_a_request_is_cancelled_by_its_id",
    "test_a_stop_string_cuts_where_plain_decoding_cuts",
    "test_drafting_changes_the_speed_and_nothing_else",
    "test_requests_that_are_cancelled_leave_the_others_as_they_are",
]

MAX_TOKENS = 48
DRAFTERS: dict[str, dict[str, Any]] = {
    "diffusion": {"drafter": {"path": DRAFTER, "device": "cpu"}},
    "several": {
        "drafter": {"kind": "pld"},
        "drafters": {
            **{name: {"kind": name} for name in ("samd", "token_recycling")},
            **PAIRS["tiny"].other_drafters(),
            "sps": {"kind": "sps", "path": DRAFTER, "device": "cpu"},
        },
    },
}
MIN_ACCEPTANCE_LENGTHS = {"diffusion": 2.0, "several": 1.3}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),  # some 3,000 tokens, on a busy machine
]


@pytest.fixture(scope="module")
def plainly() -> dict[SamplingParams, list[Answer]]:
    """What the target says by itself, whatever drafters are beside it."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=DRAFTERS)
async def pair(
    request: pytest.FixtureRequest, plainly: dict[SamplingParams, list[Answer]]
) -> AsyncIterator[Pair]:
    name = request.param
    config = tiny_config(target={"path": TARGET, "device": "cpu"}, **DRAFTERS[name])
    with Engine.from_config(config) as engine:
        yield Pair(
            engine,
            engine,
            questions(),
            MAX_TOKENS,
            MIN_ACCEPTANCE_LENGTHS[name],
            False,
            plainly,
            drafters=(None, *config.named_drafters),
        )
        await engine.stop()


def questions() -> list[Prompt]:
    """Return one of each family."""
    loaded = first_per_family(load_questions(QUESTIONS), 1)
    return [[{"role": "user", "content": question.turns[0]}] for question in loaded]
