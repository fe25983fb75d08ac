"""What Open WebUI sends: a chat with functions of its own, its tasks, and what it reads of answers.

Bodies as its server makes them: metadata is taken out before, parameters of a model's settings are
put in, calls go back with the index that streams have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient

from tests.support.chat_models import QWEN, chat_tokenizer
from tests.support.scripted import ScriptedVerifier, scripted_engine
from tests.support.service import MODEL, events, http_client

FUNCTION = {
    "name": "get_current_weather",
    "description": "Get the weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "The place."}},
        "required": ["city"],
    },
}
SETTINGS: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.9,
    "max_tokens": 200,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "seed": 42,
    "stop": ["\n\n\n"],
    "logit_bias": {"5": -100},
    "reasoning_effort": "medium",
}
CALL = '<tool_call>\n{"name": "get_current_weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
HEADERS = {
    "Authorization": "Bearer none",
    "X-OpenWebUI-User-Name": "Ann",
    "X-OpenWebUI-User-Email": "ann@example.org",
    "X-OpenWebUI-Chat-Id": "5f8b",
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ScriptedVerifier, AsyncClient]]:
    tokenizer = chat_tokenizer(QWEN)
    verifier, engine = scripted_engine(tmp_path, tokenizer, (tokenizer.eos_token_id,))
    async with engine, http_client(engine, headers=HEADERS) as client:
        yield verifier, client


async def stream(client: AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = await client.post("/v1/chat/completions", json={"model": MODEL, "stream": True, **body})
    assert reply.status_code == 200, reply.text
    return events(reply.text)


async def test_a_chat_with_functions_goes_on_after_their_results(served):
    verifier, client = served
    tools = [{"type": "function", "function": FUNCTION}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in Ulm?"}]},
    ]
    verifier.say(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}")
    body = {"messages": messages, "tools": tools, "stream_options": {"include_usage": True}}
    chunks = await stream(client, SETTINGS | body)
    assert chunks[-1]["usage"]["completion_tokens"] > 0
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    content = "".join(delta.get("content") or "" for delta in deltas)
    calls: list[dict[str, Any]] = []  # joined by their index, as it does
    for delta in deltas:
        for part in delta.get("tool_calls") or ():
            if part["index"] == len(calls):
                calls.append(
                    {**part, "function": {"name": "", "arguments": "", **part["function"]}}
                )
            else:
                own = calls[part["index"]]["function"]
                own["arguments"] += part["function"].get("arguments", "")
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm."
    assert calls[0]["function"] == {"name": FUNCTION["name"], "arguments": '{"city": "Ulm"}'}
    messages += [
        {"role": "assistant", "content": content, "tool_calls": calls},
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "22 °C"},
    ]
    verifier.say("It is warm.")
    deltas = [one["choices"][0]["delta"] for one in await stream(client, body) if one["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is warm."


async def test_titles_and_tags_are_tasks_that_are_not_streamed(served):
    verifier, client = served
    verifier.say('{"title": "Weather"}')
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "### Task:\nName this chat."}],
        "stream": False,
        "max_completion_tokens": 1000,
    }
    reply = await client.post("/v1/chat/completions", json=body)
    assert reply.json()["choices"][0]["message"]["content"] == '{"title": "Weather"}'


async def test_models_are_listed_with_what_its_menu_shows(served):
    _, client = served
    [model] = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["object"]) == (MODEL, "model") and model["owned_by"]


async def test_a_picture_is_refused_by_its_place(served):
    _, client = served
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}}
    body = {"model": MODEL, "messages": [{"role": "user", "content": [picture]}]}
    reply = await client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("messages.0.content")
