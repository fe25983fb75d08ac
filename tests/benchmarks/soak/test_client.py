"""A client of a soak over the HTTP application: the outcomes of its requests."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from benchmarks.soak import client
from benchmarks.soak.client import Client, End
from benchmarks.soak.mixture import Kind, Request
from benchmarks.soak.oracle import Oracle
from diffuspec.bench.http_client import HttpClient
from diffuspec.engine.engine import Engine
from diffuspec.serve.app import create_app
from diffuspec.serve.server import EngineBackend
from diffuspec.serve.settings import ServeSettings
from tests.support.service import MODEL, fake_engine

CHAT = {
    "messages": [{"role": "user", "content": "Hi"}],
    "temperature": 0,
    "max_tokens": 12,
    "return_token_ids": True,
}
STREAM = Request(Kind.STREAM, "stream", {**CHAT, "stream": True})
WHOLE = Request(Kind.WHOLE, "whole", {**CHAT, "temperature": 1, "seed": 3})
SEVERAL = Request(Kind.SEVERAL, "n", {**CHAT, "temperature": 1, "seed": 3, "n": 2, "stream": True})
SLOW = Request(Kind.SLOW, "slow", {**STREAM.body, "logprobs": True, "top_logprobs": 2})
ABORT = Request(Kind.ABORT, "abort", STREAM.body, left_after=3)
BAD = Request(Kind.BAD, "bad", {**CHAT, "n": -1})
ANSWERED = [STREAM, WHOLE, SEVERAL, SLOW, ABORT]


class Asked:
    """A client whose oracle has been asked, and what it talks to."""

    def __init__(self, engine: Engine, http: HttpClient, oracle: Oracle) -> None:
        self.engine, self.oracle, self.client = engine, oracle, Client(http, http, oracle)

    async def end_of(self, request: Request) -> tuple[End, str]:
        outcome = await self.client.send(request)
        assert (outcome.kind, outcome.name) == (request.kind, request.name)
        return outcome.end, outcome.reason


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    engine, oracle = fake_engine(), Oracle()
    app = create_app(EngineBackend(engine, MODEL), ServeSettings())

    def connect(**options: Any) -> HttpClient:
        return HttpClient("http://127.0.0.1", transport=httpx2.ASGITransport(app), **options)

    async with connect(speculation="off") as plain, connect() as http:
        answers = []
        await oracle.ask(plain, ANSWERED, lambda: answers.append(1))
        assert len(answers) == len(ANSWERED)
        yield Asked(engine, http, oracle)
    await engine.stop()


@pytest.mark.parametrize("request_", [STREAM, WHOLE, SEVERAL, SLOW], ids=lambda one: one.name)
async def test_drafted_answers_are_plain_decodings(asked: Asked, request_: Request):
    assert await asked.end_of(request_) == (End.ANSWERED, "")


@pytest.mark.parametrize("left_after", [0, 1, 3])
async def test_an_abort_sees_the_beginning(asked: Asked, left_after: int):
    request = Request(Kind.ABORT, "abort", STREAM.body, left_after)
    assert await asked.end_of(request) == (End.LEFT, "")


async def test_a_bad_request_is_refused(asked: Asked):
    assert await asked.end_of(BAD) == (End.REFUSED, "")


async def test_a_bad_request_that_is_answered_is_wrong(asked: Asked):
    answered = Request(Kind.BAD, "bad", CHAT)
    assert await asked.end_of(answered) == (End.WRONG, "bad was answered")


@pytest.mark.parametrize("kind", [Kind.STREAM, Kind.ABORT])
async def test_another_answer_than_plain_decodings_is_wrong(asked: Asked, kind: Kind):
    other = {**STREAM.body, "temperature": 1, "seed": 9}
    left_after = 5 if kind is Kind.ABORT else None
    end, reason = await asked.end_of(Request(kind, "stream", other, left_after))
    assert end is End.WRONG
    assert reason.startswith("stream must be {0: Choice(")


async def test_a_refusal_of_a_good_request_is_a_failure(asked: Asked):
    end, reason = await asked.end_of(Request(Kind.STREAM, "stream", BAD.body))
    assert (end, reason[:5]) == (End.BROKEN, "400: ")


async def test_a_request_without_an_answer_ends(asked: Asked, monkeypatch: pytest.MonkeyPatch):
    async def hang(body: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "MAX_SECONDS", 0.01)
    monkeypatch.setattr(HttpClient, "answer", lambda self, body: hang(body))
    assert await asked.end_of(WHOLE) == (End.OVERDUE, "not ended after 0 s")
