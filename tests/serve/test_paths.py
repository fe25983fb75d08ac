"""Paths with a slash too many, and those by which balancers look after a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from diffuspec.scheduler.pulse import Pulse
from diffuspec.serve.app import create_app
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.server import EngineBackend
from diffuspec.serve.settings import ServeSettings
from tests.support.service import MODEL, fake_engine, http_client

BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.mark.parametrize("path", ["/v1//models", "/v1/models/", "//v1/models", "/v1/models//"])
async def test_a_slash_too_many_changes_nothing(http: httpx2.AsyncClient, path: str):
    response = await http.get(f"http://127.0.0.1{path}")
    assert response.json()["data"][0]["id"] == MODEL
    text = (await http.get("/metrics")).text
    assert 'route="/v1/models",status="200"} 1.0' in text


async def test_requests_with_a_slash_too_many_are_answered():
    async with fake_engine() as engine, http_client(engine) as client:
        for path in ("/v1/chat/completions/", "/v1//chat/completions", "/v1/messages/"):
            assert (await client.post(path, json=BODY)).status_code == 200


async def test_no_slash_is_a_way_around_the_keys(tmp_path: Path):
    add_key(tmp_path / "keys.yaml", "alice")
    async with http_client(fake_engine(), ServeSettings(api_keys=tmp_path / "keys.yaml")) as client:
        for path in ("//v1/models", "/v1//models", "/metrics/", "//tokenize"):
            response = await client.get(f"http://127.0.0.1{path}")
            assert response.status_code == 401, path


async def test_a_prefix_before_all_routes_is_no_way_around_the_keys(tmp_path: Path):
    key = add_key(tmp_path / "keys.yaml", "alice")
    settings = ServeSettings(api_keys=tmp_path / "keys.yaml")
    app = create_app(EngineBackend(fake_engine(), MODEL, settings), settings)
    transport = httpx2.ASGITransport(app, root_path="/x")
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/x/v1/models", "//x//v1/models", "/x/metrics", "/x/v1/messages"):
            assert (await client.get(f"http://127.0.0.1{path}")).status_code == 401, path
        assert (await client.get("/x/health")).status_code == 200
        text = (await client.get("/x/metrics", headers={"x-api-key": key})).text
    assert 'route="/v1/models",status="401"} 2.0' in text


@pytest.mark.parametrize("name", ["/models/a", "org/a", "a//b", "dir/"])
async def test_a_model_is_found_whatever_slashes_its_name_has(name: str):
    async with http_client(EngineBackend(fake_engine(), name)) as client:
        assert (await client.get(f"/v1/models/{name}")).json()["id"] == name


async def test_a_ping_and_the_load_are_answered_without_a_key(tmp_path: Path):
    add_key(tmp_path / "keys.yaml", "alice")
    settings = ServeSettings(api_keys=tmp_path / "keys.yaml")
    async with http_client(fake_engine(), settings) as client:
        assert (await client.get("/ping")).is_success
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_the_load_is_the_number_of_requests_in_progress():
    async with fake_engine() as engine, http_client(engine) as client:
        loads: list[Any] = []

        async def body():
            loads.append((await client.get("/load")).json())
            yield b"{}"

        headers = {"content-type": "application/json"}
        await client.post("/v1/completions", content=body(), headers=headers)
        assert loads == [{"server_load": 1}]
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_a_process_whose_decoding_has_stopped_is_not_healthy(monkeypatch: pytest.MonkeyPatch):
    async with fake_engine() as engine, http_client(engine) as client:
        assert (await client.get("/health")).status_code == 200
        monkeypatch.setattr(Pulse, "is_beating", property(lambda _: False))
        for path in ("/health", "/ping", "/ready"):
            assert (await client.get(path)).status_code == 503, path
