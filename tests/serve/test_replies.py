"""Outputs as OpenAI's objects: calls of tools, log-probabilities, usage, echoes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from transformers import PreTrainedTokenizerFast

from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason, RequestOutput, StepStats, TokenLogprobs
from diffuspec.serve.openai.answers import Exchange
from diffuspec.serve.openai.jobs import Endpoint, Generation, Job
from diffuspec.serve.openai.replies import make_reply
from diffuspec.serve.openai.token_texts import TextOffsets, TokenTexts
from diffuspec.serve.openai.tool_calls import call_id
from diffuspec.text.prompt import ChatOptions
from tests.support.checkpoints import byte_tokenizer, words_tokenizer
from tests.support.weather import CALL

CHAT: Endpoint = "/v1/chat/completions"
TEXT: Endpoint = "/v1/completions"
TOOLS: Any = ({"type": "function", "function": {"name": "weather"}},)
TOKENIZER = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="<|end|>")
WITH_TOOLS = ChatOptions(TOOLS)
FIRST = call_id("chatcmpl-7-0-0", is_short=False)


def reply_to(endpoint: Endpoint, num_choices: int = 1, **options: Any) -> Any:
    sampling = options.pop("sampling", SamplingParams())
    job = Job(endpoint, ("hi",), num_choices, sampling, None, None, **options)
    generations = [
        Generation(index, np.array([1, 2], np.int32), sampling) for index in range(num_choices)
    ]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer())
    return make_reply(Exchange(job, generations, tokenizer, "7", "m", 5))


def choice_of(endpoint: Endpoint, *outputs: RequestOutput, **options: Any) -> Any:
    """Return the only choice of a whole reply to these outputs."""
    reply = reply_to(endpoint, **options)
    for one in outputs:
        reply.add(0, one)
    [choice] = reply.whole()["choices"]
    return choice


def output(text: str, is_last: bool = False, **changes: Any) -> RequestOutput:
    """An output of a step that drafted four tokens, of which two were accepted."""
    reason = FinishReason.STOP if is_last else None
    step = StepStats(
        4, 4, 2, 3, draft_seconds=0.1, step_seconds=0.3, verify_seconds=0.2, verify_idle_seconds=0.1
    )
    values = {"logprobs": None, "token_ids": (65, 66, 67)} | changes
    pieces = (text, *("" for _ in values["token_ids"][1:]))
    return RequestOutput(
        num_accepted_tokens=2, pieces=pieces, text=text, finish_reason=reason, step=step, **values
    )


def test_a_call_of_a_tool_takes_the_place_of_its_text():
    parts = output("I look." + CALL[:20]), output(CALL[20:], is_last=True)
    choice = choice_of(CHAT, *parts, chat=WITH_TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": "I look.", "refusal": None}
    assert call == {
        "id": FIRST,
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
    }


def test_the_role_of_an_answer_is_that_of_its_job():
    reply = reply_to(CHAT, role="user")
    [first] = reply.begin()
    reply.add(0, output("x", is_last=True))
    [choice] = reply.whole()["choices"]
    assert first["choices"][0]["delta"]["role"] == choice["message"]["role"] == "user"


def test_calls_are_streamed_in_parts_and_numbered():
    reply = reply_to(CHAT, chat=WITH_TOOLS)
    chunks = [reply.chunk(0, output(CALL[:50])), reply.chunk(0, output(CALL[50:] + CALL))]
    chunks.append(reply.chunk(0, output("", is_last=True)))
    choices = [chunk["choices"][0] for chunk in chunks if chunk is not None]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    names = [call["function"].get("name") for call in calls]
    assert names == ["weather", None, "weather"]
    assert [call["index"] for call in calls] == [0, 0, 1]
    assert [call["id"] for call in calls if "id" in call] == [
        FIRST,
        call_id("chatcmpl-7-0-1", is_short=False),
    ]
    for index in (0, 1):
        parts = [one["function"]["arguments"] for one in calls if one["index"] == index]
        assert "".join(parts) == '{"city": "Ulm"}'
    assert not any(choice["delta"].get("content") for choice in choices)
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_call_that_the_request_names_ends_with_stop_as_openai_has_it():
    choice = choice_of(CHAT, output(CALL, is_last=True), chat=WITH_TOOLS, is_call_named=True)
    assert choice["finish_reason"] == "stop" and choice["message"]["content"] is None


@pytest.mark.parametrize(
    ("text", "reason"), [(CALL[:-20], "stop"), (CALL.partition("\n</")[0], "tool_calls")]
)
def test_a_call_that_a_stop_string_cuts_is_none_to_carry_out(text: str, reason: str):
    last = output(text, is_last=True, stop_reason="x")
    chunk = reply_to(CHAT, chat=WITH_TOOLS).chunk(0, last)
    assert chunk is not None and chunk["choices"][0]["finish_reason"] == reason
    assert choice_of(CHAT, last, chat=WITH_TOOLS)["finish_reason"] == reason


def test_without_tools_a_call_is_text():
    choice = choice_of(CHAT, output(CALL, is_last=True))
    assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"


def test_logprobs_have_texts_and_bytes_and_are_finite():
    found = (TokenLogprobs(-math.inf, ((66, -0.5), (200, -math.inf))),)
    sampling = SamplingParams(logprobs=2)
    tokenizer = byte_tokenizer()
    [euro] = [tokenizer.encode("€").ids]
    last = output("", True, token_ids=(euro[0],), logprobs=found)
    choice = choice_of(CHAT, last, sampling=sampling)
    [token] = choice["logprobs"]["content"]
    assert (token["token"], token["bytes"], token["logprob"]) == ("\ufffd", [0xE2], -9999.0)
    assert len(token["top_logprobs"]) == 2
    choice = choice_of(TEXT, last, sampling=sampling)
    assert choice["logprobs"]["token_logprobs"] == [-9999.0]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xe2"]
    assert choice["logprobs"]["top_logprobs"][0]["bytes:\\xe2"] == -9999.0
    assert len(choice["logprobs"]["top_logprobs"][0]) == 3


@pytest.mark.parametrize("endpoint", [CHAT, TEXT])
def test_logprobs_may_name_tokens_by_their_ids(endpoint: Endpoint):
    sampling = SamplingParams(logprobs=2)
    last = output("A", True, token_ids=(65,), logprobs=ANSWER)
    found = choice_of(endpoint, last, sampling=sampling, names_tokens_by_id=True)["logprobs"]
    if endpoint == CHAT:
        [token] = found["content"]
        assert [one["token"] for one in token["top_logprobs"]] == ["token_id:65", "token_id:5"]
        assert (token["token"], token["bytes"]) == ("token_id:65", [*TokenTexts(TOKENIZER).raw(65)])
    else:
        assert found["tokens"] == ["token_id:65"]
        assert found["top_logprobs"] == [{"token_id:65": -0.25, "token_id:5": -3.0}]


def test_text_offsets_of_a_stream_are_right_while_text_is_held_back():
    reply = reply_to(TEXT, sampling=SamplingParams(logprobs=0))
    ids = byte_tokenizer().encode("a€bc").ids  # each byte is a token
    found = (TokenLogprobs(-1.0, ()),)
    texts = ["a", "", "", "", "€b", "c"]  # a stop string could begin with €
    chunks = [
        reply.chunk(0, output(text, token_ids=(token_id,), logprobs=found))
        for text, token_id in zip(texts, ids, strict=True)
    ]
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks if chunk]
    assert offsets == [[0], [1], [1], [1], [2], [3]]


@pytest.mark.parametrize(("echoed", "places"), [("<|end|>", [0, 7, 8]), ("", [0, 0, 1])])
def test_a_special_token_has_a_place_in_a_prompt_that_shows_it_and_none_in_an_answer(
    echoed, places
):
    offsets = TextOffsets(TokenTexts(TOKENIZER))
    end, a = (TOKENIZER.get_vocab()[one] for one in ("<|end|>", "a"))
    assert offsets.of([end, a, end], 1, echoed) == places


def test_a_special_token_has_a_place_in_an_answer_that_shows_it():
    sampling = SamplingParams(logprobs=0, skip_special_tokens=False)
    ids = tuple(TOKENIZER.encode("<|end|>a"))
    last = output("<|end|>a", True, token_ids=ids, logprobs=(TokenLogprobs(-1.0, ()),) * 2)
    assert choice_of(TEXT, last, sampling=sampling)["logprobs"]["text_offset"] == [0, 7]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "é", "€", "🎉", b"\xe2", b"\x82", b"\xf0\x9f"]), max_size=9))
def test_places_are_those_of_the_characters_that_tokens_begin(parts):
    raw = b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
    texts = TokenTexts(TOKENIZER)
    ids = {texts.raw(token_id)[0]: token_id for token_id in range(256)}
    found = TextOffsets(texts).of([ids[byte] for byte in raw])
    for place, offset in enumerate(found):
        if not 0x80 <= raw[place] < 0xC0:
            assert offset == len(raw[:place].decode(errors="replace"))


def test_tokens_that_begin_with_a_space_keep_it():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words_tokenizer())
    texts = TokenTexts(tokenizer)
    ids = tokenizer.get_vocab()
    found = [texts.name(ids[one]) for one in ("▁Paris", "Paris", "<0xE6>")]
    assert found == [" Paris", "Paris", "bytes:\\xe6"]


PROMPT = (TokenLogprobs(-2.5, ((5, -0.5), (2, -2.5))),)  # of the token 2 after the token 1
ANSWER = (TokenLogprobs(-0.25, ((65, -0.25), (5, -3.0))),)


def test_echoed_prompts_have_log_probabilities_but_for_the_first_token():
    sampling = SamplingParams(logprobs=2, prompt_logprobs=2)
    found = {"token_ids": (65,), "logprobs": ANSWER, "prompt_logprobs": PROMPT}
    choice = choice_of(TEXT, output("!", is_last=True, **found), sampling=sampling, echo=True)
    logprobs = choice["logprobs"]
    assert choice["text"] == "hi!" and len(logprobs["tokens"]) == 3
    assert logprobs["token_logprobs"] == [None, -2.5, -0.25]
    assert logprobs["top_logprobs"][0] is None
    assert sorted(logprobs["top_logprobs"][1].values()) == [-2.5, -0.5]
    assert logprobs["text_offset"] == [0, 1, 2]


def test_token_ids_of_a_prompt_stand_where_vllm_has_them():
    chat = reply_to(CHAT, num_choices=2, return_token_ids=True)
    begun = chat.begin()
    assert [one.get("prompt_token_ids") for one in begun] == [[1, 2], None]
    chunks = [chat.chunk(index, output("a", is_last=True)) for index in (0, 1)]
    assert all("prompt_token_ids" not in str(chunk) for chunk in chunks)
    whole = chat.whole()
    assert whole["prompt_token_ids"] == [1, 2]
    assert [list(one).count("prompt_token_ids") for one in whole["choices"]] == [0, 0]
    text = reply_to(TEXT, return_token_ids=True)
    chunk = text.chunk(0, output("a", is_last=True))
    assert chunk is not None and chunk["choices"][0]["prompt_token_ids"] == [1, 2]
    assert text.whole()["choices"][0]["prompt_token_ids"] == [1, 2]
    echo = reply_to(TEXT, return_token_ids=True, echo=True)
    [chunk] = echo.begin()
    assert chunk["choices"][0]["prompt_token_ids"] == [1, 2]
    chunk = echo.chunk(0, output("a", is_last=True))
    assert chunk is not None and "prompt_token_ids" not in chunk["choices"][0]


def test_a_prompt_that_was_cut_is_echoed_as_it_was_read():
    choice = choice_of(TEXT, output("!", is_last=True), echo=True, max_prompt_tokens=2)
    assert choice["text"] == byte_tokenizer().decode([1, 2]) + "!"


@pytest.mark.parametrize("endpoint", [CHAT, TEXT])
@pytest.mark.parametrize("reason", ["END", 67, None])
def test_every_choice_tells_what_ended_it(endpoint: Endpoint, reason: str | int | None):
    replies = [reply_to(endpoint), reply_to(endpoint)]
    last = output("b", is_last=True, stop_reason=reason)
    replies[0].add(0, output("a"))
    replies[0].add(0, last)
    assert replies[0].whole()["choices"][0]["stop_reason"] == reason
    chunks = [*replies[1].begin(), replies[1].chunk(0, output("a")), replies[1].chunk(0, last)]
    found = [chunk["choices"][0]["stop_reason"] for chunk in chunks if chunk is not None]
    assert found == [*[None] * (len(found) - 1), reason]


def test_a_prompt_alone_has_no_token_of_an_answer():
    sampling = SamplingParams(logprobs=2, prompt_logprobs=2, max_tokens=1)
    reply = reply_to(TEXT, sampling=sampling, echo=True, is_prompt_only=True)
    found = {"token_ids": (65,), "logprobs": ANSWER, "prompt_logprobs": PROMPT, "stop_reason": "!"}
    reply.add(0, output("!", is_last=True, **found))
    whole = reply.whole()
    [choice] = whole["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
    assert choice["stop_reason"] is None
    assert choice["logprobs"]["token_logprobs"] == [None, -2.5]
    assert whole["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("endpoint", [CHAT, TEXT])
def test_log_probabilities_of_prompts_have_vllms_form(endpoint: Endpoint):
    reply = reply_to(endpoint, sampling=SamplingParams(prompt_logprobs=2), reports_prompt=True)
    reply.add(0, output("!", is_last=True, prompt_logprobs=PROMPT))
    whole = reply.whole()
    first, second = (whole if endpoint == CHAT else whole["choices"][0])["prompt_logprobs"]
    assert first is None and second["2"]["logprob"] == -2.5
    assert {token_id: one["rank"] for token_id, one in second.items()} == {"5": 1, "2": 2}


def test_a_prompts_own_token_has_its_rank_below_the_likeliest():
    last = output("!", is_last=True, prompt_logprobs=(TokenLogprobs(-9.5, ((5, -0.5),), 77),))
    sampling = SamplingParams(prompt_logprobs=1)
    choice = choice_of(TEXT, last, sampling=sampling, reports_prompt=True)
    _, second = choice["prompt_logprobs"]
    assert {token_id: one["rank"] for token_id, one in second.items()} == {"5": 1, "2": 77}


def test_usage_counts_a_prompt_once_and_drafts_by_position():
    reply = reply_to(TEXT, num_choices=2, prediction="ab")
    first = output("a")
    first = replace(first, step=replace(first.step, num_cached_tokens=1))
    for index in (0, 1):
        reply.add(index, first)
        reply.add(index, output("b", is_last=True))
    usage = reply.whole()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2, 12)
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 8
    speculation = usage["speculation"]
    assert (speculation["draft_tokens"], speculation["accepted_tokens"]) == (16, 8)
    assert (speculation["steps"], speculation["acceptance_length"]) == (4, 3.0)
    assert speculation["acceptance_by_position"] == [1.0, 1.0]
    assert speculation["estimated_speedup"] == 2.0  # 3 tokens a step, of which 2/3 is the target


def test_an_answer_without_drafts_is_as_fast_as_plain_decoding():
    reply = reply_to(TEXT)
    step = StepStats(0, 0, 0, 1, verify_seconds=0.2, step_seconds=0.3, verify_idle_seconds=0.1)
    reply.add(0, replace(output("a", token_ids=(65,)), step=step))
    reply.add(0, replace(output("b", is_last=True, token_ids=(66,)), step=step))
    assert reply.whole()["usage"]["speculation"]["estimated_speedup"] == 1.0


def test_drafts_count_as_predicted_where_there_was_a_prediction_alone():
    reply = reply_to(TEXT)
    reply.add(0, output("a", is_last=True))
    details = reply.whole()["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0


def test_chunks_without_anything_new_are_not_sent():
    begun = reply_to(CHAT, chat=WITH_TOOLS)
    assert [begun.chunk(0, output(CALL[:20])), begun.chunk(0, output(CALL[20:24]))] == [None, None]
    assert begun.chunk(0, output(CALL[24:])) is not None
    assert reply_to(TEXT).chunk(0, output("")) is None
    assert reply_to(TEXT, return_token_ids=True).chunk(0, output("")) is not None
