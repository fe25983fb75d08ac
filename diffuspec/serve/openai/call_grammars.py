"""Grammars of calls, each in the format that a family of models has learnt.

They restrict answers to what the readers in `reading` can parse. JSON is written as models learn
it: on one line, with a space after colons and commas.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.serve.conventions import ToolParser
from diffuspec.serve.openai.body_parts import Function
from diffuspec.text.lark import text_of
from diffuspec.text.schemas.in_lark import json_rule
from diffuspec.text.schemas.references import referred
from diffuspec.text.schemas.rewriting import usable_schema

MAX_CALLS = 16  # calls in one answer
_ON_ONE_LINE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_ALTERNATIVES = {"anyOf", "oneOf", "$ref"}  # keys of schemas that say nothing of the type
_ANY = "TEXT: /(.|\\n)*/"


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions that may be called, how often, and the model's special tokens."""

    functions: Sequence[Function]
    is_strict: bool  # treat all functions as strict, not only those marked so
    is_single: bool
    special_ids: Mapping[str, int]  # by text
    template: str  # source of the chat template

    def mark(self, name: str) -> str:
        """Return a mark as a token if it is a special token, else as a text."""
        token_id = self.special_ids.get(name)
        return text_of(name) if token_id is None else f"<[{token_id}]>"

    def schema_of(self, function: Function) -> dict[str, Any]:
        """Return the JSON schema of a function's arguments."""
        if not (self.is_strict or function.strict):
            return {"type": "object"}
        schema = usable_schema(
            {"type": "object", **(function.parameters or _NO_PARAMETERS)}, _owner(function)
        )
        if not isinstance(schema, dict):
            raise InvalidRequestError(
                f"{_owner(function)} cannot be used: no value fits the schema"
            )
        return schema

    def arguments(self) -> str:
        """Return a rule for the arguments of each function, as JSON on one line."""
        rules = []
        for number, function in enumerate(self.functions):
            schema = {**self.schema_of(function), "x-guidance": _ON_ONE_LINE}
            rules.append(json_rule(f"arguments{number}", json.dumps(schema), _owner(function)))
        return "\n".join(rules)

    def any_of(self, write: Callable[[int, Function], str]) -> str:
        """Return alternatives, one for each function."""
        return " | ".join(write(place, one) for place, one in enumerate(self.functions))

    def heads(self, before: str = "") -> str:
        """Return the beginnings of calls as JSON objects, up to the end of their arguments."""
        return self.any_of(
            lambda n, one: (
                text_of(f'{before}{{"name": {json.dumps(one.name)}, "arguments": ')
                + f" arguments{n}"
            )
        )

    def several(self, separator: str) -> str:
        """Return `call`, once or several times."""
        more = "" if self.is_single else f" ({text_of(separator)} call){{0,{MAX_CALLS - 1}}}"
        return f"call{more}"


def demanded(parser: ToolParser, calls: Calls) -> str:
    """Return the grammar of an answer that consists only of calls."""
    if parser == "openai":
        return f"start: aside{{0,{MAX_CALLS}}} call\n{_harmony(calls)}"
    return f"start: calls\n{_RULES[parser](calls)}"


def possible(parser: ToolParser, calls: Calls, other: str | None) -> str:
    """Return the grammar of an answer that may have calls.

    other: rules for `other`, an answer without calls; None: any text.
    """
    if parser == "openai":
        last = "TEXT" if other is None else "other"
        rest = "" if other is None else f"\n{other}"
        final = f'last: {calls.mark("<|channel|>")} "final" {calls.mark("<|message|>")} {last}'
        return f"start: aside{{0,{MAX_CALLS}}} (last | call)\n{final}\n{_harmony(calls)}{rest}"
    rules = _RULES[parser](calls)
    if other is not None:
        return f"start: calls | other\n{other}\n{rules}"
    if parser in _FIRST_LETTERS:  # calls have no mark, and begin the answer
        first = _FIRST_LETTERS[parser]
        return f"start: text | calls\ntext: WORDS\nWORDS: /(\\s*[^\\s{first}](.|\\n)*)?/\n{rules}"
    mark = _MARKS[parser]
    if mark in calls.special_ids:  # a special token is never part of a text
        return f"start: text calls?\ntext: TEXT\n{_ANY}\n{rules}"
    if calls.is_single:
        start = "start: text | begun_call"
    else:
        start = f"start: begun_call{{0,{MAX_CALLS}}} text"
    begun = f"begun[lazy]: TEXT {text_of(mark)}\nbegun_call: begun call_rest"
    return f"{start}\ntext: TEXT\n{_ANY}\n{begun}\n{rules}"


