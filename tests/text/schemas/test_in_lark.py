"""JSON Schemas within Lark grammars: enforced like all others, and named in errors."""

from __future__ import annotations

import pytest

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.text.schemas.in_lark import json_rule, with_usable_schemas
from tests.support.tiny_target import GRAMMARS, takes

DEADLY = '{"properties": {"id": {"const": -9223372036854775808}}}'


def test_schemas_in_a_grammar_mean_what_they_say():
    form = StructuredOutput(
        grammar='start: "a" n | "b" m\n'
        'n: %json {"type": "number", "minimum": 0.05, "maximum": 0.95} // a comment\n'
        'm: %json\n {"enum": [0, false], "not": {"const": false}} "!"'
    )
    assert takes(form, "a0.9") and not takes(form, "a0.04")
    assert takes(form, "b0!") and not takes(form, "bfalse!")


@pytest.mark.parametrize(
    "grammar",
    [
        f"start: a\na: %json {DEADLY}",
        f"start: a\na: %json\t{DEADLY}",
        f'start: a // "%json"\na: %json {DEADLY} "x"',
        f"start: b\nb: %lark {{\nstart: %json {DEADLY}\n}}",
    ],
)
def test_an_integer_of_which_llguidance_dies_is_refused_with_its_place(grammar):
    with pytest.raises(InvalidRequestError) as caught:
        GRAMMARS.compile(StructuredOutput(grammar=grammar))
    line = next(n for n, text in enumerate(grammar.split("\n"), 1) if DEADLY in text)
    place = "#/properties/id/const is an integer"
    assert f"%json on line {line} of the grammar cannot be used: {place}" in str(caught.value)


def test_what_is_no_schema_of_a_grammar_remains():
    grammar = 'start: "%json 5" /%json {}/ a // %json {"type": "text"}\na: %json {'
    assert with_usable_schemas(grammar) == grammar


def test_an_error_names_the_owner_of_a_schema_instead_of_a_line():
    rule = json_rule("a", '{"patternProperties": {"a": {}, "b": {}}}', "tool clock")
    with pytest.raises(InvalidRequestError, match=r"^tool clock cannot be used: patterns of"):
        GRAMMARS.compile(StructuredOutput(grammar=f"start: a\n{rule}"))
    rule = json_rule("a", DEADLY, "tool clock")
    with pytest.raises(InvalidRequestError, match=r"^tool clock cannot be used: #/properties/id"):
        GRAMMARS.compile(StructuredOutput(grammar=f"start: a\n{rule}"))
