"""Calls and forms with marks that are tokens, over a random model with Qwen's kind of tokenizer."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from httpx2 import AsyncClient

from diffuspec.engine.engine import Engine
from diffuspec.pairs import parse_config
from diffuspec.text.tokenizer import load_tokenizer
from tests.support.chat_models import QWEN, chat_tokenizer, save_chat_model
from tests.support.published import published_tokenizer
from tests.support.service import events, http_client

NFD = unicodedata.normalize("NFD", "Việt")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": [NFD, "a</think>"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
STRICT = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
JSON = {"response_format": {"type": "json_object"}}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=["tiny", "published"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a random model is, with Qwen3's own tokenizer or a tiny one of its shape."""
    is_tiny = request.param == "tiny"
    tokenizer = chat_tokenizer(QWEN) if is_tiny else published_tokenizer("qwen3")
    return save_chat_model(tmp_path_factory.mktemp("qwen"), tokenizer)


@pytest.fixture(scope="module")
def mark(path: Path) -> int:
    """The id of the token that begins a call."""
    return int(load_tokenizer(path).convert_tokens_to_ids("<tool_call>"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(path: Path) -> AsyncIterator[AsyncClient]:
    sections = {
        "target": {"path": path, "device": "cpu", "max_sequences": 2},
        "drafter": {"kind": "pld"},
        "coordinator": {"profile_seconds": 0},
    }
    async with Engine.from_config(parse_config(sections)) as engine, http_client(engine) as client:
        yield client


async def ask(client: AsyncClient, **keys: Any) -> dict[str, Any]:
    """Return the choice of a chat; drafted, plain and streamed it must be the same."""
    body = {
        "messages": [{"role": "user", "content": "hi " * 20}],
        "max_tokens": 120,
        "temperature": 0,
        "return_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
        **keys,
    }
    found = []
    for how in ("off", {"policy": "fixed", "num_draft_tokens": 5}):
        reply = await client.post("/v1/chat/completions", json=body | {"speculation": how})
        assert reply.status_code == 200, reply.text
        found.append(reply.json()["choices"][0])
        stream = await client.post(
            "/v1/chat/completions", json=body | {"speculation": how, "stream": True}
        )
        chunks = [one["choices"][0] for one in events(stream.text)]
        text = "".join(one["delta"].get("content", "") for one in chunks)
        parts = [part for one in chunks for part in one["delta"].get("tool_calls", ())]
        arguments = "".join(part["function"].get("arguments", "") for part in parts)
        calls = found[-1]["message"].get("tool_calls", [])
        assert text == (found[-1]["message"]["content"] or "")
        assert arguments == "".join(call["function"]["arguments"] for call in calls)
    assert found[0]["token_ids"] == found[1]["token_ids"]
    choice: dict[str, Any] = found[0]
    return choice


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_demanded_call_comes_with_the_mark_that_the_model_knows(client, mark, choice):
    one = {"parallel_tool_calls": False}
    answer = await ask(client, tools=[WEATHER], tool_choice=choice, **one)
    [call] = answer["message"]["tool_calls"]
    assert answer["token_ids"][0] == mark
    assert (
        json.loads(call["function"]["arguments"])["city"]
        in PARAMETERS["properties"]["city"]["enum"]
    )


@pytest.mark.parametrize(
    "keys",
    [
        {"tools": [STRICT]},
        {"tools": [WEATHER], "parallel_tool_calls": False},
        {"tools": [WEATHER], **JSON},
    ],
)
async def test_a_model_that_may_call_can_begin_with_its_own_mark(client, mark, keys):
    answer = await ask(client, **keys, logit_bias={str(mark): 100}, max_tokens=1)
    assert answer["token_ids"] == [mark]


@pytest.mark.parametrize("text", ["x</think>", "a<|file_sep|>b", "a<|im_end|>b", NFD])
async def test_a_forced_text_is_answered_as_it_is(client, text):
    assert (await ask(client, guided_choice=[text]))["message"]["content"] == text
    answer = await ask(client, guided_json={"const": text})
    assert json.loads(answer["message"]["content"]) == text and answer["finish_reason"] == "stop"


@pytest.mark.parametrize("regex", ["(", "((a{1000}){1000}){1000}"])
async def test_a_stream_of_a_form_that_cannot_be_is_refused_by_its_status(client, regex):
    body = {"messages": [{"role": "user", "content": "hi"}], "guided_regex": regex, "stream": True}
    reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "guided_regex"


async def test_a_schema_that_cannot_be_obeyed_is_refused_by_key_and_place(client):
    secret = {"type": "array", "uniqueItems": True}
    schema = {"type": "object", "properties": {"tags": secret}}
    described = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for keys, param in (
        ({"response_format": described}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": schema}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
          "tool_choice": "required"}, "tools"),
    ):  # fmt: skip
        body = {"messages": [{"role": "user", "content": "hi"}], **keys}
        reply = await client.post("/v1/chat/completions", json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"]) == (400, param)
        assert "cannot be used: #/properties/tags/uniqueItems" in error["message"]
