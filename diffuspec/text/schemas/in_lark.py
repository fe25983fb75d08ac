"""JSON Schemas within Lark grammars: `rule: %json {...}`."""

from __future__ import annotations

import json
import re
from typing import Final

from diffuspec.core.errors import InvalidRequestError
from diffuspec.text.schemas.rewriting import usable_schema

# A text, a regular expression or a comment, each of which may contain %json; or %json itself.
_PARTS: Final = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|(?://|#)[^\n]*|(?P<json>%json\s*)'
)
_OWNER: Final = "// of "
_DECODER: Final = json.JSONDecoder()


def json_rule(name: str, schema: str, owner: str) -> str:
    """Return a rule for JSON of a schema; errors name its owner."""
    return f"{name}: %json {schema} {_OWNER}{owner}"


def owner_of_line(grammar: str, number: int) -> str | None:
    """Return the owner of the rule on a line, counted from 1, if `json_rule` wrote the rule."""
    lines = grammar.split("\n")
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    return line.rpartition(_OWNER)[2] if _OWNER in line else None


def with_usable_schemas(grammar: str) -> str:
    """Return a Lark grammar with schemas that llguidance enforces. Raises InvalidRequestError."""
    pieces: list[str] = []
    end = 0
    while part := _PARTS.search(grammar, end):
        pieces.append(grammar[end : part.end()])
        end = part.end()
        if part["json"] is None:
            continue
        try:
            schema, after = _DECODER.raw_decode(grammar, end)
            number = grammar.count("\n", 0, end) + 1
            owner = owner_of_line(grammar, number) or f"%json on line {number} of the grammar"
            pieces.append(json.dumps(usable_schema(schema, owner)))
        except RecursionError:
            raise InvalidRequestError("a schema of the grammar is nested too deeply") from None
        except ValueError:  # llguidance reports invalid JSON with its place
            continue
        end = after
    return "".join([*pieces, grammar[end:]])
