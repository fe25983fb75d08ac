"""Answers of each family over HTTP: streamed or not, drafted or not, cut, and sent back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import AsyncClient

from tests.support.chat_models import FAMILIES, chat_tokenizer
from tests.support.scripted import ScriptedVerifier, scripted_engine
from tests.support.service import events, http_client

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
ASKED = [{"role": "user", "content": "hi"}]
ULM = '{"city": "Köln am Rhein"}'
HERMES = f'<tool_call>\n{{"name": "weather", "arguments": {ULM}}}\n</tool_call>'

# What each writes: reasoning, content and a call where the form has them.
SAID = {
    "hermes": f"<think>\nHm, so.\n</think>\n\nI look.\n{HERMES}",
    "qwen3_coder": "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\nKöln am Rhein\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama3_json": f'<|python_tag|>{{"name": "weather", "parameters": {ULM}}}',
    "pythonic": '[weather(city="Köln am Rhein")]',
    "mistral": f'I look.[TOOL_CALLS][{{"name": "weather", "arguments": {ULM}}}]',
    "mistral with [ARGS]": f"I look.[TOOL_CALLS]weather[ARGS]{ULM}",
    "openai": "<|channel|>analysis<|message|>Hm, so.<|end|><|start|>assistant<|channel|>commentary"
    "<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
    f"<|constrain|>json<|message|>{ULM}",
}
THINKS = ("hermes", "openai")
IS_SILENT = ("llama3_json", "pythonic")


@pytest.fixture(params=sorted(FAMILIES))
async def served(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[str, ScriptedVerifier, AsyncClient]]:
    tokenizer = chat_tokenizer(FAMILIES[request.param])
    ends = (tokenizer.eos_token_id,)
    verifier, engine = scripted_engine(tmp_path, tokenizer, ends)
    async with engine, http_client(engine) as client:
        yield request.param, verifier, client


async def ask(client: AsyncClient, **keys: Any) -> dict[str, Any]:
    """Return the answer to a chat; drafted, plain and streamed it must be the same."""
    body = {"messages": ASKED, "tools": [WEATHER], "temperature": 0, "max_tokens": 900, **keys}
    body["request_id"] = "same"  # and so the ids of calls
    answers = []
    for how in ("off", {"policy": "fixed", "num_draft_tokens": 7}):
        asked = body | {"speculation": how}
        reply = await client.post("/v1/chat/completions", json=asked)
        assert reply.status_code == 200, reply.text
        answers.append(reply.json())
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        reply = await client.post("/v1/chat/completions", json=asked | stream)
        answers.append(joined(events(reply.text)))
    first, *others = answers
    for other in others:
        for key in ("message", "finish_reason"):
            assert other["choices"][0][key] == first["choices"][0][key]
        assert reasoning_tokens(other) == reasoning_tokens(first)
    found: dict[str, Any] = first
    return found


def joined(chunks: list[Any]) -> dict[str, Any]:
    """Return the whole answer that chunks make up."""
    message: dict[str, Any] = {"content": ""}
    calls: list[Any] = []
    reason = None
    for chunk in chunks[:-1]:
        [choice] = chunk["choices"]
        delta = choice["delta"]
        for key in ("content", "reasoning_content", "reasoning"):
            if key in delta:
                message[key] = message.get(key, "") + delta[key]
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                calls.append({**part, "function": dict(part["function"])})
                del calls[-1]["index"]
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        reason = choice["finish_reason"] or reason
    message |= {"role": "assistant", "refusal": None}
    if calls:
        message |= {"tool_calls": calls, "content": message["content"] or None}
    choice = {"message": message, "finish_reason": reason}
    return {"choices": [choice], "usage": chunks[-1]["usage"]}


def reasoning_tokens(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["completion_tokens_details"]["reasoning_tokens"])


async def test_reasoning_content_and_calls_are_apart_in_every_way_to_be_answered(served):
    name, verifier, client = served
    verifier.say(SAID[name])
    answer = await ask(client)
    [choice] = answer["choices"]
    message = choice["message"]
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "weather" and len(call["id"]) <= 40
    assert json.loads(call["function"]["arguments"]) == json.loads(ULM)
    assert message["content"] == (None if name in IS_SILENT else "I look.")
    assert message.get("reasoning_content") == ("Hm, so." if name in THINKS else None)
    assert message.get("reasoning") == message.get("reasoning_content")
    assert choice["finish_reason"] == "tool_calls"
    assert (reasoning_tokens(answer) > 0) == (name in THINKS)


async def test_reasoning_may_be_left_out(served):
    name, verifier, client = served
    verifier.say(SAID[name])
    answer = await ask(client, include_reasoning=False)
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert (reasoning_tokens(answer) > 0) == (name in THINKS)


async def test_a_call_that_is_cut_is_handed_out_and_taken_back(served):
    name, verifier, client = served
    verifier.say(SAID[name])
    whole = len(verifier.script)
    for max_tokens in (whole - 4, whole - 12):
        answer = await ask(client, max_tokens=max_tokens)
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "length"
        message = choice["message"]
        if name != "pythonic":  # whose calls are read when they are whole
            assert message["tool_calls"][0]["function"]["arguments"].startswith('{"city"')
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "?"}
            for call in message.get("tool_calls", ())
        ]
        verifier.say("Well.")
        answer = await ask(client, messages=[*ASKED, message, *results], tools=[WEATHER])
        assert "Well" in json.dumps(answer["choices"][0]["message"])
        verifier.say(SAID[name])


async def test_an_answer_without_calls_is_content_as_it_is_written(served):
    name, verifier, client = served
    text = "Look: {1, [2]} <b> and\n\n  more. "
    verifier.say(text if name != "openai" else f"<|channel|>final<|message|>{text}")
    [choice] = (await ask(client))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")
    [choice] = (await ask(client, tools=None))["choices"]
    assert choice["message"]["content"] == text
