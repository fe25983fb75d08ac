"""What is counted and logged of HTTP requests, and that users' text is in no line."""

from __future__ import annotations

import json
import logging

import httpx2
import pytest

from diffuspec.core.errors import VerifierError
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.settings import ServeSettings
from diffuspec.telemetry import logs
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import fake_engine, http_client

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
CANARY = "zebra7canary"


async def series(client: httpx2.AsyncClient) -> dict[str, float]:
    """Return the application's series of HTTP, without those of reading them."""
    lines = (await client.get("/metrics")).text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if line.startswith("diffuspec_http"))
    return {name: float(value) for name, value in values.items()}


async def test_requests_count_by_route_method_and_status(http: httpx2.AsyncClient):
    for _ in range(2):
        await http.post(TEXT, json=ASKED)
    await http.post(TEXT, json={"prompt": 1.5})
    await http.get("/v1/models/none")
    await http.request("BREW", f"/{CANARY}")
    await http.get("/health", headers={"host": "elsewhere.example"})
    await http.get("/v1/models", headers={"host": "elsewhere.example"})
    found = await series(http)
    counted = {
        name.partition("{")[2].rstrip("}"): value
        for name, value in found.items()
        if name.startswith("diffuspec_http_requests_total{") and value
    }
    assert counted == {
        f'method="POST",route="{TEXT}",status="200"': 2,
        f'method="POST",route="{TEXT}",status="400"': 1,
        'method="GET",route="/v1/models/{name:path}",status="404"': 1,
        'method="other",route="other",status="404"': 1,
        'method="GET",route="/health",status="200"': 1,
        'method="GET",route="/v1/models",status="403"': 1,
    }
    assert found["diffuspec_http_requests_open"] == 1  # the one that reads the series
    assert found[f'diffuspec_http_request_duration_seconds_count{{route="{TEXT}"}}'] == 3
    assert found['diffuspec_http_errors_total{code="model_not_found"}'] == 1
    assert found['diffuspec_http_errors_total{code="host_not_allowed"}'] == 1


async def test_requests_and_errors_are_counted_from_zero_on(http: httpx2.AsyncClient):
    found = await series(http)
    for code in ("overloaded", "unavailable", "internal_error", "invalid_request_error"):
        assert found[f'diffuspec_http_errors_total{{code="{code}"}}'] == 0
    for status in (200, 429, 500, 503, 504):
        name = f'diffuspec_http_requests_total{{method="POST",route="{TEXT}",status="{status}"}}'
        assert found[name] == 0


async def test_body_sizes_and_refused_keys_are_counted(tmp_path):
    key = add_key(tmp_path / "keys.yaml", "alice")
    async with http_client(fake_engine(), ServeSettings(api_keys=tmp_path / "keys.yaml")) as client:
        await client.post(TEXT, json=ASKED)
        client.headers["authorization"] = f"Bearer {key}"
        content = b'{"prompt": "hello", "max_tokens": 4}'
        headers = {"content-type": "application/json"}
        await client.post(TEXT, content=content, headers=headers)
        found = await series(client)
    assert found['diffuspec_http_errors_total{code="invalid_api_key"}'] == 1
    assert found[f'diffuspec_http_request_body_bytes_count{{route="{TEXT}"}}'] == 2
    assert found[f'diffuspec_http_request_body_bytes_bucket{{le="64",route="{TEXT}"}}'] >= 1


class _Failing(FakeVerifier):
    """Fails at the third verification, with a message that a bug could give it."""

    num_calls = 0

    async def verify(self, requests):
        self.num_calls += 1
        if self.num_calls > 2:
            raise VerifierError("the third step fails")
        return await super().verify(requests)


async def test_an_error_inside_a_stream_is_counted():
    async with http_client(fake_engine(_Failing(FAKE_TARGET))) as client:
        asked = {**ASKED, "prompt": [5, 6], "max_tokens": 100, "stream": True}
        response = await client.post(TEXT, json=asked)
        found = await series(client)
    assert response.status_code == 200 and '"error"' in response.text
    errors = {name for name, value in found.items() if "errors_total" in name and value}
    assert len(errors) == 1


async def test_every_line_has_the_request_id_and_none_a_users_text(caplog):
    caplog.set_level(logging.DEBUG)
    bodies = [
        {**ASKED, "prompt": CANARY, "user": CANARY, "stop": [CANARY]},
        {**ASKED, "prompt": CANARY, "stream": True, "logprobs": 2},
        {**ASKED, "prompt": [CANARY]},
        {**ASKED, "prompt": CANARY, "a_key": CANARY},  # which is named in the log
        {**ASKED, "prompt": CANARY, "temperature": CANARY},
        {**ASKED, "prompt": CANARY * 20_000},
        {**ASKED, "prompt": CANARY, "model": CANARY},
        {**ASKED, "prompt": CANARY, "bad_words": [CANARY], "logit_bias": {CANARY: 1}},
        {"messages": [{"role": "user", "content": CANARY}], "max_tokens": 4},
        {"messages": [{"role": CANARY, "content": CANARY}]},
        {"messages": CANARY, "tools": CANARY},
    ]
    async with http_client(fake_engine(), headers={"x-request-id": "mine"}) as client:
        for body in bodies:
            await client.post(CHAT if "messages" in body else TEXT, json=body)
        broken = CANARY.encode()
        await client.post(TEXT, content=broken, headers={"content-type": "application/json"})
        await client.post(f"/{CANARY}?q={CANARY}", json={})
    ours = [record for record in caplog.records if record.name.startswith("diffuspec")]
    assert len(ours) > len(bodies)
    for record in caplog.records:
        shown = f"{record.getMessage()} {record.exc_info}"
        assert CANARY not in shown or not record.name.startswith(("diffuspec", "actors", "uvicorn"))


@pytest.mark.parametrize("is_ours", [True, False])
async def test_failures_inside_are_logged_with_the_request_id_and_without_text(capsys, is_ours):
    verifier = FakeVerifier(FAKE_TARGET)
    verifier.error = (
        VerifierError("the target's process has gone") if is_ours else ValueError("a bug")
    )
    logs.configure("json")
    async with http_client(fake_engine(verifier)) as client:
        asked = {**ASKED, "prompt": [5, 6]}
        response = await client.post(TEXT, json=asked, headers={"x-request-id": "mine"})
    assert response.status_code >= 500
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines and {line["request_id"] for line in lines if "diffuspec" in line["logger"]} == {
        "mine"
    }
    assert any(line["message"].startswith(f"POST {TEXT}: 50") for line in lines)
