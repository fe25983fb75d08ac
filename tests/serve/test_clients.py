"""Bodies as clients and agents send them, over HTTP; see also the tests of each API's folder."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from diffuspec.serve.settings import ServeSettings
from tests.support.chat_models import QWEN, chat_tokenizer
from tests.support.scripted import scripted_engine
from tests.support.service import ScriptedService, fake_engine, http_client, named_events
from tests.support.weather import CALL, CITY

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED: Any = [{"role": "user", "content": "hi"}]
IGNORED = "x-diffuspec-ignored"
PLAIN = (  # as that of SmolLM2
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The model's call of a function of the namespace `mcp__maps`.
CALLED = '<tool_call>\n{"name": "mcp__maps__weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


def post(service: ScriptedService, path: str, **body: Any) -> httpx2.Response:
    return httpx2.post(service.url + path, json=body, timeout=60)


def codex(**more: Any) -> dict[str, Any]:
    """Return the body of Codex CLI 0.171, shortened."""
    weather = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}
    namespace = {"type": "namespace", "name": "mcp__maps", "description": "Maps."}
    return {
        "instructions": "You are Codex.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "parameters": {"type": "object"}},
            namespace | {"tools": [weather | {"defer_loading": True, "output_schema": {}}]},
            {"type": "web_search", "external_web_access": False},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
        "store": False,
        "stream": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "a",
        "client_metadata": {"x-codex-installation-id": "b"},
        **more,
    }


def test_codex_calls_functions_of_namespaces_and_tools_of_openai_are_left_out(
    scripted: ScriptedService,
):
    scripted.say(CALLED)
    response = post(scripted, RESPONSES, **codex())
    assert response.status_code == 200, response.text
    named = "tools.web_search, tools.custom, client_metadata"
    assert response.headers[IGNORED] == named
    call = response.json()["output"][-1]
    assert (call["type"], call["namespace"], call["name"]) == (
        "function_call",
        "mcp__maps",
        "weather",
    )
    assert [tool["type"] for tool in response.json()["tools"]] == ["function", "namespace"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
    scripted.say("It rains.")
    again = post(scripted, RESPONSES, **codex(input=[*codex()["input"], call, result]))
    assert again.json()["output"][-1]["content"][0]["text"] == "It rains."


def test_a_stream_of_codex_names_the_namespace_and_has_the_header(scripted: ScriptedService):
    scripted.say(CALLED)
    response = post(scripted, RESPONSES, **codex(stream=True))
    assert "tools.web_search" in response.headers[IGNORED]
    found = named_events(response.text)
    items = [event["item"] for event in found if "output_item" in event["type"]]
    items += found[-1]["response"]["output"]
    calls = [(item["namespace"], item["name"]) for item in items]
    assert calls == [("mcp__maps", "weather")] * 3
    [done] = [event for event in found if event["type"].endswith("arguments.done")]
    assert done["name"] == "weather" and "mcp__maps__weather" not in response.text


def test_a_namespace_s_history_has_the_name_that_the_model_knows(scripted: ScriptedService):
    call = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": "{}"}
    counted = [
        post(scripted, f"{RESPONSES}/input_tokens", input=[{"role": "user", "content": "hi"}, one])
        for one in (call | {"namespace": "mcp__maps"}, call | {"name": "mcp__maps__weather"})
    ]
    flat, whole = [response.json() for response in counted]
    assert flat == whole and flat["object"] == "response.input_tokens" and flat["input_tokens"] > 5


def test_a_runner_of_anthropic_s_sdk_is_told_to_go_on_without_a_thread(scripted: ScriptedService):
    body = {"max_tokens": 9, "messages": ASKED, "thread": {"type": "create"}}
    response = post(scripted, MESSAGES, **body)
    assert response.status_code == 400
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert response.json()["error"]["details"] == details


def test_vercel_s_reader_of_messages_gets_no_citations(scripted: ScriptedService):
    scripted.say("Yes.")
    for stream in (False, True):
        response = post(scripted, MESSAGES, max_tokens=9, messages=ASKED, stream=stream)
        assert response.status_code == 200 and "citations" not in response.text


def test_claude_code_s_keys_are_obeyed_or_ignored(scripted: ScriptedService):
    scripted.say("Yes.")
    tool = {"name": "f" * 128, "input_schema": CITY, "eager_input_streaming": True}
    response = post(
        scripted, MESSAGES, max_tokens=40, messages=ASKED, mcp_servers=[],
        context_management={"edits": []}, key_of_tomorrow=1, metadata={"user_id": "a"},
        tools=[tool, {"type": "web_search_20260318", "name": "web_search"}],
        thinking={"type": "enabled", "budget_tokens": 1024},
    )  # fmt: skip
    assert response.status_code == 200, response.text
    named = "tools.web_search_20260318, context_management, key_of_tomorrow"
    assert response.headers[IGNORED] == named


@pytest.mark.parametrize("choice", ["auto", "any"])
def test_129_tools_are_taken(scripted: ScriptedService, choice: str):
    tools = [{"name": f"mcp__{place:05}", "input_schema": CITY} for place in range(129)]
    body = {"messages": ASKED, "tools": tools, "tool_choice": {"type": choice}}
    counted = post(scripted, f"{MESSAGES}/count_tokens", **body)
    assert counted.json()["input_tokens"] > 129, counted.text


def test_inspect_s_output_format_is_the_form_of_the_answer(service: Any):
    form = {"type": "json_schema", "schema": {"const": {"a": 1}}}
    body = {"max_tokens": 40, "messages": ASKED, "temperature": 0}
    older = post(service, MESSAGES, **body, output_format=form)
    newer = post(service, MESSAGES, **body, output_config={"format": form})
    assert older.json()["content"] == newer.json()["content"]
    assert json.loads(older.json()["content"][0]["text"]) == {"a": 1}
    both = {"output_format": form, "output_config": {"format": form | {"schema": {}}}}
    assert "give one" in post(service, MESSAGES, **body, **both).json()["error"]["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_form_beside_a_demanded_call_binds_text_only(service: Any, choice: Any):
    """As openai-agents sends with an output_type, and instructor in a chat."""
    tool = {"type": "function", "function": {"name": "f", "parameters": CITY}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    response = post(
        service, CHAT, messages=ASKED, tools=[tool], tool_choice=choice, response_format=form,
        max_tokens=60, temperature=0,
    )  # fmt: skip
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "f"


def test_guidance_sends_one_form_under_two_names(service: Any):
    grammar = 'start: "Yes"'
    both = {"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}}
    answer = post(service, CHAT, messages=ASKED, max_tokens=20, **both).json()
    assert answer["choices"][0]["message"]["content"] == "Yes"
    other = both | {"guided_grammar": 'start: "No"'}
    error = post(service, CHAT, messages=ASKED, **other).json()["error"]
    assert "exclude each other" in error["message"]


@pytest.mark.parametrize("attribute", ["max_tokens=5", "lazy, temperature=0.5", "max_tokens = 5"])
def test_an_attribute_of_a_rule_that_is_not_obeyed_is_refused_by_its_name(
    service: Any, attribute: str
):
    grammar = f"start: a\na[{attribute}]: /[a-z]+/"
    response = post(service, CHAT, messages=ASKED, structured_outputs={"grammar": grammar})
    error = response.json()["error"]
    name = "temperature" if "temp" in attribute else "max_tokens"
    assert response.status_code == 400 and f"attribute {name}" in error["message"]


async def test_litellm_s_hints_are_ignored_and_named():
    hints = {"thinking": {"type": "enabled", "budget_tokens": 9}, "reasoning_effort": "low"}
    async with fake_engine() as engine, http_client(engine) as client:
        body = {"messages": ASKED, "max_tokens": 2}
        response = await client.post(CHAT, json=body | hints)
        assert response.status_code == 200
        assert response.headers[IGNORED] == "thinking, reasoning_effort"
        assert IGNORED not in (await client.post(CHAT, json=body)).headers


def test_vercel_s_item_references_are_refused_with_the_reason(scripted: ScriptedService):
    response = post(scripted, RESPONSES, input=[{"type": "item_reference", "id": "msg_1"}])
    error = response.json()["error"]
    assert response.status_code == 400 and "store: false" in error["message"]


async def test_tools_work_with_a_template_that_has_no_place_for_them(tmp_path: Path):
    tokenizer = chat_tokenizer(replace(QWEN, template=PLAIN))
    verifier, engine = scripted_engine(tmp_path, tokenizer, (tokenizer.eos_token_id,))
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
    body: dict[str, Any] = {"messages": ASKED, "tools": [tool], "max_tokens": 200}
    verifier.say(f"I look.\n{CALL}")
    async with engine, http_client(engine) as client:
        response = await client.post(CHAT, json=body)
        message = response.json()["choices"][0]["message"]
        [call] = message["tool_calls"]
        assert message["content"].strip() == "I look."
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Ulm"}'}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}
        turns = body | {"messages": [*ASKED, message, result]}
        tokens = (await client.post("/tokenize", json=turns)).json()["tokens"]
        prompt = (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    assert CALL in prompt and "<tool_response>\nRain.\n</tool_response>" in prompt
    assert prompt.startswith("<|im_start|>system\nYou can call functions.")


async def test_unknown_keys_are_logged_once_and_eight_are_named(caplog: pytest.LogCaptureFixture):
    keys = {f"zzz{place:02}": 1 for place in range(60)}
    async with fake_engine() as engine, http_client(engine) as client:
        with caplog.at_level(logging.WARNING):
            for more in (keys, keys, {f"yyy{place:02}": 1 for place in range(60)}):
                body = {"prompt": "hi", "max_tokens": 2} | more
                response = await client.post("/v1/completions", json=body)
        assert response.headers[IGNORED].split(", ") == [f"yyy{place:02}" for place in range(8)]
    lines = [message for message in caplog.messages if "has no effect" in message]
    assert len(lines) == len(set(lines)) == 64


async def test_a_strict_service_refuses_what_others_ignore():
    async with (
        fake_engine() as engine,
        http_client(engine, ServeSettings(strict=True)) as client,
    ):
        for path, body in (
            (CHAT, {"messages": ASKED, "colour": 1}),
            (RESPONSES, {"input": "hi", "client_metadata": {}}),
            (RESPONSES, {"input": "hi", "tools": [{"type": "web_search"}]}),
            (MESSAGES, {"messages": ASKED, "max_tokens": 9, "context_management": {}}),
        ):
            assert (await client.post(path, json=body)).status_code == 400
