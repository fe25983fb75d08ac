"""The page at /docs, which needs no other server."""

from __future__ import annotations

import re

import jsonschema
import pytest
from httpx2 import AsyncClient

from diffuspec.serve.openai.bodies import ChatBody
from diffuspec.serve.openai.schema import body_schema
from tests.support.service import fake_engine, http_client


async def test_the_page_loads_only_what_the_service_has_itself(http: AsyncClient):
    page = await http.get("/docs")
    parts = re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text)
    for part in parts:
        assert (await http.get(f"/{part}")).status_code == 200, part
    assert (await http.get("/docs/core.py")).status_code == 404
    policy = (await http.get(f"/{parts[0]}")).headers["content-security-policy"]
    assert len(parts) == 3 and "http" not in page.text
    assert policy == page.headers["content-security-policy"]
    assert "script-src 'self';" in policy and "http" not in policy


@pytest.mark.parametrize(
    "extra",
    [{"stop": "."}, {"stop": [".", "!"]}, {"bad_words": "no"}, {"top_k": -1}, {"user": "a"}],
    ids=str,
)
async def test_the_schema_has_what_clients_of_openai_and_vllm_send(extra: dict[str, object]):
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **extra}
    async with fake_engine() as engine, http_client(engine) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    jsonschema.validate(body, body_schema(ChatBody))