def answered(form_rules: str, calls: Calls) -> str:
    """Return the grammar of gpt-oss's messages, the last of which has the form `answer`."""
    final = f'{calls.mark("<|channel|>")} "final" {calls.mark("<|message|>")} answer'
    return f"start: aside{{0,{MAX_CALLS}}} {final}\n{_asides(calls)}\n{form_rules}"


def _hermes(calls: Calls) -> str:
    heads = calls.heads("\n")
    return (
        f"calls: {calls.several(chr(10))}\ncall: {calls.mark('<tool_call>')} call_rest\n"
        f"call_rest: ({heads}) {text_of('}' + chr(10))} {calls.mark('</tool_call>')}\n"
        f"{calls.arguments()}"
    )


def _llama3(calls: Calls) -> str:
    def head(place: int, function: Function) -> str:
        # Lexemes as in JSON, so that a call and another object may begin alike.
        key, name = text_of('"name"'), text_of(json.dumps(function.name))
        parameters = text_of('"parameters"')
        return f'"{{" {key} ":" " " {name} "," " " {parameters} ":" " " arguments{place}'

    mark = f"{calls.mark('<|python_tag|>')}? " if "<|python_tag|>" in calls.special_ids else ""
    call = f'call: ({calls.any_of(head)}) "}}"'
    return f"calls: {mark}{calls.several('; ')}\n{call}\n{calls.arguments()}"


def _mistral(calls: Calls) -> str:
    mark = calls.mark("[TOOL_CALLS]")
    if "[ARGS]" in calls.template:
        between = calls.mark("[ARGS]")
        heads = calls.any_of(lambda n, one: f"{text_of(one.name)} {between} arguments{n}")
        more = "" if calls.is_single else f"{{1,{MAX_CALLS}}}"
        call = f"call: {mark} call_rest\ncall_rest: {heads}"
        return f"calls: call{more}\n{call}\n{calls.arguments()}"
    heads = calls.heads()
    return (
        f'calls: {mark} call_rest\ncall_rest: "[" {calls.several(", ")} "]"\n'
        f"call: ({heads}) {text_of('}')}\n{calls.arguments()}"
    )


def _tags(calls: Calls) -> str:
    """Return the rules of calls in tags. Only constant texts are restricted by their schemas."""
    rules = [
        f"calls: {calls.several(chr(10))}",
        f"call: {calls.mark('<tool_call>')} call_rest",
        "value[lazy]: /(.|\\n)*\\n<\\/parameter>\\n/",
    ]
    bodies = []
    for place, function in enumerate(calls.functions):
        schema, parts = calls.schema_of(function), [text_of(f"\n<function={function.name}>\n")]
        is_free = "properties" not in schema and schema.get("additionalProperties") is not False
        if is_free:
            parts.append("parameter*")
            rules.append('parameter: "<parameter=" /[A-Za-z0-9_.-]{1,64}/ ">\\n" value')
        for number, (key, value) in enumerate(_allowed(schema)):
            rule = f"value{place}_{number}"
            rules += _tag_value(rule, value, schema, _owner(function))
            is_needed = key in schema.get("required", ())
            part = f"{text_of(f'<parameter={key}>{chr(10)}')} {rule}"
            parts.append(part if is_needed else f"({part})?")
        bodies.append(" ".join([*parts, text_of("</function>\n")]))
    rest = f"call_rest: ({' | '.join(bodies)}) {calls.mark('</tool_call>')}"
    return "\n".join([*dict.fromkeys(rules), rest])


