"""Calls that are demanded come in the form of each family, and are read back as calls."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.backend import ServedModel
from diffuspec.serve.conventions import Conventions, read_conventions
from diffuspec.serve.openai.jobs import Job, encode
from diffuspec.serve.openai.parsing import parse
from diffuspec.serve.openai.reading.pieces import Call, Thought, calls_in
from diffuspec.serve.openai.reading.readers import make_reader
from diffuspec.serve.settings import ServeSettings
from diffuspec.text.grammars import Grammars
from tests.support.chat_models import FAMILIES, chat_tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
        "exact": {"type": "boolean"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Ulm", "Köln"]}},
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TOOLS = [STRICT, CLOCK]
REQUIRED: dict[str, Any] = {"tool_choice": "required"}
ONE: dict[str, Any] = {"parallel_tool_calls": False}


class Family:
    """A tiny tokenizer of a family, its grammars, and what a service does with them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.tokenizer = chat_tokenizer(FAMILIES[name])
        self.tokenizer.save_pretrained(folder)
        self.backend = self.tokenizer.backend_tokenizer
        self.ids: dict[str, int] = self.tokenizer.get_vocab()
        self.ends = (self.tokenizer.eos_token_id, self.ids.get("<|call|>", -1))
        ends = tuple(one for one in self.ends if one >= 0)
        special = {i for i, t in self.backend.get_added_tokens_decoder().items() if t.special}
        self.closing = (special, {self.ids[letter] for letter in '")}]'})
        self.grammars = Grammars(folder, TargetInfo(len(self.ids), 2048, 2, ends))
        self.conventions: Conventions = read_conventions(folder, self.tokenizer, ServeSettings())
        self.model = ServedModel("m", 0, 2048, len(self.ids), conventions=self.conventions)

    def job(self, *tools: Any, **keys: Any) -> Job:
        body = {"messages": [{"role": "user", "content": "x"}], **keys}
        return parse(
            "/v1/chat/completions", body | ({"tools": [*tools]} if tools else {}), self.model
        )

    def form(self, *tools: Any, **keys: Any) -> StructuredOutput:
        [generation] = encode(self.job(*tools, **keys), self.tokenizer, self.model)
        assert generation.sampling.structured_output is not None
        return generation.sampling.structured_output

    def draw(self, form: StructuredOutput, seed: int, most: int = 4000) -> str:
        """Return a random answer of a form: short, for it ends where it may."""
        rng, ids = random.Random(seed), []
        matcher = self.grammars.compile(form)
        for _ in range(most):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            allowed = np.unpackbits(mask, bitorder="little").nonzero()[0].tolist()
            assert allowed, matcher.get_error()
            if matcher.is_accepting() and rng.random() < 0.5:
                break
            going_on = [one for one in allowed if one not in self.ends] or allowed
            for closing in self.closing:
                if (ends := [one for one in going_on if one in closing]) and rng.random() < 0.5:
                    going_on = ends
            token_id = rng.choice(going_on)
            if token_id in self.ends:
                break
            assert matcher.consume_token(token_id)
            ids.append(token_id)
        return str(self.backend.decode(ids, skip_special_tokens=False))

    def takes(self, form: StructuredOutput, text: str) -> bool:
        """Whether an answer of this form may be this text, with the tokens that a model learns."""
        ids = self.backend.encode(text, add_special_tokens=False).ids
        matcher = self.grammars.compile(form)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    def read(self, text: str, tools: Sequence[Any] = TOOLS) -> tuple[list[Call], str, str]:
        """Return the calls, the content and the reasoning of an answer."""
        reader = make_reader(self.conventions, tools, "open")
        pieces = [*reader.read(text), *reader.finish()]
        content = "".join(piece for piece in pieces if isinstance(piece, str))
        thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
        return calls_in(pieces), content, thoughts


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return Family(request.param, tmp_path_factory.mktemp("family"))


def check(calls: Sequence[Call]) -> None:
    """Check that calls fit the schemas of the functions."""
    for call in calls:
        arguments = json.loads(call.arguments)
        if call.name == "weather":
            Draft202012Validator(SCHEMA).validate(arguments)
        else:
            assert (call.name, arguments) == ("clock", {})


def test_the_form_of_calls_is_told_by_the_template(family, request):
    assert request.node.callspec.params["family"].startswith(family.conventions.tools)


def test_what_is_demanded_is_read_back_as_valid_calls(family):
    several, single = family.form(*TOOLS, **REQUIRED), family.form(*TOOLS, **REQUIRED, **ONE)
    for seed in range(6):
        calls, content, _ = family.read(family.draw(several, seed))
        assert calls and (not content or family.conventions.has_channels)
        check(calls)
        assert len(family.read(family.draw(single, seed))[0]) == 1


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


WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n"
    "</function>\n</tool_call>",
    "llama3_json": '{"name": "weather", "parameters": {"city": "Ulm"}}',
    "pythonic": '[weather(city="Ulm")]',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Ulm"}}]',
    "mistral with [ARGS]": '[TOOL_CALLS]weather[ARGS]{"city": "Ulm"}',
    "openai": "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "Ulm"}',
}


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
    family = Family(name, tmp_path)
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
    family = Family("hermes", tmp_path)
    keys = {"chat_template_kwargs": {"enable_thinking": is_thinking}}
    form = family.form(*TOOLS, **REQUIRED, **keys)
    assert family.takes(form, WRITTEN["hermes"])
    assert family.takes(form, f"<think>\nHm.\n</think>\n{WRITTEN['hermes']}") == is_thinking
