"""Calls that are demanded come in the form of each family, and are read back as calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.reading.pieces import Call
from tests.support.chat_models import FAMILIES, chat_tokenizer
from tests.support.families import ONE, REQUIRED, TOOLS, WRITTEN, Family, check


def tiny_family(name: str, folder: Path) -> Family:
    tokenizer = chat_tokenizer(FAMILIES[name])
    tokenizer.save_pretrained(folder)
    return Family(tokenizer, folder)


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return tiny_family(request.param, tmp_path_factory.mktemp("family"))


def test_the_form_of_calls_is_told_by_the_template(family, request):
    assert request.node.callspec.params["family"].startswith(family.conventions.tools)


def test_what_is_demanded_is_read_back_as_valid_calls(family):
    several, single = family.form(*TOOLS, **REQUIRED), family.form(*TOOLS, **REQUIRED, **ONE)
    for seed in range(6):
        calls, content, _ = family.read(family.draw(several, seed))
        assert calls and (not content or family.conventions.has_channels)
        check(calls)
        assert len(family.read(family.draw(single, seed))[0]) == 1


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"properties": 5}, "properties"),
        ({"properties": {"a": {"enum": 5}}}, "properties/a/enum"),
        ({"required": 5}, "required"),
    ],
)
def test_parameters_that_are_no_schema_are_refused_with_their_place(family, wrong, place):
    function = {"type": "function", "function": {"name": "f", "parameters": wrong}}
    with pytest.raises(BadRequestError, match=f"tool f cannot be used: #/{place} must be"):
        family.form(function, **REQUIRED)


def test_calls_of_functions_whose_parameters_are_no_schema_are_read(family, request):
    name = request.node.callspec.params["family"]
    wrong = {"type": "function", "function": {"name": "weather", "parameters": {"properties": 5}}}
    assert family.read(WRITTEN[name], [wrong])[0] == [Call("weather", '{"city": "Ulm"}')]


def test_a_named_function_is_called(family):
    named = {"type": "function", "function": {"name": "clock"}}
    calls, _, _ = family.read(family.draw(family.form(*TOOLS, tool_choice=named), 1))
    assert calls == [Call("clock", "{}")]


def test_any_arguments_of_a_function_without_a_schema_are_objects(family):
    free = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    form = family.form(free, **REQUIRED)
    if family.conventions.tools == "qwen3_coder":  # a random text would never end
        text = WRITTEN["qwen3_coder"].replace("weather", "f")
        assert family.takes(form, text)
    else:
        text = family.draw(form, 3)
    calls, _, _ = family.read(text, [free])
    assert calls and isinstance(json.loads(calls[0].arguments), dict)


@pytest.mark.parametrize("keys", [{}, ONE], ids=["several", "single"])
def test_strict_functions_let_the_model_answer_in_words_or_call_as_it_learnt(family, request, keys):
    form, name = family.form(*TOOLS, **keys), request.node.callspec.params["family"]
    words = "I see <b> { [1, 2] }."
    if name == "openai":
        words = f"<|channel|>final<|message|>{words}"
    assert family.takes(form, words)
    assert family.takes(form, WRITTEN[name])
    assert family.read(WRITTEN[name])[0] == [Call("weather", '{"city": "Ulm"}')]
    assert not family.takes(form, WRITTEN[name].replace("Ulm", "Rome"))


def test_an_answer_in_json_may_be_calls_as_well(family, request):
    name = request.node.callspec.params["family"]
    form = family.form(*TOOLS, response_format={"type": "json_object"})
    final = "<|channel|>final<|message|>" if name == "openai" else ""
    assert family.takes(form, f'{final}{{"a": 1}}') and family.takes(form, WRITTEN[name])
    assert not family.takes(form, f"{final}words")


FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_regex": "a/b|[0-9]{2}"}, "a/b", "ab"),
    ({"guided_choice": ["yes", 'n"o\n']}, 'n"o\n', "no"),
    ({"guided_json": {"const": 5}}, "5", "6"),
    ({"guided_grammar": 'start: "start" x\nx: "/" | "start"'}, "start/", "answer/"),
    ({"guided_grammar": 'root ::= "a" b\nb ::= "b"'}, "ab", "a"),
]


@pytest.mark.parametrize(("keys", "right", "wrong"), FORMS)
@pytest.mark.parametrize("name", ["hermes", "openai"])
def test_a_form_is_that_of_the_answer_and_not_of_the_reasoning(name, keys, right, wrong, tmp_path):
    family = tiny_family(name, tmp_path)
    form = family.form(**keys)
    thought = (
        "<think>\nHm, {[ words.\n</think>\n\n"
        if name == "hermes"
        else ("<|channel|>analysis<|message|>Hm, {[ words.<|end|><|start|>assistant")
    )
    final = "" if name == "hermes" else "<|channel|>final<|message|>"
    for before in (thought, ""):
        assert family.takes(form, f"{before}{final}{right}")
        assert not family.takes(form, f"{before}{final}{wrong}")
    _, content, reasoning = family.read(f"{thought}{final}{right}", [])
    assert (content, reasoning) == (right, "Hm, {[ words.")


@pytest.mark.parametrize("is_thinking", [True, False])
def test_demanded_calls_may_come_after_reasoning_unless_the_prompt_has_ended_it(
    is_thinking, tmp_path
):
    family = tiny_family("hermes", tmp_path)
    keys = {"chat_template_kwargs": {"enable_thinking": is_thinking}}
    form = family.form(*TOOLS, **REQUIRED, **keys)
    assert family.takes(form, WRITTEN["hermes"])
    assert family.takes(form, f"<think>\nHm.\n</think>\n{WRITTEN['hermes']}") == is_thinking
