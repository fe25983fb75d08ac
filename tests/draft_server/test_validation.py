"""What an engine sends is checked before any work, and refused by name."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from diffuspec.core.errors import ConfigError, InvalidRequestError, VocabularyError
from diffuspec.draft_server.validation import check_hello, check_step
from diffuspec.text.tokenizer import vocabulary_bytes, vocabulary_digest
from diffuspec.v1.draft_service_pb2 import EngineStep, RequestRow
from tests.support.draft_engine import FakeTokenizer, make_hello
from tests.support.fakes import FAKE_TARGET

SIZE = FAKE_TARGET.vocab_size
TOKENS = vocabulary_bytes(FakeTokenizer(), SIZE)
DIGEST = bytes.fromhex(vocabulary_digest(FakeTokenizer(), SIZE))


def hello(**given: Any) -> None:
    check_hello(make_hello(**given), FAKE_TARGET, DIGEST, TOKENS)


def test_an_engine_with_the_same_vocabulary_is_welcome():
    hello(vocabulary_digest=DIGEST, vocabulary=TOKENS)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"protocol_version": 2}, ConfigError, "protocol_version must be 1, got 2"),
        ({"engine": "x" * 65}, InvalidRequestError, "engine must be of at most 64 characters"),
        ({"max_requests": 0}, InvalidRequestError, "max_requests must be from 1 to 4096, got 0"),
        ({"max_draft_tokens": 129}, InvalidRequestError, "max_draft_tokens must be from 1 to 128"),
        ({"max_model_len": 1}, InvalidRequestError, "max_model_len must be from 2"),
        ({"form": 7}, InvalidRequestError, "2 (DRAFT_FORM_TREE), got 7"),
        ({"vocab_size": 2**31}, InvalidRequestError, "vocab_size must be from 1 to 4194304"),
        (
            {"vocab_size": 60, "vocabulary": [b""] * 61},
            InvalidRequestError,
            "tokens of the vocabulary must be from 0 to 60, got 61",
        ),
        ({"vocab_size": 49}, VocabularyError, "vocab_size must be at least 50"),
        ({"vocabulary_digest": b"x" * 32}, VocabularyError, "different meanings to token ids"),
        (
            {"vocabulary": [*TOKENS[:7], b"other", *TOKENS[8:]]},
            VocabularyError,
            "token id 7 is 'other' in the engine and 't7' in the draft server",
        ),
        (
            {"vocabulary": TOKENS[:-1]},
            VocabularyError,
            "token id 49 is nothing in the engine and 't49' in the draft server",
        ),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(given: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=re.escape(message)):
        hello(**given)


def row(**given: Any) -> RequestRow:
    return RequestRow(**{"request_id": "a", "token_ids": [1, 2], **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step_id": 3}, "step_id must be 2, got 3"),
        ({"rows": [row()] * 2}, "request 'a' is in two rows of a step"),
        ({"rows": [row(request_id=str(n)) for n in range(9)]}, "rows of a step must be from 0 to"),
        ({"rows": [row(token_ids=[])]}, "tokens of a request must be from 1 to 4096, got 0"),
        ({"rows": [row(base_length=4096)]}, "tokens of a request must be from 1 to 4096, got 4098"),
        ({"rows": [row(num_prompt_tokens=3)]}, "num_prompt_tokens must be from 0 to 2, got 3"),
        ({"rows": [row(request_id="")]}, "characters of a request_id must be from 1 to 256"),
        ({"deadline_seconds": -1.0}, "deadline_seconds must be 0 or more, got -1"),
        ({"deadline_seconds": 61.0}, "deadline_seconds must be from 0 to 60"),
        ({"num_silent_steps": 1}, "num_silent_steps must be from 0 to 0, got 1"),
        ({"verify_seconds": math.nan}, "verify_seconds must be 0 or more, got nan"),
        ({"wait_seconds": math.inf}, "wait_seconds must be 0 or more, got inf"),
    ],
)
def test_a_step_that_breaks_the_protocol_is_refused(given: Any, message: str):
    step = EngineStep(**{"step_id": 2, "rows": [row()], **given})
    with pytest.raises(InvalidRequestError, match=message):
        check_step(step, make_hello(), 1)
