"""Forms are compiled, or refused with the reason, within bounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import StructuredOutput
from diffuspec.pairs.tiny import TARGET
from diffuspec.text.grammars import Grammars, grammars_of
from tests.support.tiny_target import EOS, GRAMMARS, INFO, encode

DOUBLING = "start: T0\n" + "\n".join(f"T{n}: T{n + 1} T{n + 1}" for n in range(60)) + '\nT60: "a"'

PATTERNS = json.dumps({"allOf": [{"pattern": f".*a.{{{count}}}b.*"} for count in range(4)]})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"json_object": True}, '{"a": [1, null]}'),
        ({"json_schema": '{"enum": ["x", 3]}'}, '"x"'),
        ({"json_schema": "true"}, "[1, 2]"),
        ({"regex": r"[0-9]{2}:[0-9]{2}"}, "12:30"),
        ({"choice": ["yes", 'say "no"\n\\', "Ünï"]}, 'say "no"\n\\'),
        ({"choice": ["yes", "Ünï"]}, "Ünï"),
        ({"grammar": 'start: "a" b+\nb: "b" | "c"'}, "abcb"),
        ({"grammar": 'root ::= "a" some_b+\nsome_b ::= "b" | "c"'}, "abcb"),
    ],
)
def test_a_text_of_the_form_ends_with_eos(form: dict[str, Any], text: str) -> None:
    matcher, token_ids = GRAMMARS.compile(StructuredOutput(**form)), encode(text)
    assert matcher.try_consume_tokens(token_ids) == len(token_ids)
    assert matcher.is_accepting() and matcher.compute_bitmask()[0] & 1 << EOS


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_space_between_the_parts_of_json_is_bounded(indent: int | str | None) -> None:
    matcher = GRAMMARS.compile(StructuredOutput(json_object=True))
    token_ids = encode(json.dumps({"a": [1, {"b": None}]}, indent=indent))
    assert matcher.try_consume_tokens(token_ids) == len(token_ids)
    matcher.reset()
    endless = encode("{" + "\n" * 40)
    assert matcher.try_consume_tokens(endless) < len(endless)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json_schema": "{"}, "json_schema must be JSON: Expecting .*: line 1"),
        ({"json_schema": "3"}, "json_schema cannot be used: a JSON Schema is an object, got int"),
        ({"json_schema": '{"type": "text"}'}, "cannot be used: #/type must be string, number"),
        ({"json_schema": "false"}, "cannot be used: no value fits the schema"),
        ({"json_schema": "[" * 30_000}, "json_schema is nested too deeply"),
        ({"json_schema": '{"items":' * 200 + "{}" + "}" * 200}, "nested too deeply"),
        ({"json_schema": '{"$ref": "http://a.b/c"}'}, "refers to nothing within the schema"),
        ({"regex": "("}, "the regular expression is wrong: unclosed group"),
        ({"regex": "a(?=b)"}, "look-around"),
        ({"grammar": "start: x"}, "the grammar uses a rule that it has not"),
        ({"grammar": "start: " + "(" * 10_000}, "nested too deeply"),
        ({"grammar": DOUBLING}, "it is too complex"),
        ({"json_schema": PATTERNS}, "it is too complex"),
        ({"grammar": "root ::= x"}, "cannot be used: the grammar uses a rule that it has not"),
        (
            {"grammar": 'root ::=\n"secret" ['},
            "cannot be used: line 2 of the grammar cannot be read$",
        ),
        ({"grammar": "root ::= " + "(" * 10_000}, "cannot be used: it is nested too deeply"),
    ],
)
def test_a_form_that_cannot_be_is_refused(form: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        GRAMMARS.compile(StructuredOutput(**form))


def test_a_form_is_compiled_once_while_it_is_in_use() -> None:
    grammars = Grammars.of(TARGET, INFO)
    forms = [StructuredOutput(regex=f"a{{{count}}}") for count in range(1, 41)]
    for form in forms:
        grammars.compile(form)
        grammars.compile(forms[0])
    assert grammars.is_compiled(forms[0]) and grammars.is_compiled(forms[-1])
    assert not grammars.is_compiled(forms[1])


def test_roles_of_one_target_share_what_is_compiled() -> None:
    assert grammars_of(TARGET, INFO) is grammars_of(Path(TARGET), INFO)


def test_a_tokenizer_of_an_unknown_kind_is_named_as_the_reason(tmp_path: Path) -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "</s>": 2}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(tmp_path)
    grammars = Grammars.of(tmp_path, TargetInfo(3, 512, 2, (2,)))
    with pytest.raises(InvalidRequestError, match="cannot be used with the target's tokenizer"):
        grammars.compile(StructuredOutput(regex="a"))


def test_a_form_that_fails_its_limits_in_any_answer_is_not_admitted() -> None:
    grammars = Grammars.of(TARGET, INFO)
    with pytest.raises(InvalidRequestError, match="too complex to hold an answer to"):
        grammars.admit(StructuredOutput(regex="((a{1000}){1000}){1000}"))
    grammars.admit(StructuredOutput(regex="(a{0,9}b){1,9}"))
