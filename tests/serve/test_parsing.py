"""Bodies of OpenAI's API as jobs: what is obeyed, what is refused, and by which name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import SpeculationParams, StructuredOutput
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.bodies import ChatBody, CompletionBody
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.jobs import Job, encode
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.schema import body_schema
from tests.support.checkpoints import CHAT_TEMPLATE, byte_tokenizer

MODEL = ServedModel("a-model", 0, 512, 258, SpeculationParams(max_nodes=7))
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object"}},
}
REFUSAL = {"type": "refusal", "refusal": "No."}
NO_REFUSAL = {"type": "refusal", "text": "x"}
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
NAMED_TOOL = {"type": "function", "function": {"name": "another"}}


def chat(**keys: object) -> Job:
    return parse("/v1/chat/completions", ASKED | keys, MODEL)


def messages_of(job: Job) -> list[Any]:
    """Return the messages that the chat template gets."""
    [messages] = job.prompts
    return [*messages]


def says(role: str, **keys: object) -> dict[str, Any]:
    """Return the key that holds a single message."""
    return {"messages": [{"role": role, **keys}]}


def complete(**keys: object) -> Job:
    return parse("/v1/completions", {"prompt": "hi", **keys}, MODEL)


def tokenizer(template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), chat_template=template)


@pytest.mark.parametrize(
    ("keys", "field", "value"),
    [
        ({}, "temperature", 1.0),
        ({"temperature": 0}, "temperature", 0),
        ({"top_k": -1}, "top_k", 0),
        ({"seed": -1}, "seed", None),
        ({"top_p": 0}, "top_p", 1e-9),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"seed": 7}, "seed", 7),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": None}, "stop", ()),
        ({"stop_token_ids": [3]}, "stop_token_ids", (3,)),
        ({"logit_bias": {"5": -100}}, "logit_bias", {5: -100}),
        ({"bad_words": ["no"]}, "bad_words", ("no",)),
        ({"allowed_token_ids": [5, 3]}, "allowed_token_ids", (5, 3)),
        ({"allowed_token_ids": None}, "allowed_token_ids", None),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output", True),
        ({"skip_special_tokens": False}, "skip_special_tokens", False),
        ({"spaces_between_special_tokens": False}, "skip_special_tokens", True),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"repetition_penalty": 1.2}, "repetition_penalty", 1.2),
        ({"min_tokens": 400}, "min_tokens", 400),
    ],
)
def test_sampling_parameters_are_taken_by_both_endpoints(keys, field, value):
    assert getattr(chat(**keys).sampling, field) == value
    assert getattr(complete(max_tokens=500, **keys).sampling, field) == value


def test_logprobs_have_each_endpoints_own_form():
    assert chat().sampling.logprobs is None
    assert chat(logprobs=True).sampling.logprobs == 0
    assert chat(logprobs=True, top_logprobs=5).sampling.logprobs == 5
    assert complete(logprobs=5).sampling.logprobs == 5


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"chat_template_kwargs": {"a": [1]}}, "chat_template_kwargs.a"),
        ({"tool_choice": {"type": "function"}, "tools": [WEATHER]}, "tool_choice.function"),
        ({"min_tokens": 4, "max_tokens": 3}, "min_tokens"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [5] * 1025}, "allowed_token_ids"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": "all"}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 512}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 503, "max_tokens": 10}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "middle"}, "truncation_side"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": "yes"}, "stream"),
        ({"suffix": "x"}, "suffix"),
        ({"request_id": "a b"}, "request_id"),
        (
            {"skip_special_tokens": False, "spaces_between_special_tokens": False},
            "spaces_between_special_tokens",
        ),
        ({"best_of": 2}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"chat_template": "x"}, "chat_template"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": [WEATHER]}, "tool_choice"),
        ({"tool_choice": NAMED_TOOL, "tools": [WEATHER]}, "tool_choice"),
        ({"guided_regex": "a", "tools": [WEATHER]}, "tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"speculation": {"policy": "best"}}, "speculation.policy"),
        ({"speculation": {"tokens": 5}}, "speculation"),
        ({"speculation": "on"}, "speculation"),
        ({"temprature": 1}, "temprature"),
        ({"messages": []}, "messages"),
        (says("robot", content="x"), "messages.0.role"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        (says("user", content=[{"type": "image_url"}]), "messages.0.content.0.type"),
        (says("user", content=[{"type": "text"}]), "messages.0.content.0.text"),
        (says("assistant", content=[NO_REFUSAL]), "messages.0.content.0.refusal"),
        (says("user", content=[REFUSAL]), "messages.0"),
        (says("user", refusal="No."), "messages.0"),
        (says("assistant", content="x", refusal="No."), "messages.0"),
        (says("assistant", audio={"id": "1"}), "messages.0.audio"),
        (says("assistant", function_call={}), "messages.0.function_call"),
        (says("assistant", prefix=True), "messages.0.prefix"),
        ({"prediction": "ab"}, "prediction"),
        ({"prediction": {"type": "other", "content": "ab"}}, "prediction"),
        ({"prediction": {"content": 1}}, "prediction"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": "json_object"}, "response_format"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_output": {"xml": "a"}}, "structured_output"),
        ({"structured_output": {}, "guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_is_wrong_or_not_supported_is_named(keys, param):
    with pytest.raises(BadRequestError) as caught:
        chat(**keys)
    assert (caught.value.param or "").startswith(param)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"speculation": "on"}, "speculation must be an object or 'off'"),
        ({"tool_choice": 5}, "tool_choice must be 'none', 'auto' or 'required', got 5"),
        ({"messages": [5]}, "messages.0 must be an object, got 5"),
        (says("user", content=5), "messages.0.content must be a text or a list, got 5"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage is not known"),
        ({"stream": "yes"}, "stream must be true or false"),
        ({"ignore_eos": "yes"}, "ignore_eos must be true or false"),
        ({"functions": [{}]}, "functions is not supported: use tools"),
        ({"suffix": "x"}, "suffix is not supported: leave it out"),
        ({"stop": 5}, "stop must be a string or a list of strings, got 5"),
        (
            {"messages": None, "prompt": "Hello"},
            "messages is missing; prompt is for /v1/completions",
        ),
        ({"messages": []}, "messages must have at least 1 item"),
        ({"n": "two"}, "n must be an integer"),
        ({"n": 1.5}, r"n must be an integer, got 1\.5"),
        ({"logprobs": 5}, "logprobs must be true or false, got 5"),
        ({"priority": 5}, "priority must be 0: there is no scheduling by priority"),
        ({"request_id": ""}, "request_id must be at most 128 of A-Z a-z 0-9 . _ # : -"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools.0.function.name must match pattern .*",
        ),
        ({"n": 9}, "n must be at most 8, got 9"),
        ({"max_tokens": 0}, "max_tokens must be 1 or more, got 0"),
        ({"logit_bias": {"5": 101}}, "logit_bias must be from -100 to 100, got 101"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be from 0 to 4294967295, got -1"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be integers"),
        (
            {"bad_words": [""]},
            "bad_words must be strings of 1 to 128 characters, got a string of 0 characters",
        ),
        ({"guided_choice": []}, "guided_choice must not be empty"),
        ({"guided_regex": ""}, "guided_regex must not be empty"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs must have exactly one of json, json_object, regex, choice, grammar",
        ),
        (
            {"structured_output": {"regex": "a", "choice": ["b"]}},
            "structured_output must have exactly one of json_object, json_schema, regex, choice, "
            "grammar",
        ),
        ({"seed": 10**500}, f"seed must be from -{2**63} to {2**63 - 1}, got 1{'0' * 79}"),
    ],
)
def test_what_would_be_right_is_said_in_json_s_words(keys, message):
    with pytest.raises(BadRequestError, match=f"^{message}$"):
        chat(**keys)


@pytest.mark.parametrize(
    ("keys", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"echo": True, "max_tokens": -1}, "max_tokens"),
    ],
)
def test_prompts_alone_are_reported_whole_and_with_echo(keys, param):
    with pytest.raises(BadRequestError) as caught:
        complete(**keys)
    assert caught.value.param == param


def test_neutral_values_and_nulls_and_labels_are_taken():
    job = chat(
        best_of=None, n=1, suffix=None, tools=[], tool_choice="none", parallel_tool_calls=True,
        user="u", metadata={"a": "b"}, store=False, use_beam_search=False, prompt_logprobs=None,
        top_logprobs=0, priority=0, chat_template_kwargs={},
    )  # fmt: skip
    assert job == chat()


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("best_of", 2, "n"),
        ("detokenize", False, "return_token_ids"),
        ("mm_processor_kwargs", {"a": 1}, "only text"),
        ("thinking_token_budget", 5, "reasoning_effort"),
        ("web_search_options", {}, "searches nothing"),
    ],
)
def test_what_would_change_answers_elsewhere_is_refused_with_the_reason(key, value, reason):
    with pytest.raises(BadRequestError, match=f"^{key} must .*{reason}") as caught:
        chat(**{key: value})
    assert (caught.value.param, caught.value.code) == (key, "unsupported_parameter")
    assert chat(detokenize=True, mm_processor_kwargs={}, verbosity="medium") == chat()


def test_a_verbosity_is_a_variable_of_templates_that_have_it():
    talkative = replace(MODEL, conventions=Conventions(template="{{ verbosity }}"))
    job = parse("/v1/chat/completions", ASKED | {"verbosity": "low"}, talkative)
    assert job.chat.variables == {"verbosity": "low"}


@pytest.mark.parametrize("content", ["ab", [{"type": "text", "text": t} for t in "ab"]])
def test_a_prediction_is_a_text_or_parts_of_one(content):
    assert chat(prediction={"type": "content", "content": content}).prediction == "ab"


def test_a_client_may_send_back_what_it_was_answered():
    answered = {"role": "assistant", "content": "x", "refusal": None, "audio": None}
    for nothing in (None, list[Any]()):
        messages = [*ASKED["messages"], answered | {"annotations": nothing}]
        assert chat(messages=messages).prompts[0][1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize("content", [{"content": [REFUSAL | CACHED]}, {"refusal": "No."}])
def test_a_refusal_of_the_assistant_is_what_it_said(content: Any):
    messages = [*ASKED["messages"], {"role": "assistant", **content}]
    assert chat(messages=messages).prompts[0][1] == {"role": "assistant", "content": "No."}


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_without_tools_an_answer_is_text(choice: str | None):
    assert chat(tools=[], tool_choice=choice) == chat(tool_choice=choice) == chat()


def test_marks_of_what_to_cache_change_nothing():
    said = {"role": "user", "content": [{"type": "text", "text": "hi", **CACHED}], **CACHED}
    function = {"name": "weather", "parameters": {"type": "object"}, **CACHED}
    tool = {"type": "function", "function": function, **CACHED}
    assert chat(messages=[said], tools=[tool]) == chat(tools=[WEATHER])


def test_what_clients_add_to_answers_may_be_sent_back():
    function = {"name": "weather", "arguments": "{}", "parsed_arguments": {"city": "Ulm"}}
    call = {"id": "1", "type": "function", "function": function, "index": 0}
    answered = {"role": "assistant", "content": "", "parsed": {"a": 1}, "tool_calls": [call]}
    answered["provider_specific_fields"] = {"refusal": None}  # LiteLLM's
    [messages] = chat(messages=[answered]).prompts
    plain = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {}}}
    assert messages == [{"role": "assistant", "content": "", "tool_calls": [plain]}]


@pytest.mark.parametrize("prompt", ["hi", [1, 2], ["hi", "ho"], [[1], [2, 3]]])
def test_prompts_are_a_text_ids_or_several_of_either(prompt):
    is_several = not isinstance(prompt, str) and not isinstance(prompt[0], int)
    assert len(complete(prompt=prompt).prompts) == (len(prompt) if is_several else 1)


@pytest.mark.parametrize("prompt", [[], [[]], ["x", 1], [1, True], {}, 1, [["x"]], ["x"] * 65])
def test_other_prompts_are_refused(prompt):
    with pytest.raises(BadRequestError) as caught:
        complete(prompt=prompt)
    assert caught.value.param == "prompt"


def test_speculation_changes_only_the_keys_that_it_has():
    assert chat().speculation is None
    assert chat(speculation="off").speculation == SpeculationParams(policy="off", max_nodes=7)
    given = chat(speculation={"policy": "fixed", "num_draft_tokens": 5}).speculation
    assert given == SpeculationParams(policy="fixed", num_draft_tokens=5, max_nodes=7)


def test_choices_have_seeds_one_after_the_other():
    generations = encode(complete(prompt=["a", "b"], n=2, seed=5), tokenizer(), MODEL)
    found = [(one.index, one.sampling.seed) for one in generations]
    assert found == [(0, 5), (1, 6), (2, 5), (3, 6)]
    assert [one.prompt_token_ids.tolist() for one in generations[::2]] == [
        tokenizer().encode(text) for text in "ab"
    ]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
FORMS: list[tuple[dict[str, Any], StructuredOutput | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "json_object"}}, StructuredOutput(json_object=True)),
    ({"response_format": NAMED}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
    ({"guided_json": SCHEMA}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
    ({"guided_json": json.dumps(SCHEMA)}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
    ({"guided_regex": "a+"}, StructuredOutput(regex="a+")),
    ({"guided_choice": ["a", "b"]}, StructuredOutput(choice=("a", "b"))),
    ({"guided_grammar": 'start: "a"'}, StructuredOutput(grammar='start: "a"')),
    ({"structured_outputs": {"json": SCHEMA}}, StructuredOutput(json_schema=json.dumps(SCHEMA))),
    ({"structured_outputs": {"regex": "a+", "json": None}}, StructuredOutput(regex="a+")),
    ({"structured_output": {"choice": ["a"]}}, StructuredOutput(choice=("a",))),
]


@pytest.mark.parametrize(("keys", "form"), FORMS)
def test_forms_have_openais_and_vllms_words(keys: dict[str, Any], form: StructuredOutput | None):
    assert chat(**keys).sampling.structured_output == form
    assert complete(**keys).sampling.structured_output == form


def test_a_chat_may_go_on_to_the_end_of_the_context_and_a_text_for_16_tokens():
    [generation] = encode(chat(), tokenizer(), MODEL)
    room = 512 - len(generation.prompt_token_ids)
    assert generation.sampling.max_tokens == room
    [generation] = encode(complete(), tokenizer(), MODEL)
    assert generation.sampling.max_tokens == 16


@pytest.mark.parametrize(
    ("keys", "kept"),
    [
        ({"truncate_prompt_tokens": 3}, slice(-3, None)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, slice(3)),
        ({"truncate_prompt_tokens": 3, "truncation_side": "left"}, slice(-3, None)),
        ({"truncate_prompt_tokens": 100}, slice(None)),  # it is shorter
        ({"truncation_side": "right"}, slice(None)),
        ({"truncate_prompt_tokens": None}, slice(None)),
    ],
)
def test_a_prompt_is_cut_where_it_is_asked_for(keys: dict[str, Any], kept: slice):
    text = "a text, some tokens long"
    ids = tokenizer().encode(text)
    for prompt in (text, ids):
        [generation] = encode(complete(prompt=prompt, **keys), tokenizer(), MODEL)
        assert generation.prompt_token_ids.tolist() == ids[kept]
    [whole] = encode(chat(), tokenizer(), MODEL)
    [cut] = encode(chat(**keys), tokenizer(), MODEL)
    assert cut.prompt_token_ids.tolist() == whole.prompt_token_ids.tolist()[kept]


@pytest.mark.parametrize(("keys", "num_kept"), [({}, 511), ({"max_tokens": 12}, 500)])
def test_a_prompt_of_any_length_is_cut_to_what_leaves_room_for_the_answer(keys, num_kept):
    long = [{"role": "user", "content": "x" * 20_000}]
    [generation] = encode(
        chat(messages=long, truncate_prompt_tokens=-1, **keys), tokenizer(), MODEL
    )
    assert len(generation.prompt_token_ids) == num_kept
    assert generation.sampling.max_tokens == 512 - num_kept


def test_an_answer_without_room_is_refused_whatever_is_cut():
    with pytest.raises(InvalidRequestError, match="maximum context length is 512"):
        encode(complete(max_tokens=600, truncate_prompt_tokens=-1), tokenizer(), MODEL)


def test_tools_and_calls_go_into_the_template():
    template = (
        "{% for tool in tools %}[{{ tool.function.name }}]{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments.city }})"
        "{% endfor %};{% endfor %}"
    )
    function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
    call = {"id": "1", "type": "function", "function": function}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": text} for text in "ab"]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sun", "tool_call_id": "1"},
    ]
    [generation] = encode(chat(messages=messages, tools=[WEATHER]), tokenizer(template), MODEL)
    text = tokenizer().decode(generation.prompt_token_ids)
    assert text == "[weather]system:a\nb;assistant:(weather Ulm);tool:sun;"
    [generation] = encode(chat(tools=[WEATHER]), tokenizer(), MODEL)  # a template without tools
    text = tokenizer().decode(generation.prompt_token_ids)
    assert (
        text.startswith("<|start|>system:You can call functions.") and '"name": "weather"' in text
    )


def test_variables_of_the_template_may_be_set_but_not_what_makes_it_a_chat():
    job = chat(chat_template_kwargs={"mood": "glad"})
    [generation] = encode(job, tokenizer("{{ mood }}"), MODEL)
    assert tokenizer().decode(generation.prompt_token_ids) == "glad"
    for name in ("messages", "tools", "tokenize", "conversation"):
        with pytest.raises(InvalidRequestError, match=f"must not have {name}"):
            encode(chat(chat_template_kwargs={name: "x"}), tokenizer(), MODEL)


@pytest.mark.parametrize(
    ("keys", "end"),
    [
        ({}, "<|start|>assistant:Once <|end|><|start|>assistant:"),
        ({"add_generation_prompt": False}, "<|start|>assistant:Once <|end|>"),
        (
            {"add_generation_prompt": False, "continue_final_message": True},
            "<|start|>assistant:Once ",
        ),
    ],
)
def test_a_chat_may_end_with_its_last_message_closed_or_open(keys, end):
    closed = CHAT_TEMPLATE.replace("{% endfor %}", "<|end|>{% endfor %}")
    messages = [*ASKED["messages"], {"role": "assistant", "content": "Once "}]
    [generation] = encode(chat(messages=messages, **keys), tokenizer(closed), MODEL)
    text = tokenizer().decode(generation.prompt_token_ids)
    assert text == f"<|start|>user:hi<|end|>{end}"


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        ({}, (False, True)),
        ({"add_special_tokens": True}, (True, True)),
        ({"add_special_tokens": False}, (False, False)),
    ],
)
def test_special_tokens_are_added_to_texts_unless_not_wanted_and_to_chats_if_wanted(keys, begins):
    with_bos = tokenizer()
    with_bos.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", 256)]
    )
    [chatted] = encode(chat(**keys), with_bos, MODEL)
    [completed] = encode(complete(**keys), with_bos, MODEL)
    assert (chatted.prompt_token_ids[0] == 256, completed.prompt_token_ids[0] == 256) == begins


def test_an_answer_has_the_role_of_the_message_that_it_goes_on_with():
    assert chat().role == "assistant"
    assert chat(add_generation_prompt=False).role == "user"


def test_a_message_that_the_template_does_not_keep_cannot_be_continued():
    keys = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(InvalidRequestError, match="needs a chat template that keeps"):
        encode(chat(**keys), tokenizer("{{ messages[0]['content'][:1] }}"), MODEL)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("", {}),
        ('{"a": [1, "x', {"a": [1, "x"]}),
        ("{", {}),
        ("[1]", {"arguments": [1]}),
        ("{bad", {"arguments": "{bad"}),
    ],
)
def test_a_call_that_was_cut_or_is_wrong_is_taken_back_as_an_object(arguments, shown):
    call = {"id": "a", "function": {"name": "weather", "arguments": arguments}}
    [message] = messages_of(chat(messages=[{"role": "assistant", "tool_calls": [call]}]))
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": shown}


def test_as_many_prompts_and_messages_as_clients_send_are_taken():
    assert len(complete(prompt=["hi"] * 20).prompts) == 20
    assert len(messages_of(chat(messages=ASKED["messages"] * 1000))) == 1000


def test_ids_of_calls_are_short_and_those_of_mistral_are_nine_letters():
    def ids(**conventions: Any) -> list[Any]:
        given = "call_0123456789abcdef0123456789abcdef-0-0"
        call = {"id": given, "function": {"name": "f", "arguments": "{}"}}
        messages = [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": given, "content": "x"},
        ]
        model = replace(MODEL, conventions=Conventions(**conventions))
        body = {"messages": messages}
        asked, answered = messages_of(parse("/v1/chat/completions", body, model))
        return [asked["tool_calls"][0]["id"], answered["tool_call_id"], given]

    assert len(set(ids())) == 1
    first, second, _ = ids(tools="mistral")
    assert first == second and len(first) == 9 and first.isalnum()


@pytest.mark.parametrize(
    ("template", "effort", "variables"),
    [
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{% if enable_thinking %}", "none", {"enable_thinking": False}),
        ("{% if enable_thinking %}", "high", {"enable_thinking": True}),
        ("", "none", {}),
    ],
)
def test_reasoning_effort_is_a_variable_of_templates_that_have_it(template, effort, variables):
    model = replace(MODEL, conventions=Conventions(template=template))
    body = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": effort}
    assert parse("/v1/chat/completions", body, model).chat.variables == variables


def test_reasoning_is_handed_to_the_template_under_both_names():
    said = {"role": "assistant", "content": "a", "reasoning": "b"}
    [message] = messages_of(chat(messages=[said]))
    assert message["reasoning_content"] == message["reasoning"] == "b"


def test_the_openapi_schema_has_the_declared_parameters_and_no_references():
    for kind in (ChatBody, CompletionBody):
        schema = body_schema(kind)
        assert {"model", "min_p", "stop", "logit_bias", "speculation"} <= set(schema["properties"])
        assert "$ref" not in str(schema)
        assert schema["properties"]["temperature"]["default"] == 1.0  # OpenAI's, not ours
