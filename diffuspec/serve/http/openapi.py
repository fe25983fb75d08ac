"""The OpenAPI document: what routes take and answer, by status.

Responses are described by the types that they are written as, when the document is first asked for.
They are not checked while requests are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from fastapi import FastAPI

from diffuspec.serve.openai import objects
from diffuspec.serve.openai.schema import object_schemas, reference

Responses: TypeAlias = dict[int | str, dict[str, Any]]

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
}
ANYWHERE = (400, 403, 500)
OF_THE_MODEL = (400, 401, 403, 500, 503)
OF_BODIES = (*OF_THE_MODEL, 404, 408, 413, 415, 429)
_ID = {"description": "The id of the request.", "schema": {"type": "string"}}
_RETRY = {"description": "Seconds after which to try again.", "schema": {"type": "string"}}


def takes(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAPI's entry for a request body of this schema."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def takes_name(description: str) -> dict[str, Any]:
    """Return OpenAPI's entry for the parameter `name` of a path."""
    schema = {"type": "string"}
    one = {"name": "name", "in": "path", "required": True, "schema": schema}
    return {"parameters": [{**one, "description": description}]}


def answers(
    kind: type[Any], description: str, *statuses: int, chunks: type[Any] | None = None
) -> Responses:
    """Return OpenAPI's entries for answers of a kind, and for errors with these statuses.

    chunks: of the events of a stream, in place of which an error may come.
    """
    content = {"application/json": {"schema": reference(kind)}}
    if chunks is not None:
        event = {"anyOf": [reference(chunks), reference(objects.Error)]}
        content["text/event-stream"] = {"schema": event | {"description": "Data of one event."}}
    return said(description, content, *statuses)


def said(description: str, content: Mapping[str, Any], *statuses: int) -> Responses:
    """Return OpenAPI's entries for answers with this content, and for errors."""
    error = {"application/json": {"schema": reference(objects.Error)}}
    headers = {"x-request-id": _ID}
    responses: Responses = {
        200: {"description": description, "content": content, "headers": headers}
    }
    for status in sorted(statuses):
        more = {"retry-after": _RETRY} if status in (429, 503) else {}
        responses[status] = {
            "description": _STATUSES[status],
            "content": error,
            "headers": headers | more,
        }
    return responses


def install(app: FastAPI) -> None:
    """Add the schemas that responses refer to, to the document of an application."""
    build = app.openapi

    def openapi() -> dict[str, Any]:
        is_built = app.openapi_schema is not None
        document = build()
        if not is_built:
            document.setdefault("components", {})["schemas"] = object_schemas()
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it
