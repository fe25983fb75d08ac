"""Every key of the newest clients, and of other servers: obeyed, ignored, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anthropic.types.beta.message_count_tokens_params as beta_count
import anthropic.types.beta.message_create_params as beta_messages
import anthropic.types.message_count_tokens_params as count
import anthropic.types.message_create_params as messages
import openai.types.chat.completion_create_params as chats
import openai.types.completion_create_params as texts
import openai.types.responses.input_token_count_params as input_count
import openai.types.responses.response_create_params as responses
import pytest

from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.messages.bodies import CountBody, MessagesBody
from diffuspec.serve.openai.bodies import ChatBody, CompletionBody
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.forms import WORDS
from diffuspec.serve.openai.jobs import Job
from diffuspec.serve.openai.key_table import LABELS, OTHER_WORDS, REFUSED, UNUSED
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.unread_keys import EXTENSIONS, SAMPLING
from diffuspec.serve.responses.asking import ask_response
from diffuspec.serve.responses.bodies import ResponsesBody

MODEL = ServedModel("a-model", 0, 512, 258)
STRICT = replace(MODEL, conventions=Conventions(is_strict=True))
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"betas"}  # arguments of a client that are no keys of its body
PATHS_OF_OUR_OWN = {"thread"}  # see tests/serve/test_clients.py

TYPES = [
    (chats.CompletionCreateParamsBase, ChatBody, SAMPLING | WORDS),
    (texts.CompletionCreateParamsBase, CompletionBody, SAMPLING | WORDS),
    (responses.ResponseCreateParamsBase, ResponsesBody, EXTENSIONS),
    (input_count.InputTokenCountParams, ResponsesBody, EXTENSIONS),
    (messages.MessageCreateParamsBase, MessagesBody, EXTENSIONS),
    (count.MessageCountTokensParams, CountBody, EXTENSIONS),
    (beta_messages.MessageCreateParamsBase, MessagesBody, EXTENSIONS | HEADERS | PATHS_OF_OUR_OWN),
    (beta_count.MessageCountTokensParams, CountBody, EXTENSIONS | HEADERS | PATHS_OF_OUR_OWN),
]


def chat(model: ServedModel = MODEL, /, **keys: object) -> Job:
    return parse("/v1/chat/completions", ASKED | keys, model)


@pytest.mark.parametrize(
    ("kind", "body", "more"), TYPES, ids=lambda one: getattr(one, "__name__", "")
)
def test_every_key_of_the_newest_clients_is_in_the_table(kind: Any, body: Any, more: set[str]):
    known = {*body.model_fields, *more, *LABELS, *UNUSED, *REFUSED, *OTHER_WORDS}
    keys = {key for base in kind.__mro__ for key in getattr(base, "__annotations__", {})}
    assert len(keys) > 9 and keys - known == set()


def test_no_key_is_in_the_table_twice():
    parts = [LABELS, UNUSED, REFUSED.keys(), OTHER_WORDS.keys()]
    assert len(set().union(*parts)) == sum(map(len, parts))


@pytest.mark.parametrize("name", sorted(LABELS))
def test_what_cannot_change_an_answer_is_ignored_in_silence(name: str):
    assert chat(**{name: {"a": 1}}) == chat()
    assert chat(STRICT, **{name: "x"}) == chat(STRICT)


@pytest.mark.parametrize("name", [*sorted(UNUSED), "a_key_of_next_month"])
def test_what_is_ignored_or_unknown_is_named_and_refused_by_a_strict_service(name: str):
    assert chat(**{name: {"a": 1}}) == replace(chat(), ignored=(name,))
    with pytest.raises(BadRequestError, match=f"^unknown parameter '{name}'") as caught:
        chat(STRICT, **{name: {"a": 1}})
    assert (caught.value.param, caught.value.code) == (name, "unknown_parameter")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("max_new_tokens", "max_tokens"),
        ("n_predict", "max_tokens"),
        ("maxOutputTokens", "max_tokens"),
        ("regex", "structured_outputs"),
        ("ebnf", "structured_outputs"),
        ("grammar", "structured_outputs"),
        ("json_schema", "response_format"),
        ("repeat_penalty", "repetition_penalty"),
        ("stop_sequences", "stop"),
        ("rid", "request_id"),
        ("top_n_tokens", "top_logprobs"),
        ("mirostat", "the samplers are"),
        ("do_sample", "temperature: 0"),
        ("detokenize", "return_token_ids"),
    ],
)
def test_other_servers_words_are_refused_with_ours(name: str, ours: str):
    with pytest.raises(BadRequestError, match=f"^{name} .*{ours}") as caught:
        chat(**{name: "x"})
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(("name", "listed"), REFUSED.items())
def test_the_value_that_asks_for_nothing_is_taken_and_others_are_refused(name: str, listed: Any):
    if name in ChatBody.model_fields:
        body: dict[str, Any] = {"prompt": "hi"}
        without = parse("/v1/completions", body, MODEL)
        assert parse("/v1/completions", body | {name: listed.neutral}, MODEL) == without
        with pytest.raises(BadRequestError):
            parse("/v1/completions", body | {name: "another"}, MODEL)
    else:
        assert chat(**{name: listed.neutral}) == chat()
        with pytest.raises(BadRequestError) as caught:
            chat(**{name: "another"})
        assert caught.value.param == name


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("temprature", "temperature"),
        ("guided_choices", "guided_choice"),
        ("message", "messages"),
        ("topP", "top_p"),
        ("max-tokens", "max_tokens"),
        ("Stop", "stop"),
        ("reasoningEffort", "reasoning_effort"),
    ],
)
def test_a_key_that_is_nearly_a_known_one_is_refused_with_that_one(key: str, meant: str):
    with pytest.raises(BadRequestError, match=f"'{key}'; did you mean '{meant}'"):
        chat(**{key: 1})


def test_keys_of_a_chat_have_their_own_names_in_other_apis():
    for key, ours in {
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "guided_json": "text.format",
        "reasoning_effort": "reasoning.effort",
    }.items():
        with pytest.raises(BadRequestError, match=f"^{key} is {ours} in this API") as caught:
            ask_response({"input": "hi", key: 5}, MODEL)
        assert caught.value.param == key
    with pytest.raises(BadRequestError, match="use max_output_tokens"):
        ask_response({"input": "hi", "max_new_tokens": 5}, MODEL)
    with pytest.raises(BadRequestError, match=r"^'n' is not a parameter of this API"):
        ask_response({"input": "hi", "n": 2}, MODEL)


def test_a_body_has_at_most_64_unknown_keys_of_plain_characters():
    assert chat(**{f"{place:03}xyz\r\nü": 1 for place in range(64)}).ignored[63] == "063xyz???"
    with pytest.raises(BadRequestError, match="at most 64 unknown keys"):
        chat(**{f"{place:03}xyz": 1 for place in range(65)})


@pytest.mark.parametrize(
    "keys",
    [
        {"response_format": {"type": "text"}, "structured_outputs": {"pattern": "a"}},
        {"tool_choice": {"type": "function", "function": {"name": "f", "more": 1}}},
        {"speculation": {"colour": 1}},
        {"stream_options": {"colour": True}, "stream": True},
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_unknown_keys_of_forms_choices_and_speculation_stay_refused(keys: dict[str, Any]):
    tool = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(BadRequestError):
        chat(tools=[tool], **keys)


def test_unknown_keys_of_tools_are_ignored_unless_they_are_misspelled():
    tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "return": {}}, "id": 1}
    bare = {"type": "function", "function": {"name": "f"}}
    assert chat(tools=[tool]) == chat(tools=[bare])
    for key in ("paramters", "Strict"):
        misspelled = {"type": "function", "function": {"name": "f", key: {}}}
        with pytest.raises(BadRequestError, match=r"^tools\.0\.function must not have a key like"):
            chat(tools=[misspelled])


@pytest.mark.parametrize(
    ("template", "keys", "variables", "ignored"),
    [
        (
            "{{ enable_thinking }}",
            {"thinking": {"type": "disabled"}},
            {"enable_thinking": False},
            (),
        ),
        ("{{ enable_thinking }}", {"reasoning_effort": "max"}, {"enable_thinking": True}, ()),
        ("{{ reasoning_effort }}", {"reasoning_effort": "max"}, {"reasoning_effort": "xhigh"}, ()),
        ("", {"thinking": {"type": "enabled", "budget_tokens": 9}}, {}, ("thinking",)),
        ("", {"thinking": {"type": "disabled"}}, {}, ()),
        ("", {"reasoning_effort": "high"}, {}, ("reasoning_effort",)),
        ("", {"verbosity": "low"}, {}, ("verbosity",)),
    ],
)
def test_hints_that_the_template_cannot_obey_are_ignored_and_named(
    template: str, keys: dict[str, Any], variables: dict[str, Any], ignored: tuple[str, ...]
):
    job = chat(replace(MODEL, conventions=Conventions(template=template)), **keys)
    assert (job.chat.variables, job.ignored) == (variables, ignored)
    if ignored:
        strict = replace(MODEL, conventions=Conventions(template=template, is_strict=True))
        with pytest.raises(BadRequestError, match="not supported by the chat template"):
            chat(strict, **keys)
