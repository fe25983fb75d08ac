"""The load client against the HTTP application."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import httpx2
import pytest

from diffuspec.bench.http_client import HttpClient, RefusedError
from diffuspec.bench.load import ask_all
from diffuspec.core.errors import ConfigError, OverloadedError, WorkerError
from diffuspec.core.types import Prompt
from diffuspec.engine.engine import Engine
from diffuspec.serve.app import create_app
from diffuspec.serve.server import EngineBackend
from diffuspec.serve.settings import ServeSettings
from tests.support.service import MODEL, fake_engine

CHAT: Prompt = [{"role": "user", "content": "Hi"}]
URL = "http://127.0.0.1"
FIXED = {"policy": "fixed"}  # whatever drafts cost on a busy machine
Speculation: TypeAlias = Mapping[str, Any] | str | None


def client_of(engine: Engine, speculation: Speculation = None) -> HttpClient:
    app = create_app(EngineBackend(engine, MODEL), ServeSettings())
    return HttpClient(URL, None, speculation, httpx2.ASGITransport(app))


async def test_tokens_are_counted_with_and_without_speculation():
    engine = fake_engine()
    async with client_of(engine, FIXED) as drafted, client_of(engine, "off") as plain:
        assert await drafted.model() == MODEL
        runs = [await ask_all(client, [CHAT], 1, max_tokens=12) for client in (drafted, plain)]
    [[one], [other]] = [run.answers for run in runs]
    assert one.num_tokens == other.num_tokens == 12
    assert one.text == other.text
    assert len(one.parts) < len(other.parts) == 12
    await engine.stop()


async def test_what_a_service_refuses_is_told():
    engine = fake_engine()
    async with client_of(engine) as client:
        with pytest.raises(WorkerError, match="400: messages"):
            await ask_all(client, [[{"role": "nobody", "content": "Hi"}]], 1, max_tokens=1)


async def test_an_address_without_a_service_is_named():
    async with HttpClient("http://127.0.0.1:1") as client:
        with pytest.raises(ConfigError, match="does not answer"):
            await client.model()


def client_that_is_told(status: int, text: str) -> HttpClient:
    reply = httpx2.Response(status, text=text)
    return HttpClient(URL, transport=httpx2.MockTransport(lambda request: reply))


async def test_a_refusal_has_its_status():
    async with client_of(engine := fake_engine()) as client:
        with pytest.raises(RefusedError, match="400: n must be") as refused:
            await client.answer({"messages": CHAT, "n": 0})
    assert refused.value.status == 400
    await engine.stop()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_service_can_be_asked_again(status: int):
    async with client_that_is_told(status, '{"error": {"message": "full"}}') as client:
        with pytest.raises(OverloadedError, match=f"{status}: full"):
            await ask_all(client, [CHAT], 1, max_tokens=1)


async def test_a_stream_without_its_end_is_broken():
    async with client_that_is_told(200, 'data: {"choices": []}\n\n') as client:
        with pytest.raises(WorkerError, match=r"ended before \[DONE\]"):
            _ = [chunk async for chunk in client.chunks({"messages": CHAT, "stream": True})]
