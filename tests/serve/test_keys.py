"""API keys: who is let in, how much at once, and changes of their file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from diffuspec.core.errors import ConfigError, InvalidRequestError
from diffuspec.core.types import RequestOutput
from diffuspec.serve.http import keys as keys_module
from diffuspec.serve.http.allowance import Allowance
from diffuspec.serve.http.keys import Keys, add_key, key_hash, read_keys
from diffuspec.serve.openai.errors import HttpError
from diffuspec.serve.server import EngineBackend
from diffuspec.serve.settings import ServeSettings
from tests.support.checkpoints import NUM_IDS
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import MODEL, fake_engine, http_client
from tests.support.stage import until

TEXT = "/v1/completions"
ASKED = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


async def test_only_keys_of_the_file_are_let_in(path: Path):
    alice, bob = add_key(path, "alice"), add_key(path, "bob")
    engine = fake_engine()
    async with engine, http_client(engine, ServeSettings(api_keys=path)) as client:
        for key in (alice, bob):
            response = await client.post(TEXT, json=ASKED, headers=bearer(key))
            assert response.is_success, response.text
        wrong = [{}, bearer("x"), bearer(""), {"authorization": alice}, bearer(key_hash(alice))]
        for headers in wrong:
            for method, path_ in (("POST", TEXT), ("GET", "/v1/models"), ("GET", "/metrics")):
                response = await client.request(method, path_, headers=headers)
                assert response.status_code == 401
                assert response.json()["error"]["code"] == "invalid_api_key"
        for probe in ("/health", "/ready", "/version"):
            assert (await client.get(probe)).is_success


async def test_a_wrong_key_is_told_from_none(path: Path):
    add_key(path, "alice")
    async with http_client(fake_engine(), ServeSettings(api_keys=path)) as client:
        for headers, message in (
            ({}, "an API key is needed: authorization: Bearer KEY, or x-api-key: KEY"),
            (bearer("x"), "this service has no such API key"),
            ({"x-api-key": "x"}, "this service has no such API key"),
        ):
            error = (await client.get("/v1/models", headers=headers)).json()["error"]
            assert error["message"] == message


async def test_the_openapi_document_says_where_a_key_is_asked_for(path: Path):
    add_key(path, "alice")
    async with http_client(fake_engine(), ServeSettings(api_keys=path)) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    secured = {path for path, one in paths.items() if "security" in next(iter(one.values()))}
    others = {"/metrics", "/tokenize", "/detokenize", "/tokenizer_info"}
    assert secured == {path for path in paths if path.startswith("/v1/")} | others


def test_a_file_has_hashes_only_and_belongs_to_its_owner(path: Path):
    key = add_key(path, "alice", max_requests=2, tokens_per_minute=100)
    assert key not in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    [found] = read_keys(path).values()
    assert (found.sha256, found.max_requests, found.tokens_per_minute) == (key_hash(key), 2, 100)
    with pytest.raises(ConfigError, match="has a key alice already"):
        add_key(path, "alice")


@pytest.mark.parametrize("text", ["", "alice: secret", "alice: {sha256: secret}", "- a"])
def test_a_wrong_file_is_refused_without_its_values(path: Path, text: str):
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(path)
    assert "secret" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named_as_a_file_of_keys(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read key file .*keys\.yaml: No such file"):
        read_keys(tmp_path / "keys.yaml")


def test_a_name_that_is_too_long_is_refused(path: Path):
    with pytest.raises(ConfigError, match=r"must have at most 128 letters, got a{128}"):
        add_key(path, "a" * 129)
    path.write_text(f"{'a' * 129}: {{sha256: {'a' * 64}}}")
    with pytest.raises(ConfigError, match="must have at most 128 letters"):
        read_keys(path)


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot write .*/none/keys\.yaml: No such file"):
        add_key(tmp_path / "none" / "keys.yaml", "alice")


async def test_a_key_has_a_budget_of_tokens(path: Path, monkeypatch: pytest.MonkeyPatch):
    headers = bearer(add_key(path, "alice", tokens_per_minute=10))
    engine = fake_engine()
    async with engine, http_client(engine, ServeSettings(api_keys=path)) as client:
        for _ in range(2):  # of 7 tokens each: the second begins with 3 left
            assert (await client.post(TEXT, json=ASKED, headers=headers)).is_success
        response = await client.post(TEXT, json=ASKED, headers=headers)
        assert response.status_code == 429
        seconds = int(response.headers["retry-after"])
        assert 20 <= seconds <= 25  # 4 tokens are owed, at 10 a minute
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + seconds)
        assert (await client.post(TEXT, json=ASKED, headers=headers)).is_success


async def test_a_request_that_is_refused_takes_nothing_from_the_budget(path: Path):
    headers = bearer(add_key(path, "alice", tokens_per_minute=10))
    engine = fake_engine()
    async with engine, http_client(engine, ServeSettings(api_keys=path)) as client:
        for _ in range(6):
            refused = await client.post(
                TEXT, json=ASKED | {"logit_bias": {"9999": 1}}, headers=headers
            )
            assert refused.status_code == 400
        assert (await client.post(TEXT, json=ASKED, headers=headers)).is_success


async def test_a_request_that_fails_after_outputs_is_charged_with_its_prompt(path: Path):
    class Refusing(EngineBackend):
        async def stream(self, *arguments: Any) -> AsyncGenerator[RequestOutput]:
            async with aclosing(super().stream(*arguments)) as stream:
                yield await anext(stream)
            raise InvalidRequestError("the answer cannot go on")

    headers = bearer(add_key(path, "alice", tokens_per_minute=3))
    engine = fake_engine()
    backend = Refusing(engine, MODEL)
    async with engine, http_client(backend, ServeSettings(api_keys=path)) as client:
        assert (await client.post(TEXT, json=ASKED, headers=headers)).status_code == 400
        assert (await client.post(TEXT, json=ASKED, headers=headers)).status_code == 429


async def test_a_key_has_a_number_of_requests(path: Path):
    add_key(path, "alice", max_requests=1)
    [key] = read_keys(path).items()
    allowance = Allowance(*key)
    refused = pytest.raises(HttpError, match="1 requests at a time")
    with allowance.one_request(), refused, allowance.one_request():
        raise AssertionError
    with allowance.one_request():
        pass


async def test_answers_beyond_the_number_of_requests_wait_for_the_others(path: Path):
    headers = bearer(add_key(path, "alice", max_requests=2))
    verifier = FakeVerifier(replace(FAKE_TARGET, vocab_size=NUM_IDS))
    engine = fake_engine(verifier)
    body = ASKED | {"prompt": [[number] for number in range(1, 6)], "n": 2}
    async with engine, http_client(engine, ServeSettings(api_keys=path)) as client:
        answer = await client.post(TEXT, json=body, headers=headers)
        assert len(answer.json()["choices"]) == 10
        assert max(map(len, verifier.batches)) == 2
        plain = (await client.post(TEXT, json=ASKED | {"prompt": [5]}, headers=headers)).json()
        assert [choice["text"] for choice in answer.json()["choices"][8:]] == 2 * [
            plain["choices"][0]["text"]
        ]


async def test_tokens_are_reserved_while_answers_are_generated(path: Path):
    headers = bearer(add_key(path, "alice", tokens_per_minute=20))
    verifier = FakeVerifier(replace(FAKE_TARGET, vocab_size=NUM_IDS))
    engine = fake_engine(verifier)
    async with engine, http_client(engine, ServeSettings(api_keys=path)) as client:

        async def ask(**options: Any) -> Response:
            return await client.post(TEXT, json=ASKED | options, headers=headers)

        verifier.gate.close()
        first = asyncio.create_task(ask(max_tokens=16))  # reserves 19
        second = asyncio.create_task(ask())
        await until(lambda: engine.num_requests == 2)
        assert (await ask()).status_code == 429
        verifier.gate.open()
        assert (await first).is_success and (await second).is_success


def test_what_was_reserved_and_not_used_is_given_back(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    add_key(path, "alice", tokens_per_minute=60)
    [allowance] = Keys(path)._allowances

    def seconds_to_wait() -> int:
        try:
            with allowance.one_request():
                return 0
        except HttpError as error:
            return int(error.answer.headers["retry-after"])

    with allowance.reserve(100) as reserved:
        assert seconds_to_wait() == 41
        reserved.use(30)
        assert seconds_to_wait() == 41
        reserved.use(90)  # 20 more than were reserved
        assert seconds_to_wait() == 61
    assert seconds_to_wait() == 61
    allowance.charge(-90)
    with allowance.reserve(30) as reserved:
        reserved.use(10)
        assert seconds_to_wait() == 1
    assert seconds_to_wait() == 0
    allowance.charge(20)
    with pytest.raises(HttpError, match="60 tokens a minute"), allowance.reserve(1):
        raise AssertionError


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keys_module, "_RELOAD_SECONDS", 0)
    alice = add_key(path, "alice")
    keys = Keys(path)
    before = keys.find(alice)
    bob = add_key(path, "bob")
    assert keys.find(bob) is not None
    assert keys.find(alice) is before  # with what it has used
    path.write_text("broken")
    assert keys.find(alice) is before
    os.remove(path)
    assert keys.find(alice) is before
    path.write_text(f"bob: {{sha256: {key_hash(bob)}}}")
    assert keys.find(alice) is None and keys.find(bob) is not None


def test_the_last_key_can_be_withdrawn(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keys_module, "_RELOAD_SECONDS", 0)
    alice = add_key(path, "alice")
    keys = Keys(path)
    path.write_text("# alice left\n")
    assert keys.find(alice) is None
    bob = add_key(path, "bob")
    assert keys.find(bob) is not None


@pytest.mark.parametrize("text", ["", "\n", "ann: {sha256: " + "a" * 64 + "}"])
def test_a_key_is_appended_to_any_file(path: Path, text: str):
    path.write_text(text)
    add_key(path, "null")  # which is a word of YAML
    assert "null" in read_keys(path)
    with pytest.raises(ConfigError, match="has a key null already"):
        add_key(path, "null")
