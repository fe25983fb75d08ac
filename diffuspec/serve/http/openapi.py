"""The OpenAPI document: the bodies and responses of routes, by status.

Responses are described by their types when the document is first requested; they are not checked
while requests are answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import FastAPI
from pydantic import Field
from typing_extensions import TypedDict  # pydantic rejects typing's before Python 3.12

from diffuspec.serve.messages import objects as message_objects
from diffuspec.serve.openai import objects
from diffuspec.serve.openai.schema import object_schemas, reference
from diffuspec.serve.responses import objects as response_objects


class Version(TypedDict):
    version: str


class Health(TypedDict):
    status: Literal["ok"]


class ServerLoad(TypedDict):
    server_load: Annotated[int, Field(description="Requests in progress.")]


class Readiness(TypedDict):
    status: Annotated[
        Literal["ready", "degraded"],
        Field(description="degraded: slower, but with the same answers."),
    ]
    running: int
    waiting: int
    healthy_roles: int


Responses: TypeAlias = dict[int | str, dict[str, Any]]

# The objects of all responses, from which nested objects are found.
_OBJECTS: tuple[Any, ...] = (
    objects.ChatCompletion,
    objects.ChatCompletionChunk,
    objects.Completion,
    objects.CompletionChunk,
    objects.DetokenizedText,
    objects.Error,
    Health,
    objects.ModelList,
    Readiness,
    ServerLoad,
    objects.TokenizedPrompt,
    objects.TokenizerInfo,
    Version,
    message_objects.AnthropicError,
    message_objects.AnthropicMessage,
    message_objects.TokenCount,
    *message_objects.EVENTS,
    *response_objects.EVENTS,
    response_objects.InputTokens,
    response_objects.ResponseObject,
)

_STATUSES = {
    400: "The request is wrong: `param` names where.",
    401: "No API key of this service.",
    403: "A host name that this service does not answer to.",
    404: "No such model.",
    408: "The body was too slow.",
    413: "The body is too large.",
    415: "The body is not JSON by its header, or compressed.",
    429: "The queue is full, or the key is used up.",
    500: "An error of the service.",
    503: "Not ready, shutting down, or a worker failed: the same request may succeed.",
    504: "The request took longer than the service allows.",
    529: "Overloaded, not ready, shutting down, or a worker failed: the same request may succeed.",
}
ANYWHERE = (400, 403, 500)
OF_THE_MODEL = (400, 401, 403, 500, 503)
OF_BODIES = (*OF_THE_MODEL, 404, 408, 413, 415, 429)
_ID = {"description": "The id of the request.", "schema": {"type": "string"}}
_RETRY = {"description": "Seconds after which to try again.", "schema": {"type": "string"}}


def takes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAPI's entry for a request body with this schema."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def takes_name(description: str) -> dict[str, Any]:
    """Return OpenAPI's entry for a path's parameter `name`."""
    schema = {"type": "string"}
    one = {"name": "name", "in": "path", "required": True, "schema": schema}
    return {"parameters": [{**one, "description": description}]}


def answers(
    kind: type[Any],
    description: str,
    *statuses: int,
    chunks: Sequence[Any] = (),
    is_anthropics: bool = False,
) -> Responses:
    """Return OpenAPI's entries for answers of a type, and for errors with these statuses.

    chunks: types of a stream's events, besides errors. is_anthropics: errors have the format and
    statuses of Anthropic's API.
    """
    error = message_objects.AnthropicError if is_anthropics else objects.Error
    content = {"application/json": {"schema": reference(kind)}}
    if chunks:
        event = {"anyOf": [*map(reference, chunks), reference(error)]}
        content["text/event-stream"] = {"schema": event | {"description": "Data of one event."}}
    if is_anthropics:
        statuses = (*(status for status in statuses if status != 503), 529)
    return said(description, content, *statuses, error=error)


def said(
    description: str,
    content: Mapping[str, Any],
    *statuses: int,
    error: type[Any] = objects.Error,
) -> Responses:
    """Return OpenAPI's entries for responses with this content, and for errors."""
    told = {"application/json": {"schema": reference(error)}}
    headers = {"x-request-id": _ID}
    responses: Responses = {
        200: {"description": description, "content": content, "headers": headers}
    }
    for status in sorted(statuses):
        more = {"retry-after": _RETRY} if status in (429, 503, 529) else {}
        responses[status] = {
            "description": _STATUSES[status],
            "content": told,
            "headers": headers | more,
        }
    return responses


def install(app: FastAPI) -> None:
    """Add the schemas to which responses refer to an application's document."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        is_built = app.openapi_schema is not None
        document = build()
        if not is_built:
            document.setdefault("components", {})["schemas"] = object_schemas(_OBJECTS)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it