def _tag_value(name: str, value: Any, schema: Mapping[str, Any], owner: str) -> list[str]:
    """Return rules for a value of a schema and its closing tag; the first rule has this name."""
    end = text_of("\n</parameter>\n")
    value = resolved(value, schema)
    constants = value.get("enum", [value["const"]] if "const" in value else None)
    if constants and all(isinstance(one, str) for one in constants):
        return [f"{name}: ({' | '.join(map(text_of, constants))}) {end}"]
    if is_text(value):
        return [f"{name}: value"]
    described = json.dumps(_with_definitions(value, schema))
    return [f"{name}: {name}_json {end}", json_rule(f"{name}_json", described, owner)]


def _allowed(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the properties of a schema that a value may have, with their schemas."""
    known = schema.get("properties", {}).items()
    return [(key, value) for key, value in known if referred(value, schema) is not False]


def _owner(function: Function) -> str:
    """Return a function's name in errors."""
    return f"tool {function.name}"


def resolved(value: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of a schema, or what it refers to within the whole; {} if it is invalid."""
    found = referred(value, schema)
    return found if isinstance(found, Mapping) else {}


def is_text(schema: Mapping[str, Any]) -> bool:
    """Return whether all values of a schema are texts; also if it does not say."""
    return schema.get("type", "string") == "string" and not _ALTERNATIVES & schema.keys()


def _with_definitions(value: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**kept, **value, "x-guidance": _ON_ONE_LINE}


def _pythonic(calls: Calls) -> str:
    rules: list[str] = []
    bodies = []
    for place, function in enumerate(calls.functions):
        schema = calls.schema_of(function)
        needed: list[str] = []
        others: list[str] = []
        for number, (key, value) in enumerate(_allowed(schema)):
            rule = f"value{place}_{number}"
            described = _with_definitions(value if isinstance(value, Mapping) else {}, schema)
            rules.append(json_rule(rule, json.dumps(described), _owner(function)))
            part = f"{text_of(f'{key}=')} {rule}"
            (needed if key in schema.get("required", ()) else others).append(part)
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            rules += [
                'given: /[A-Za-z_][A-Za-z0-9_]{0,63}/ "=" any_value',
                f"any_value: %json {json.dumps({})}",
            ]
            arguments = '(given (", " given)*)?'
        else:
            arguments = _in_order(needed, others)
        bodies.append(f"{text_of(f'{function.name}(')} {arguments} {text_of(')')}")
    calls_rule = f"calls: {text_of('[')} {calls.several(', ')} {text_of(']')}"
    return "\n".join([calls_rule, f"call: {' | '.join(bodies)}", *dict.fromkeys(rules)])


def _in_order(needed: Sequence[str], others: Sequence[str]) -> str:
    """Return a rule for all needed items and any of the others, separated by commas."""
    rest = "".join(f' (", " {one})?' for one in others)
    if needed:
        return ' ", " '.join(needed) + rest
    starts = []
    for place, one in enumerate(others):
        later = "".join(f' (", " {two})?' for two in others[place + 1 :])
        starts.append(f"{one}{later}")
    return f"({' | '.join(starts)})?" if starts else ""


def _harmony(calls: Calls) -> str:
    heads = calls.any_of(
        lambda n, one: (
            f'{text_of(one.name + " ")} {calls.mark("<|constrain|>")} "json" '
            f"{calls.mark('<|message|>')} arguments{n}"
        )
    )
    head = f'{calls.mark("<|channel|>")} "commentary to=functions."'
    return f"call: {head} ({heads})\n{_asides(calls)}\n{calls.arguments()}"


def _asides(calls: Calls) -> str:
    channel, message = calls.mark("<|channel|>"), calls.mark("<|message|>")
    return (
        f'aside: {channel} ("analysis" | "commentary") {message} TEXT {calls.mark("<|end|>")} '
        f'{calls.mark("<|start|>")} "assistant"\n{_ANY}'
    )


_RULES: dict[ToolParser, Callable[[Calls], str]] = {
    "hermes": _hermes,
    "llama3_json": _llama3,
    "mistral": _mistral,
    "qwen3_coder": _tags,
    "pythonic": _pythonic,
}
_MARKS: dict[ToolParser, str] = {
    "hermes": "<tool_call>",
    "qwen3_coder": "<tool_call>",
    "mistral": "[TOOL_CALLS]",
}
_FIRST_LETTERS: dict[ToolParser, str] = {"llama3_json": "{", "pythonic": "\\["}
