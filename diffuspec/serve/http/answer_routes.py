"""Routes that answer chats and texts, in the format of each API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from diffuspec.serve.http import openapi
from diffuspec.serve.http.completions import Completions
from diffuspec.serve.http.ignored_keys import HEADER
from diffuspec.serve.messages.asking import ask_message
from diffuspec.serve.messages.bodies import MessagesBody
from diffuspec.serve.messages.objects import (
    EVENTS as MESSAGE_EVENTS,
    AnthropicMessage,
    is_anthropics,
)
from diffuspec.serve.openai.asking import Ask, ask_chat, ask_completion
from diffuspec.serve.openai.bodies import ChatBody, CompletionBody
from diffuspec.serve.openai.errors import HttpError
from diffuspec.serve.openai.objects import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChunk,
)
from diffuspec.serve.openai.schema import body_schema, extended_schema
from diffuspec.serve.responses.asking import ask_response
from diffuspec.serve.responses.bodies import ResponsesBody
from diffuspec.serve.responses.objects import EVENTS as RESPONSE_EVENTS, ResponseObject

_IGNORED = {
    "description": "Up to 8 keys of the body that had no effect, separated by commas.",
    "schema": {"type": "string"},
}
# FastAPI.add_api_route, with the arguments that these routes share
Add: TypeAlias = Callable[..., None]


@dataclass(frozen=True, slots=True)
class _Route:
    path: str
    summary: str
    ask: Ask
    schema: Mapping[str, Any]  # JSON schema of the body
    whole: Any  # type of the answer
    chunks: Sequence[Any]  # types of the events' data


def add_answers(add: Add, completions: Completions) -> None:
    """Add the routes to an application."""
    for route in _routes():
        responses = openapi.answers(
            route.whole,
            "The answer, or its chunks as events with `stream: true`.",
            *openapi.OF_BODIES,
            504,
            chunks=route.chunks,
            is_anthropics=is_anthropics(route.path),
        )
        responses[200]["headers"] = responses[200]["headers"] | {HEADER: _IGNORED}
        add(
            route.path,
            _answering(route.ask, completions),
            methods=["POST"],
            name=route.path,
            description=route.summary,
            openapi_extra=openapi.takes(route.schema),
            responses=responses,
        )
    stored, methods = "/v1/responses/{name:path}", ["GET", "POST", "DELETE"]
    add(stored, _find, methods=methods, include_in_schema=False)


def _routes() -> list[_Route]:
    return [
        _Route(
            "/v1/chat/completions",
            "Answer a conversation.",
            ask_chat,
            body_schema(ChatBody),
            ChatCompletion,
            [ChatCompletionChunk],
        ),
        _Route(
            "/v1/completions",
            "Continue a text.",
            ask_completion,
            body_schema(CompletionBody),
            Completion,
            [CompletionChunk],
        ),
        _Route(
            "/v1/responses",
            "Answer a conversation, in the words of OpenAI's Responses API.",
            ask_response,
            extended_schema(ResponsesBody),
            ResponseObject,
            RESPONSE_EVENTS,
        ),
        _Route(
            "/v1/messages",
            "Answer a conversation, in the words of Anthropic's Messages API.",
            ask_message,
            extended_schema(MessagesBody),
            AnthropicMessage,
            MESSAGE_EVENTS,
        ),
    ]


def _answering(ask: Ask, completions: Completions) -> Callable[..., Any]:
    async def answer(request: Request) -> Response:
        return await completions.answer(ask, request)

    return answer


async def _find(request: Request) -> Response:
    """Refuse to retrieve an earlier answer."""
    raise HttpError(404, "this service stores no answers", "not_found")
