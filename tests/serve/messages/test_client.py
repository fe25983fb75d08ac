"""Anthropic's own client against a service that says what a test has written."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.types import Verdict, VerifyRequest
from diffuspec.serve.http.keys import add_key
from diffuspec.serve.settings import ServeSettings
from tests.support.checkpoints import NUM_IDS
from tests.support.fakes import FAKE_TARGET, FakeVerifier
from tests.support.service import (
    MODEL,
    ScriptedService,
    Service,
    fake_engine,
    named_events,
    serving,
)
from tests.support.weather import CITY, PARIS_OR_ROME, SAID

if TYPE_CHECKING:
    from anthropic import Anthropic

WEATHER: Any = {"name": "weather", "description": "Tells it.", "input_schema": CITY}
ASKED: Any = [{"role": "user", "content": "Hm?"}]
HOW: Any = {"model": MODEL, "messages": ASKED, "max_tokens": 900}


@pytest.fixture(scope="module")
def anthropic() -> Any:
    """The package, whose import takes seconds that other workers can spare."""
    import anthropic

    return anthropic


@pytest.fixture(scope="module")
def client(anthropic: Any, scripted: ScriptedService) -> Iterator[Anthropic]:
    with anthropic.Anthropic(base_url=scripted.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def drafting(anthropic: Any, service: Service) -> Iterator[Anthropic]:
    """A client of the embedded pair."""
    with anthropic.Anthropic(base_url=service.url, api_key="none", max_retries=0) as client:
        yield client


def plain(block: Any) -> Any:
    """Return a block without what the client adds to it."""
    return block.model_dump(exclude={"parsed_output"})


def test_a_text_is_answered_with_usage(scripted: ScriptedService, client: Anthropic):
    scripted.say("Paris, of course.")
    answer = client.messages.create(**HOW, system=[{"type": "text", "text": "Be brief."}])
    [text] = answer.content
    assert text.type == "text" and text.text == "Paris, of course."
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    assert usage.output_tokens == len("Paris, of course.") + 1
    counted = client.messages.count_tokens(model=MODEL, messages=ASKED, system="Be brief.")
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens


def test_thinking_text_and_calls_are_blocks_in_their_order(
    scripted: ScriptedService, client: Anthropic
):
    scripted.say(SAID)
    thinking, text, *calls = client.messages.create(**HOW, tools=[WEATHER]).content
    assert thinking.type == "thinking" and thinking.thinking == "Hm, so." and thinking.signature
    assert text.type == "text" and text.text == "I look."
    assert [call.type for call in calls] == ["tool_use"] * 2
    assert all(call.type == "tool_use" and call.input == {"city": "Ulm"} for call in calls)


def test_a_stream_adds_up_to_the_answer(scripted: ScriptedService, client: Anthropic):
    scripted.say(SAID)
    how = HOW | {"tools": [WEATHER], "extra_headers": {"x-request-id": "same"}}
    whole = client.messages.create(**how)
    with client.messages.stream(**how) as stream:
        events = [event for event in stream if hasattr(event, "index") or "message" in event.type]
        streamed = stream.get_final_message()
    assert [plain(one) for one in streamed.content] == [plain(one) for one in whole.content]
    assert streamed.id == whole.id
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in events]
    shown = [kind for place, kind in enumerate(kinds) if kind != kinds[place - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert shown == ["message_start", *block * 4, "message_delta", "message_stop"]
    assert [one.index for one in events if one.type == "content_block_start"] == [0, 1, 2, 3]


def test_events_are_named_and_a_ping_follows_the_first(scripted: ScriptedService):
    scripted.say("Yes.")
    body = HOW | {"stream": True, "speculation": "off"}  # then a step is a token
    data = named_events(httpx2.post(f"{scripted.url}/v1/messages", json=body).text)
    names = [one["type"] for one in data]
    assert names[:2] == ["message_start", "ping"] and names[-1] == "message_stop"
    begun, whole = data[0]["message"]["usage"], data[-2]["usage"]
    assert begun["input_tokens"] >= 0
    assert "speculation" not in begun and whole["speculation"]["steps"] == 5


def test_an_answer_and_the_results_of_its_calls_are_taken_back(
    scripted: ScriptedService, client: Anthropic
):
    scripted.say(SAID)
    first = client.messages.create(**HOW, tools=[WEATHER])
    results = [
        {"type": "tool_result", "tool_use_id": one.id, "content": "Rain."}
        for one in first.content
        if one.type == "tool_use"
    ]
    scripted.say("It rains.")
    turns: Any = [*ASKED, first.to_param(), {"role": "user", "content": results}]
    answer = client.messages.create(**HOW | {"messages": turns}, tools=[WEATHER])
    [text] = answer.content
    assert text.type == "text" and text.text == "It rains."


def test_why_an_answer_ended_is_told(scripted: ScriptedService, client: Anthropic):
    scripted.say("Paris, of course.")
    cut = client.messages.create(**HOW | {"max_tokens": 5})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 5)
    stopped = client.messages.create(**HOW, stop_sequences=[", of", "x"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", ", of")
    scripted.say("x" * 500)
    long: Any = [{"role": "user", "content": "x" * 3900}]  # of 4096 tokens
    full = client.messages.create(**HOW | {"messages": long})
    assert full.stop_reason == "model_context_window_exceeded"
    scripted.say(SAID)
    broken = client.messages.create(**HOW | {"max_tokens": 115}, tools=[WEATHER])
    assert broken.stop_reason == "max_tokens" and broken.content[-1].type == "tool_use"


def test_an_answer_that_is_begun_goes_on(scripted: ScriptedService, client: Anthropic):
    scripted.say(" is Paris.")
    begun: Any = [*ASKED, {"role": "assistant", "content": "The capital"}]
    [text] = client.messages.create(**HOW | {"messages": begun}).content
    assert text.type == "text" and text.text == " is Paris."


def test_thinking_can_be_switched(scripted: ScriptedService, client: Anthropic):
    def count(thinking: Any) -> int:
        how: Any = {"model": MODEL, "messages": ASKED, "thinking": thinking}
        return client.messages.count_tokens(**how).input_tokens

    enabled, adaptive = count({"type": "enabled", "budget_tokens": 9}), count({"type": "adaptive"})
    assert enabled == adaptive < count({"type": "disabled"})  # which has an empty <think>
    scripted.say(SAID)
    omitted: Any = {"type": "adaptive", "display": "omitted"}
    assert client.messages.create(**HOW, thinking=omitted).content[0].type == "text"


def test_calls_can_be_demanded_and_inputs_fit_their_schemas(drafting: Anthropic):
    short = {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"}
    schema = CITY | {"properties": {"city": short}, "additionalProperties": False}
    tool = WEATHER | {"input_schema": schema, "strict": True}
    how = HOW | {"max_tokens": 80, "extra_body": {"temperature": 0}}
    how |= {"tools": [tool, tool | {"name": "other"}]}
    choices: Any = [
        {"type": "tool", "name": "weather"},
        {"type": "any", "disable_parallel_tool_use": True},
    ]
    for choice in choices:
        answer = drafting.messages.create(**how, tool_choice=choice)
        [call] = answer.content
        assert call.type == "tool_use" and answer.stop_reason == "tool_use"
        assert isinstance(call.input, dict) and set(call.input) == {"city"}
    [text] = drafting.messages.create(**how, tool_choice={"type": "none"}).content
    assert text.type == "text"


def test_a_text_has_the_form_that_is_asked_for(drafting: Anthropic):
    form: Any = {"format": {"type": "json_schema", "schema": PARIS_OR_ROME}}
    how = HOW | {"max_tokens": 40, "extra_body": {"temperature": 0}}
    [text] = drafting.messages.create(**how, output_config=form).content
    assert text.type == "text" and json.loads(text.text)["city"] in ("Paris", "Rome")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"messages": []}, "messages must have"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0"),
        ({"tools": [{"type": "custm", "name": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "'n'"),
        ({"messages": [{"role": "user", "content": "x" * 100_000}]}, "maximum context length"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_its_name(
    anthropic: Any, client: Anthropic, body: Any, named: str
):
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**HOW, extra_body=body)
    assert caught.value.type == "invalid_request_error"
    assert named in (caught.value.api_message or "")


def test_the_sdk_s_runner_of_tools_goes_on_without_a_thread(
    scripted: ScriptedService, anthropic: Any, client: Anthropic
):
    cities = []

    def weather(city: str) -> str:
        """Tells the weather of a city."""
        cities.append(city)
        scripted.say("It rains.")
        return "Rain."

    scripted.say(SAID)
    how = {**HOW, "tools": [anthropic.beta_tool(weather)]}
    *_, last = client.beta.messages.tool_runner(**how)
    assert cities == ["Ulm", "Ulm"] and last.content[0].text == "It rains."


def test_the_model_is_listed(client: Anthropic):
    [model] = client.models.list()
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert client.models.retrieve(MODEL).created_at == model.created_at is not None


def test_errors_have_the_shape_and_the_statuses_of_anthropic(anthropic: Any, client: Anthropic):
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**HOW | {"model": "another"})
    assert missing.value.type == "not_found_error"
    assert isinstance(missing.value.body, dict)
    assert missing.value.body["request_id"] == missing.value.request_id is not None
    with pytest.raises(anthropic.APIStatusError) as large:
        client.messages.create(**HOW, extra_body={"metadata": {"user_id": "x" * 1_100_000}})
    assert (large.value.status_code, large.value.type) == (413, "request_too_large")


class _Paused(FakeVerifier):
    """A verifier that another thread can have wait after the first step of an answer."""

    def __init__(self, info: TargetInfo) -> None:
        super().__init__(info)
        self.may_answer = threading.Event()
        self.may_answer.set()

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        is_first = all(len(one.prefix) == one.num_prompt_tokens for one in requests)
        while not (is_first or self.may_answer.is_set()):
            await asyncio.sleep(0.001)
        return await super().verify(requests)


def test_a_full_queue_and_keys_are_told_in_the_same_shape(anthropic: Any, tmp_path: Path):
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "alice", max_requests=1)
    add_key(keys, "bob")
    verifier = _Paused(replace(FAKE_TARGET, vocab_size=NUM_IDS))
    with serving(lambda: fake_engine(verifier), ServeSettings(api_keys=keys)) as service:
        known = anthropic.Anthropic(base_url=service.url, api_key=key, max_retries=0)
        assert known.messages.create(**HOW | {"max_tokens": 3}).usage.output_tokens == 3
        bearer = anthropic.Anthropic(
            base_url=service.url, auth_token=key, api_key=None, max_retries=0
        )
        assert bearer.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens
        stranger = anthropic.Anthropic(base_url=service.url, api_key="ds-wrong", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError) as caught:
            stranger.messages.create(**HOW)
        assert caught.value.type == "authentication_error"
        verifier.may_answer.clear()
        with known.messages.create(**HOW, stream=True), pytest.raises(anthropic.RateLimitError):
            known.messages.create(**HOW)
        verifier.may_answer.set()
        known.close(), bearer.close(), stranger.close()
