"""Calls of functions, asked for with OpenAI's own client from the embedded pair."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

from diffuspec.serve.openai.tool_calls import read_arguments
from tests.support.service import MODEL

ASKED: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}
HOW: dict[str, Any] = {
    "model": MODEL,
    "messages": ASKED,
    "tools": [WEATHER, CLOCK],
    "max_tokens": 200,
}
OFF = {"speculation": "off", "return_token_ids": True}
ON = {"speculation": {"policy": "fixed"}, "return_token_ids": True}


def calls(choice: Any) -> list[Any]:
    return list(choice.message.tool_calls)


def named(name: str) -> Any:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1, "seed": 5}])
def test_a_demanded_call_is_valid_and_the_same_with_drafting_on_and_off(client: OpenAI, sampling):
    how = HOW | sampling | {"tool_choice": "required", "parallel_tool_calls": False}
    found = [client.chat.completions.create(**how, extra_body=extra) for extra in (ON, OFF)]
    drafted, plain = (reply.choices[0] for reply in found)
    assert drafted.model_extra["token_ids"] == plain.model_extra["token_ids"]
    assert drafted.finish_reason == "tool_calls" and drafted.message.content is None
    [call] = calls(drafted)
    arguments = json.loads(call.function.arguments)
    if call.function.name == "weather":
        Draft202012Validator(PARAMETERS).validate(arguments)
    else:
        assert (call.function.name, arguments) == ("clock", {})


def test_a_named_function_is_called_and_the_stream_adds_up_to_the_same_call(client: OpenAI):
    how = HOW | {"temperature": 1, "seed": 3, "tool_choice": named("weather")}
    whole = client.chat.completions.create(**how).choices[0]
    with client.chat.completions.stream(**how) as events:
        parts = [one for one in events if one.type == "tool_calls.function.arguments.delta"]
        streamed = events.get_final_completion().choices[0]
    [expected], [call] = calls(whole), calls(streamed)
    assert whole.finish_reason == streamed.finish_reason == "stop"
    assert call.function.name == expected.function.name == "weather"
    assert call.function.arguments == expected.function.arguments
    assert len([part for part in parts if part.arguments_delta]) > 1
    Draft202012Validator(PARAMETERS).validate(json.loads(call.function.arguments))


@pytest.mark.parametrize("is_streamed", [False, True])
def test_calls_and_their_results_may_be_sent_back(client: OpenAI, is_streamed: bool):
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    how = HOW | {"temperature": 0, "tool_choice": named("weather"), "tools": [strict]}
    if is_streamed:
        with client.chat.completions.stream(**how) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = client.chat.completions.create(**how).choices[0].message
    [call] = message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": "12:30"}
    messages = [*ASKED, message.model_dump(), result]
    reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[CLOCK])
    assert reply.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_a_schema_that_cannot_be_is_refused_by_tools_and_the_tool_s_name(client: OpenAI):
    wrong = {"type": "function", "function": {"name": "find", "parameters": {"type": "secret"}}}
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(**HOW | {"tools": [wrong], "tool_choice": "required"})
    assert caught.value.param == "tools" and "tool find cannot be" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_strict_function_lets_the_model_answer_in_words(client: OpenAI):
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    replies = [
        client.chat.completions.create(**HOW | {"tools": tools, "temperature": 0, "max_tokens": 24})
        for tools in ([strict], [WEATHER])
    ]
    assert replies[0].choices[0].message == replies[1].choices[0].message


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": 1e999}', "[1]", "no JSON"])
def test_arguments_that_are_no_object_of_json_are_the_member_of_one(text: str):
    found = read_arguments(text)
    assert list(found) == ["arguments"]
    json.dumps(found, allow_nan=False)
