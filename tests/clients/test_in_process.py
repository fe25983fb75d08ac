"""A drafter in the process of its engine: the same client, and no server."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from diffuspec.core.errors import ConfigError, VocabularyError
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.tokenizer import load_tokenizer
from diffuspec_client import DraftClient, InProcess, Row
from diffuspec_client.vocabulary import Vocabulary

TOKENS = load_tokenizer(TARGET).get_vocab()
SERVER = {
    "drafter": {"kind": "pld"},
    "tokenizer": str(TARGET),
    "num_draft_tokens": 3,
    "profile_seconds": 0,
}
TEXT = [5 + number % 7 for number in range(64)]


def connect(server: Mapping[str, Any], tokens: Mapping[str, int] = TOKENS) -> DraftClient:
    return DraftClient(
        InProcess(server, deadline_seconds=5.0),
        vocabulary=Vocabulary(tokens),
        max_model_len=64,
        max_requests=2,
        max_draft_tokens=8,
    )


def row(size: int, name: str = "a") -> Row:
    return Row(name, np.array(TEXT[:size], np.int32), 4)


def test_drafts_come_without_a_server_and_end_with_the_client():
    client = connect(SERVER)
    assert client.is_connected
    found = [client.step([row(size), row(size + 1, "b")]) for size in range(20, 30)]
    for place, draft in enumerate(found[-1]):
        size, token_ids = 29 + place, draft.token_ids
        assert token_ids and token_ids == TEXT[size : size + len(token_ids)]
    client.close()
    assert not client.is_connected
    assert client.step([row(30)])[0].token_ids == []
    client.close()


def test_a_step_that_is_refused_opens_another_session(caplog: pytest.LogCaptureFixture):
    client = connect(SERVER)
    assert client.step([row(20), row(21, "b"), row(22, "c")])[0].token_ids == []
    assert "rows of a step must be from 0 to 2, got 3" in caplog.text
    while not client.is_connected:
        time.sleep(0.01)
    found = [client.step([row(size)])[0].token_ids for size in range(20, 30)]
    assert found[-1] and found[-1] == TEXT[29 : 29 + len(found[-1])]
    client.close()


def test_what_cannot_be_used_is_refused_by_name():
    with pytest.raises(ConfigError, match="num_draft_tokens"):
        connect({**SERVER, "num_draft_tokens": 0})
    with pytest.raises(VocabularyError, match="token id 5 is 'another token'"):
        connect(
            SERVER,
            {("another token" if one == 5 else token): one for token, one in TOKENS.items()},
        )


def test_without_the_package_it_says_what_is_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "diffuspec.draft_server.config", None)
    with pytest.raises(ImportError, match="needs the package diffuspec beside diffuspec-client"):
        connect(SERVER)
