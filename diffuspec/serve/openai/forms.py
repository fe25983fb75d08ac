"""Formats of answers: OpenAI's and vLLM's keys for a `StructuredOutput`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeAlias

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.conventions import Conventions
from diffuspec.serve.openai.call_grammars import Calls, answered
from diffuspec.serve.openai.errors import BadRequestError
from diffuspec.serve.openai.reading.thinking import CLOSE, OPEN
from diffuspec.text.lark import rules_of

_GUIDED = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_STRUCTURED = {
    "json": "json_schema",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
# Keys of objects, exactly one of which has a value.
_KEYS = {
    "structured_outputs": tuple(_STRUCTURED),
    "structured_output": tuple(one.name for one in fields(StructuredOutput)),
}
_TOO_LONG = "the form of the answer is too long: its"
WORDS = frozenset({"response_format", "structured_outputs", "structured_output", *_GUIDED})


def read_form(given: Mapping[str, Any]) -> StructuredOutput | None:
    """Return the format that the keys of a body request, of those in WORDS; None for any text.

    Raises BadRequestError, also if several keys request a format.
    """
    forms = {name: _form(name, value) for name, value in given.items() if name in WORDS}
    forms = {name: form for name, form in forms.items() if form}
    first = next(iter(forms.values()), None)
    if any(form != first for form in forms.values()):  # clients send one under several names
        raise BadRequestError(f"{' and '.join(sorted(forms))} exclude each other", max(forms))
    for name, form in forms.items():
        _check_is_one(name, form)
        try:
            return StructuredOutput(**form)
        except (InvalidRequestError, TypeError) as error:  # TypeError: an unknown key
            reason = (
                str(error).partition(", got ")[0]
                if isinstance(error, InvalidRequestError)
                else "has unknown keys"
            )
            raise BadRequestError(f"{name}: {reason}", name) from None
    return None


def _check_is_one(name: str, form: Mapping[str, Any]) -> None:
    """Raise BadRequestError unless a format has one key with a value."""
    if len([key for key, value in form.items() if value]) == 1:
        return
    if name not in _KEYS:
        raise BadRequestError(f"{name} must not be empty", name)
    raise BadRequestError(f"{name} must have exactly one of {', '.join(_KEYS[name])}", name)


def _form(name: str, value: Any) -> dict[str, Any]:
    """Return the fields of a format; empty if the key requests none."""
    if name in _GUIDED:
        return {_GUIDED[name]: _text(name, value)}
    if not isinstance(value, Mapping):
        raise BadRequestError(f"{name} must be an object", name)
    if name == "structured_output":
        return dict(value)
    if name == "structured_outputs":
        unknown = value.keys() - _STRUCTURED.keys()
        if unknown:
            known = ", ".join(_STRUCTURED)
            raise BadRequestError(f"structured_outputs may have {known}", name)
        return {_STRUCTURED[key]: _text(key, one) for key, one in value.items() if one is not None}
    return _response_format(value)


def _response_format(value: Mapping[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        schema = value.get("schema")
        return {"json_object": True} if schema is None else {"json_schema": _text("json", schema)}
    described = value.get("json_schema")
    if kind == "json_schema" and isinstance(described, Mapping) and "schema" in described:
        return {"json_schema": _text("guided_json", described["schema"])}
    raise BadRequestError(
        "response_format must have the type text, json_object, or json_schema with "
        "json_schema.schema",
        "response_format",
    )


def _text(name: str, value: Any) -> Any:
    """Return a schema as JSON text; any other value unchanged."""
    is_schema = name in ("json", "guided_json") and not isinstance(value, str)
    return json.dumps(value) if is_schema else value


Thinking: TypeAlias = Literal["inside", "open", "over"]
"""Whether a prompt ends inside reasoning, leaves reasoning open, or has ended it."""


def thinking_after(text: str) -> Thinking:
    """Return the state of reasoning at the end of a prompt."""
    end = text.rstrip()
    if end.endswith(OPEN):
        return "inside"
    return "over" if end.endswith(CLOSE) else "open"


def thinking_within(message: str) -> Thinking:
    """Return the state of reasoning at the end of a message that the answer continues."""
    if message.rfind(OPEN) > message.rfind(CLOSE):
        return "inside"
    return "over" if message.strip() else "open"


def after_reasoning(
    form: StructuredOutput, conventions: Conventions, thinking: Thinking
) -> StructuredOutput:
    """Return the format of reasoning and answer together. Raises InvalidRequestError."""
    calls = Calls((), False, True, conventions.special_ids, conventions.template)
    if conventions.has_channels:
        return as_form(answered(rules_of(form, "answer"), calls), _TOO_LONG)
    if conventions.reasoning == "none" or thinking == "over":
        return form
    opened, close = calls.mark(OPEN), calls.mark(CLOSE)
    if CLOSE in conventions.special_ids:  # never a part of a text
        thought = f"thought: THOUGHT {close} SPACE\nTHOUGHT: /(.|\\n)*/"
    else:
        thought = f"thought: begun_thought SPACE\nbegun_thought[lazy]: /(.|\\n)*/ {close}"
    if thinking == "inside":
        start = "start: thought answer"
    elif conventions.reasoning == "deepseek_r1":  # DeepSeek R1 may omit the opening mark
        start = f"start: {opened}? thought answer"
    else:
        start = f"start: ({opened} thought)? answer"
    space = "SPACE: /[ \\n]{0,4}/"
    return as_form(f"{start}\n{thought}\n{space}\n{rules_of(form, 'answer')}", _TOO_LONG)


def as_form(grammar: str, problem: str, param: str | None = None) -> StructuredOutput:
    """Return the format of a grammar. Raises BadRequestError, which begins with `problem`."""
    try:
        return StructuredOutput(grammar=grammar)
    except InvalidRequestError as error:
        reason = str(error).partition(", got ")[0]
        raise BadRequestError(f"{problem} {reason}", param) from None
