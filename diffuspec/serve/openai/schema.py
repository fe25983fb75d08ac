"""JSON schemas of bodies and of the objects of answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.serve.openai import objects
from diffuspec.serve.openai.bodies import Body
from diffuspec.serve.openai.parsing import DEFAULT_TEMPERATURE
from diffuspec.serve.openai.unsupported import IGNORED

# All that the service answers with; what these have within themselves follows from them.
_OBJECTS: tuple[Any, ...] = (
    objects.ChatCompletion,
    objects.ChatCompletionChunk,
    objects.Completion,
    objects.CompletionChunk,
    objects.DetokenizedText,
    objects.Error,
    objects.Health,
    objects.ModelList,
    objects.Readiness,
    objects.TokenizedPrompt,
    objects.Version,
)
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
_LABELS: dict[str, Any] = {name: {"description": "Taken, without effect."} for name in IGNORED}


def reference(kind: type[Any]) -> dict[str, Any]:
    """Return the reference to an object's schema in the OpenAPI document."""
    return {"$ref": _REFERENCE.format(model=kind.__name__)}


def object_schemas() -> dict[str, Any]:
    """Return the schemas of all objects of answers by their names."""
    adapters: list[tuple[Any, Any, TypeAdapter[Any]]]
    adapters = [(kind, "serialization", TypeAdapter(kind)) for kind in _OBJECTS]
    _, schemas = TypeAdapter.json_schemas(adapters, ref_template=_REFERENCE)
    found: dict[str, Any] = schemas["$defs"]
    return found


def body_schema(kind: type[Body]) -> dict[str, Any]:
    """Return the schema of a body, with the declared parameters among its keys."""
    schema = _inlined(kind.model_json_schema())
    sampling = _inlined(TypeAdapter(SamplingParams).json_schema())["properties"]
    speculation = _inlined(TypeAdapter(SpeculationParams).json_schema())
    sampling["temperature"]["default"] = DEFAULT_TEMPERATURE
    sampling["top_k"]["minimum"] = -1  # vLLM's word for all
    del sampling["top_p"]["exclusiveMinimum"]
    sampling["top_p"]["minimum"] = 0  # OpenAI's word for the likeliest token
    for name in ("stop", "bad_words"):
        sampling[name] = _one_or_several(sampling[name])
    properties = {**sampling, **_FORMS, **schema["properties"], **_LABELS}
    text = properties["speculation"]["description"]
    choices = [speculation, {"const": "off"}, {"type": "null"}]
    properties["speculation"] = {"anyOf": choices, "description": text}
    description = f"{schema['description']} A key that is null is the same as one not given."
    return {
        **schema,
        "description": description,
        "properties": properties,
        "additionalProperties": False,
    }


def _one_or_several(several: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a list that may also be one of its items alone."""
    outer = {key: several[key] for key in ("title", "description", "default")}
    inner = {key: value for key, value in several.items() if key not in outer}
    return {**outer, "anyOf": [several["items"], inner]}


def _inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its definitions in place of references to them."""
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
