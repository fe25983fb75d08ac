"""Streams of events: what ends them, and what a client that goes or stops reading leaves behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.core.errors import VerifierError
from diffuspec.engine.engine import Engine
from diffuspec.serve.app import create_app
from diffuspec.serve.http.events import event
from diffuspec.serve.server import EngineBackend
from diffuspec.serve.settings import ServeSettings
from tests.support.checkpoints import NUM_IDS
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import MODEL, events, fake_engine, http_client, named_events

TEXT = "/v1/completions"
ASKED = {"prompt": [1, 2, 3], "max_tokens": 40, "temperature": 0, "ignore_eos": True}

KNOWS_BYTES = replace(FAKE_TARGET, vocab_size=NUM_IDS)  # so chats can be its prompts
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LONG = {"temperature": 0, "ignore_eos": True}
ASKED_OF: dict[str, dict[str, Any]] = {
    TEXT: ASKED,
    RESPONSES: {"input": "hi", "max_output_tokens": 40, **LONG},
    MESSAGES: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, **LONG},
}


class Exchange:
    """One request to the application, message by message."""

    def __init__(
        self, engine: Engine, settings: ServeSettings, path: str, body: dict[str, Any]
    ) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.on_send: Callable[[Any], Any] = self.sent.put
        self.has_left = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        app = create_app(EngineBackend(engine, MODEL), settings)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is None:
            await self.has_left.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _send(self, message: Any) -> None:
        await self.on_send(message)


@asynccontextmanager
async def exchange(
    verifier: FakeVerifier,
    settings: ServeSettings | None = None,
    path: str = TEXT,
    **body: object,
) -> AsyncIterator[tuple[Engine, Exchange]]:
    engine = fake_engine(verifier)
    async with engine:
        one = Exchange(engine, settings or ServeSettings(), path, ASKED_OF[path] | body)
        yield engine, one
        await one.task
        verifier.gate.open()
        while verifier.held:  # until the worker has released what was cancelled
            await asyncio.sleep(0)
        assert engine.requests() == ()


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"stream": True},
        {"stream": True, "n": 3},
        {"n": 2},
        {"path": RESPONSES},
        {"path": MESSAGES, "stream": True},
    ],
)
async def test_who_leaves_before_the_first_token_is_forgotten(body):
    verifier = FakeVerifier(KNOWS_BYTES)
    verifier.gate.close()
    async with exchange(verifier, **body) as (engine, one):
        await verifier.gate.arrival()
        assert engine.requests()
        one.has_left.set()


@pytest.mark.parametrize("body", [{"n": 1}, {"n": 3}, {"path": RESPONSES}, {"path": MESSAGES}])
async def test_who_leaves_in_the_middle_of_a_stream_is_forgotten_within_a_step(body):
    verifier = FakeVerifier(KNOWS_BYTES)
    async with exchange(verifier, stream=True, **body) as (_, one):
        assert (await one.sent.get())["status"] == 200
        assert b"data: {" in (await one.sent.get())["body"]
        verifier.gate.close()
        one.has_left.set()


async def test_who_stops_reading_is_dropped():
    verifier = FakeVerifier(KNOWS_BYTES)
    async with exchange(verifier, ServeSettings(write_seconds=0.01), stream=True) as (_, one):

        async def stall(message: dict[str, Any]) -> None:
            await one.sent.put(message)
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        one.on_send = stall
    assert one.sent.qsize() == 2  # the end of the response never came


async def failing_in_the_middle(path: str) -> str:
    """Return what a stream sends when its verifier fails after the first output."""
    verifier = FakeVerifier(KNOWS_BYTES)
    async with exchange(verifier, path=path, stream=True) as (_, one):

        async def fail_then(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                verifier.error = VerifierError("secret")
            await one.sent.put(message)

        one.on_send = fail_then
    messages = [one.sent.get_nowait() for _ in range(one.sent.qsize())]
    assert not messages[-1].get("more_body", False)
    text = b"".join(message.get("body", b"") for message in messages).decode()
    assert "secret" not in text
    return text


async def test_a_failure_in_the_middle_is_an_event_and_no_done_follows():
    text = await failing_in_the_middle(TEXT)
    *_, error, end = text.split("\n\n")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "worker_failed"
    assert end == "" and "[DONE]" not in text


async def test_a_failure_in_the_middle_has_the_events_of_its_api():
    *_, error, failed = named_events(await failing_in_the_middle(RESPONSES))
    assert (error["type"], error["code"]) == ("error", "worker_failed")
    response = failed["response"]
    assert (failed["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"]["code"] == "worker_failed"
    assert [item["status"] for item in response["output"]] == ["incomplete"]
    *_, error = named_events(await failing_in_the_middle(MESSAGES))
    assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")


async def test_usage_comes_at_the_end_or_in_every_chunk():
    engine = fake_engine()
    asked = ASKED | {"stream": True, "return_token_ids": True}
    async with engine, http_client(engine) as client:
        for options in ({"include_usage": True}, {"continuous_usage_stats": True}):
            response = await client.post(TEXT, json=asked | {"stream_options": options})
            chunks = events(response.text)
            usages = [chunk["usage"] for chunk in chunks]
            if "include_usage" in options:
                assert chunks[-1]["choices"] == [] and not any(usages[:-1])
            counts = [usage["completion_tokens"] for usage in usages if usage]
            assert counts == sorted(counts) and counts[-1] == 40


async def test_chunks_join_to_the_whole_answer_and_characters_are_never_split():
    engine = fake_engine()
    asked = ASKED | {"max_tokens": 200, "return_token_ids": True, "n": 2, "temperature": 1}
    asked |= {"seed": 3, "logprobs": 0}
    async with engine, http_client(engine) as client:
        whole = (await client.post(TEXT, json=asked)).json()
        streamed = await client.post(TEXT, json=asked | {"stream": True})
    chunks = [chunk["choices"][0] for chunk in events(streamed.text)]
    for choice in whole["choices"]:
        mine = [chunk for chunk in chunks if chunk["index"] == choice["index"]]
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        assert [i for chunk in mine for i in chunk["token_ids"]] == choice["token_ids"]
        assert mine[0]["prompt_token_ids"] == choice["prompt_token_ids"] == [1, 2, 3]
        assert mine[-1]["finish_reason"] == choice["finish_reason"] == "length"
        tokens = [token for chunk in mine for token in chunk["logprobs"]["tokens"]]
        assert tokens == choice["logprobs"]["tokens"] and len(tokens) == 200


@pytest.mark.parametrize("text", ["a\u2028b", "\u2029", "a\x85", "\x7f", "a\nb\r\n"], ids=ascii)
def test_an_event_is_one_line_by_any_rule(text):
    sent = event({"text": text})
    lines = sent.decode().splitlines()
    assert len(lines) == 2 and json.loads(lines[0].removeprefix("data: ")) == {"text": text}
