"""JSON schemas of bodies and response objects, for the OpenAPI document."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.serve.openai.bodies import Body, ChatBody
from diffuspec.serve.openai.key_table import LABELS
from diffuspec.serve.openai.parsing import DEFAULT_TEMPERATURE
from diffuspec.serve.openai.unread_keys import EXTENSIONS

_REFERENCE = "#/components/schemas/{model}"

_JSON_SCHEMA = {"type": ["object", "string"], "description": "The answer is JSON of this schema."}
_FORMS: dict[str, Any] = {
    "response_format": {
        "type": "object",
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {"type": "object", "properties": {"schema": {"type": "object"}}},
            "schema": {"type": "object", "description": "With json_object, as llama.cpp has it."},
        },
        "required": ["type"],
        "description": "The form of the answer, as OpenAI has it.",
    },
    "structured_outputs": {
        "type": "object",
        "description": "The same as vLLM has it: one of json, json_object, regex, choice, grammar.",
    },
    "guided_json": _JSON_SCHEMA,
    "guided_regex": {"type": "string", "description": "The answer matches this, whole."},
    "guided_choice": {"type": "array", "items": {"type": "string"}},
    "guided_grammar": {"type": "string", "description": "Lark or GBNF."},
}
_LABELS: dict[str, Any] = {
    name: {"description": "Taken, without effect."} for name in sorted(LABELS)
}


def reference(kind: type[Any]) -> dict[str, Any]:
    """Return the reference to an object's schema in the OpenAPI document."""
    return {"$ref": _REFERENCE.format(model=kind.__name__)}


def object_schemas(kinds: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of response objects, and of the objects nested in them, by name."""
    adapters: list[tuple[Any, Any, TypeAdapter[Any]]]
    adapters = [(kind, "serialization", TypeAdapter(kind)) for kind in kinds]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE)
    found: dict[str, Any] = schemas["$defs"]
    return found


@functools.cache
def body_schema(kind: type[Body]) -> dict[str, Any]:
    """Return the schema of a body, with the declared parameters among its keys."""
    schema = _inlined(kind.model_json_schema())
    properties = {**_sampling(), **_FORMS, **schema["properties"], **_LABELS}
    properties["speculation"] = _speculation(properties["speculation"]["description"])
    return _described(schema, properties)


@functools.cache
def extended_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of another API's body, with the keys that it shares with chats."""
    chat, schema = body_schema(ChatBody)["properties"], _inlined(kind.model_json_schema())
    extensions = {name: one for name, one in chat.items() if name in EXTENSIONS}
    return _described(schema, {**extensions, **_LABELS, **schema["properties"]})


def _described(schema: Mapping[str, Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    description = (
        f"{schema['description']} A key that is null is the same as one not given. Unknown keys "
        "are ignored, and named in the header x-diffuspec-ignored of the answer."
    )
    return {
        **schema,
        "description": description,
        "properties": properties,
        "additionalProperties": True,
    }


def _sampling() -> dict[str, Any]:
    """Return the schemas of the sampling parameters in the form of bodies."""
    sampling: dict[str, Any] = _inlined(TypeAdapter(SamplingParams).json_schema())["properties"]
    sampling["temperature"]["default"] = DEFAULT_TEMPERATURE
    sampling["top_k"]["minimum"] = -1  # vLLM's value for all tokens
    del sampling["top_p"]["exclusiveMinimum"]
    sampling["top_p"]["minimum"] = 0  # OpenAI's value for only the likeliest token
    for name in ("stop", "bad_words"):
        sampling[name] = _one_or_several(sampling[name])
    return sampling


def _speculation(text: str) -> dict[str, Any]:
    speculation = _inlined(TypeAdapter(SpeculationParams).json_schema())
    return {"anyOf": [speculation, {"const": "off"}, {"type": "null"}], "description": text}


def _one_or_several(several: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list that may also be a single item."""
    outer = {key: several[key] for key in ("title", "description", "default")}
    inner = {key: value for key, value in several.items() if key not in outer}
    return {**outer, "anyOf": [several["items"], inner]}


def _inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its references replaced by definitions."""
    definitions = schema.get("$defs", {})

    def inline(value: Any) -> Any:
        if isinstance(value, list):
            return [inline(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$ref" in value:
            return inline(definitions[value["$ref"].rpartition("/")[2]])
        return {key: inline(one) for key, one in value.items() if key != "$defs"}

    inlined: dict[str, Any] = inline(dict(schema))
    return inlined
