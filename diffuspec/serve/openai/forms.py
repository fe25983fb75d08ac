"""Forms of answers: OpenAI's and vLLM's words for a `StructuredOutput`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from diffuspec.core.errors import InvalidRequestError
from diffuspec.core.params import StructuredOutput
from diffuspec.serve.openai.errors import BadRequestError

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
# Keys of objects, of which exactly one has a value.
_KEYS = {
    "structured_outputs": tuple(_STRUCTURED),
    "structured_output": tuple(one.name for one in fields(StructuredOutput)),
}
WORDS = frozenset({"response_format", "structured_outputs", "structured_output", *_GUIDED})


def read_form(given: Mapping[str, Any]) -> StructuredOutput | None:
    """Return the form that the keys of a body ask for, of those in WORDS; None for any text.

    Raises BadRequestError, also when several keys ask for one.
    """
    forms = {name: _form(name, value) for name, value in given.items() if name in WORDS}
    forms = {name: form for name, form in forms.items() if form}
    if len(forms) > 1:
        raise BadRequestError(f"{' and '.join(sorted(forms))} exclude each other", max(forms))
    for name, form in forms.items():
        _check_is_one(name, form)
        try:
            return StructuredOutput(**form)
        except (InvalidRequestError, TypeError) as error:  # TypeError: a key that there is not
            reason = str(error).partition(", got ")[0] if _is_ours(error) else "has unknown keys"
            raise BadRequestError(f"{name}: {reason}", name) from None
    return None


def _check_is_one(name: str, form: Mapping[str, Any]) -> None:
    """Raise BadRequestError unless a form has one key with a value."""
    if len([key for key, value in form.items() if value]) == 1:
        return
    if name not in _KEYS:
        raise BadRequestError(f"{name} must not be empty", name)
    raise BadRequestError(f"{name} must have exactly one of {', '.join(_KEYS[name])}", name)


def _is_ours(error: Exception) -> bool:
    return isinstance(error, InvalidRequestError)


def _form(name: str, value: Any) -> dict[str, Any]:
    """Return the fields of a form; none, if the key asks for nothing."""
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
    """Return a schema as JSON text; any other value as it is."""
    is_schema = name in ("json", "guided_json") and not isinstance(value, str)
    return json.dumps(value) if is_schema else value
