"""OpenAI's own client of the Responses API against a service that says what a test has written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.service import MODEL, ScriptedService
from tests.support.weather import CITY, PARIS_OR_ROME, SAID

WEATHER: Any = {"type": "function", "name": "weather", "parameters": CITY, "strict": False}


@pytest.fixture(scope="module")
def asked(scripted: ScriptedService) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def plain(item: Any) -> Any:
    """Return an output item without what the client adds to it."""
    dumped = item.model_dump(exclude={"parsed_arguments"})
    for part in dumped.get("content") or ():
        part.pop("parsed", None)
    return dumped


def test_a_text_is_answered_with_usage(scripted: ScriptedService, asked: OpenAI):
    scripted.say("Paris, of course.")
    answer = asked.responses.create(
        model=MODEL, input="What is the capital of France?", instructions="Be brief.",
        metadata={"a": "b"}, temperature=0, max_output_tokens=50,
    )  # fmt: skip
    assert (answer.output_text, answer.status) == ("Paris, of course.", "completed")
    assert answer.metadata == {"a": "b"} and answer.instructions == "Be brief."
    assert answer.model_extra is not None and answer.model_extra["store"] is False
    [message] = answer.output
    assert (message.type, message.status) == ("message", "completed")
    usage = answer.usage
    assert usage is not None and usage.output_tokens == len("Paris, of course.") + 1
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    details = usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == usage.input_tokens


def test_reasoning_text_and_calls_are_items_in_their_order(
    scripted: ScriptedService, asked: OpenAI
):
    scripted.say(SAID)
    answer = asked.responses.create(model=MODEL, input="Hm?", tools=[WEATHER])
    reasoning, message, *calls = answer.output
    assert reasoning.type == "reasoning" and reasoning.content is not None
    assert (reasoning.content[0].text, reasoning.summary) == ("Hm, so.", [])
    assert message.type == "message" and answer.output_text == "I look."
    assert [call.type for call in calls] == ["function_call"] * 2
    assert {(call.name, call.arguments) for call in calls} == {("weather", '{"city": "Ulm"}')}
    assert len({call.call_id for call in calls}) == len({one.id for one in answer.output}) - 2 == 2
    assert answer.usage is not None and answer.usage.output_tokens_details.reasoning_tokens > 0


def test_a_stream_adds_up_to_the_answer_in_numbered_events(
    scripted: ScriptedService, asked: OpenAI
):
    scripted.say(SAID)
    how: Any = {"model": MODEL, "input": "Hm?", "tools": [WEATHER], "temperature": 0}
    how["extra_headers"] = {"x-request-id": "same"}  # and so the ids of items
    whole = asked.responses.create(**how)
    with asked.responses.stream(**how) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    parts = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done"]
    text = [*parts, "output_item.done"]
    call = ["output_item.added", "{}.delta", "{}.done", "output_item.done"]
    named = [*(one.format("reasoning_text") for one in text)]
    named += [one.format("output_text") for one in text]
    named += [one.format("function_call_arguments") for one in call * 2]
    kinds = [event.type.removeprefix("response.") for event in events]
    shown = [kind for place, kind in enumerate(kinds) if kind != kinds[place - 1]]
    assert shown == ["created", "in_progress", *named, "completed"]
    assert [plain(one) for one in streamed.output] == [plain(one) for one in whole.output]
    assert streamed.usage is not None and whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_an_answer_and_the_results_of_its_calls_are_taken_back(
    scripted: ScriptedService, asked: OpenAI
):
    scripted.say(SAID)
    first = asked.responses.create(model=MODEL, input="Hm?", tools=[WEATHER])
    results = [
        {"type": "function_call_output", "call_id": one.call_id, "output": "Rain."}
        for one in first.output
        if one.type == "function_call"
    ]
    scripted.say("It rains.")
    turns: Any = [{"role": "user", "content": "Hm?"}, *first.output, *results]
    answer = asked.responses.create(model=MODEL, input=turns, tools=[WEATHER])
    assert answer.output_text == "It rains."


def test_an_answer_that_is_cut_says_so(scripted: ScriptedService, asked: OpenAI):
    scripted.say("Paris, of course.")
    answer = asked.responses.create(model=MODEL, input="Where?", max_output_tokens=5)
    assert (answer.status, answer.output_text) == ("incomplete", "Paris")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    with asked.responses.stream(model=MODEL, input="Where?", max_output_tokens=5) as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete" and last.response.output_text == "Paris"


def test_an_empty_answer_has_an_empty_message(scripted: ScriptedService, asked: OpenAI):
    scripted.say("")
    assert asked.responses.create(model=MODEL, input="Where?").output_text == ""
    with asked.responses.stream(model=MODEL, input="Where?") as stream:
        assert stream.get_final_response().output[0].type == "message"


def test_logprobs_are_those_of_the_text(client: OpenAI):
    answer = client.responses.create(
        model=MODEL, input="What is the capital of France?", temperature=0, max_output_tokens=8,
        include=["message.output_text.logprobs"], top_logprobs=2,
    )  # fmt: skip
    [message] = answer.output
    assert message.type == "message" and message.content[0].type == "output_text"
    logprobs = message.content[0].logprobs
    assert logprobs is not None and {len(one.top_logprobs) for one in logprobs} == {2}
    assert "".join(one.token for one in logprobs) == answer.output_text


def test_a_text_has_the_form_that_is_asked_for(client: OpenAI):
    form: Any = {"type": "json_schema", "name": "city", "schema": PARIS_OR_ROME}
    answer = client.responses.create(
        model=MODEL, input="Which?", text={"format": form}, temperature=0, max_output_tokens=40
    )
    assert json.loads(answer.output_text)["city"] in ("Paris", "Rome")
    assert answer.text is not None and answer.text.format is not None
    assert answer.text.format.type == "json_schema"


def test_functions_may_be_demanded_and_allowed(client: OpenAI):
    clock: Any = {"type": "function", "name": "clock", "parameters": None, "strict": False}
    how: Any = {"model": MODEL, "input": "Which?", "tools": [WEATHER, clock]}
    how |= {"temperature": 0, "max_output_tokens": 60}
    named = {"type": "function", "name": "clock"}
    choices: Any = [named, {"type": "allowed_tools", "mode": "required", "tools": [named]}]
    for choice in choices:
        answer = client.responses.create(**how, tool_choice=choice, parallel_tool_calls=False)
        [call] = answer.output
        assert call.type == "function_call" and call.name == "clock"
        assert answer.tool_choice is not None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "functoin"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"if": {}}}}}, "text.format"),
        ({"text": {"verbosity": "much"}}, "text.verbosity"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": "x" * 100_000}, "input"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_its_name(client: OpenAI, body: Any, param: str):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="x", extra_body=body)
    assert caught.value.param == param
    assert param.split(".")[0] in caught.value.message or "context" in caught.value.message


def test_stored_answers_are_not_found(client: OpenAI):
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.retrieve("resp_1")
    assert "stores no answers" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="another", input="x")
