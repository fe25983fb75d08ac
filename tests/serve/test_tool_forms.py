"""Grammars of answers that may or must have calls, over the tokens of the embedded target."""

from __future__ import annotations

import json
from typing import Any

import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.parsing import parse
from tests.support.tiny_target import GRAMMARS, INFO, takes

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"enum": ["Ulm", "Köln"]}},
        },
    },
}
STRICT = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "clock"}}
ALLOWED = {
    mode: {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}
    for mode in ("auto", "required")
}

ULM = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm", "days": 3}}\n</tool_call>'
ROME = ULM.replace("Ulm", "Rome")
TIME = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
LATE = TIME.replace("{}", '{"at": 5}')
ANOTHER = TIME.replace("clock", "calendar")
REQUIRED: dict[str, Any] = {"tool_choice": "required"}
ONE: dict[str, Any] = {"parallel_tool_calls": False}


def form_of(*tools: Any, **keys: object) -> StructuredOutput | None:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [*tools], **keys}
    model = ServedModel("a-model", 0, 512, INFO.vocab_size)
    return parse("/v1/chat/completions", body, model).sampling.structured_output


def is_whole(form: StructuredOutput | None, text: str) -> bool:
    """Whether an answer of this form may be this text."""
    assert form is not None
    return takes(form, text)


@pytest.mark.parametrize(
    ("keys", "right", "wrong"),
    [
        (REQUIRED, [ULM, TIME, f"{ULM}\n{TIME}"], ["", "Hi", ROME, LATE, ANOTHER, f"{ULM} so"]),
        (REQUIRED | ONE, [ULM, TIME], [f"{ULM}\n{TIME}"]),
        ({"tool_choice": NAMED}, [TIME], [ULM, f"{TIME}\n{TIME}", "Hi"]),
        ({"tool_choice": ALLOWED["auto"]}, ["Hi", TIME, f"Hi. {LATE}"], [ULM, f"Hi. {ULM}"]),
        ({"tool_choice": ALLOWED["required"]}, [TIME, f"{TIME}\n{TIME}"], [ULM, "Hi"]),
        ({}, ["Hi <b>", ULM, f"Hi. {ULM}", f"{LATE}\n{ULM}\n"], [ROME, f"Hi. {ROME}", ANOTHER]),
        (ONE, ["Hi", f"Hi. {ULM}"], [f"{ULM}{ULM}", f"{ULM} so"]),
        (
            {"response_format": {"type": "json_object"}},
            ['{"a": 1}', '{\n  "a": 1\n}', ULM],
            ["Hi", f"Hi. {ULM}", '{\n\n"a": 1}'],
        ),
    ],
)
def test_answers_have_the_calls_that_they_may_and_must_have(keys, right, wrong):
    form = form_of(STRICT, CLOCK, **keys)
    assert [text for text in right if not is_whole(form, text)] == []
    assert [text for text in wrong if is_whole(form, text)] == []


def test_a_function_that_is_not_strict_may_be_called_with_any_object():
    assert is_whole(form_of(WEATHER, CLOCK, **ONE), ROME)
    assert form_of(WEATHER, CLOCK) is None
    assert form_of(STRICT, tool_choice="none") is None


@pytest.mark.parametrize("choice", [{"type": "custom", "name": "clock"}, ALLOWED["auto"], NAMED])
def test_a_choice_of_what_there_is_not_is_refused_by_name(choice: Any):
    with pytest.raises(BadRequestError, match=r"^tool_choice"):
        form_of(WEATHER, tool_choice=choice)


def test_tools_that_make_too_large_a_grammar_are_refused_by_name():
    many = {"enum": [f"city number {number}" for number in range(8000)]}
    large = {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"city": many}}},
    }
    with pytest.raises(BadRequestError, match="too many or too long") as caught:
        form_of(large, tool_choice="required")
    assert caught.value.param == "tools" and "city" not in json.dumps(str(caught.value))


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        ({"const": -(2**63)}, "const is an integer that cannot be written"),
        ({"multipleOf": 0.07}, "multipleOf is supported for 1 to 2048"),
    ],
)
def test_a_number_that_cannot_be_enforced_is_refused_by_the_tool_and_its_place(number, problem):
    parameters = {"properties": {"id": number}}
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    with pytest.raises(BadRequestError) as caught:
        form_of(tool, tool_choice="required")
    assert f"tool find cannot be used: #/properties/id/{problem}" in str(caught.value)


def test_an_error_in_a_grammar_of_tools_names_the_tool():
    parameters: dict[str, Any] = {"patternProperties": {"a": {}, "b": {}}}
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    form = form_of(CLOCK, tool, tool_choice="required")
    assert form is not None
    with pytest.raises(InvalidRequestError, match=r"^tool find cannot be used: patterns of"):
        GRAMMARS.compile(form)


def test_a_parameter_may_be_any_64_bit_integer():
    number = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    parameters = {"properties": {"id": number}, "required": ["id"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "find", "parameters": parameters}}
    text = '<tool_call>\n{"name": "find", "arguments": {"id": 9223372036854775807}}\n</tool_call>'
    assert is_whole(form_of(tool, tool_choice="required"), text)
