"""Formats of answers as rules of a Lark grammar, to be combined with other rules."""

from __future__ import annotations

import json
import re

from diffuspec.core.params import StructuredOutput
from diffuspec.text.grammars import in_lark, json_schema_of
from diffuspec.text.schemas.in_lark import json_rule

# A text, a regular expression, a comment, or a word.
_PARTS = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*|[A-Za-z_]\w*')
_SLASH = re.compile(r"(\\.)|/|\n", re.DOTALL)


def text_of(text: str) -> str:
    """Return a text as a Lark terminal."""
    return json.dumps(text, ensure_ascii=False)


def rules_of(form: StructuredOutput, name: str) -> str:
    """Return rules; the rule with this name matches the texts of a format.

    Raises InvalidRequestError.
    """
    if (schema := json_schema_of(form)) is not None:
        return json_rule(name, schema, "json_schema")
    if form.regex is not None:
        return f"{name}: /{_SLASH.sub(_escape, form.regex)}/"
    if form.choice:
        return f"{name}: {' | '.join(map(text_of, form.choice))}"
    assert form.grammar is not None
    return _PARTS.sub(
        lambda found: name if found[0] == "start" else found[0], in_lark(form.grammar)
    )


def _escape(found: re.Match[str]) -> str:
    return found[1] or ("\\/" if found[0] == "/" else "\\n")
