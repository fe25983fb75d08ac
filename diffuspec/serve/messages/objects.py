"""The objects of responses of /v1/messages, whole and as events."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import Field
from typing_extensions import TypedDict  # pydantic rejects typing's before Python 3.12

from diffuspec.serve.openai.errors import ErrorAnswer
from diffuspec.serve.openai.speculation_objects import SpeculationUsage

ErrorKind: TypeAlias = Literal[
    "api_error",
    "authentication_error",
    "invalid_request_error",
    "not_found_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
    "request_too_large",
    "timeout_error",
]
EndReason: TypeAlias = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class AnthropicErrorDetails(TypedDict):
    type: ErrorKind
    message: str
    details: NotRequired[
        Annotated[dict[str, Any], Field(description="With an `error_code` that clients know.")]
    ]


class AnthropicError(TypedDict):
    """An error, also as the last event of a failed stream."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str | None


class AnswerText(TypedDict):
    type: Literal["text"]
    text: str


class AnswerThinking(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: Annotated[str, Field(description="A digest of the text; nothing checks it.")]


class AnswerToolUse(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock: TypeAlias = AnswerText | AnswerThinking | AnswerToolUse


class OutputDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    input_tokens: Annotated[
        int, Field(description="Prompt tokens not found in the target's cache.")
    ]
    cache_read_input_tokens: Annotated[
        int, Field(description="Prompt tokens found in the target's cache.")
    ]
    cache_creation_input_tokens: Literal[0]
    output_tokens: int
    output_tokens_details: NotRequired[OutputDetails]
    speculation: NotRequired[SpeculationUsage]


class AnthropicMessage(TypedDict):
    """An answer, or the beginning of one."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: EndReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageStart(TypedDict):
    type: Literal["message_start"]
    message: AnthropicMessage


class Ping(TypedDict):
    type: Literal["ping"]


class BlockStart(TypedDict):
    type: Literal["content_block_start"]
    index: int
    content_block: AnswerBlock


class TextDelta(TypedDict):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(TypedDict):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(TypedDict):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(TypedDict):
    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(TypedDict):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(TypedDict):
    type: Literal["content_block_stop"]
    index: int


class EndDelta(TypedDict):
    stop_reason: EndReason
    stop_sequence: str | None


class MessageDelta(TypedDict):
    type: Literal["message_delta"]
    delta: EndDelta
    usage: MessageUsage


class MessageStop(TypedDict):
    type: Literal["message_stop"]


class TokenCount(TypedDict):
    input_tokens: int


EVENTS: tuple[Any, ...] = (
    MessageStart,
    Ping,
    BlockStart,
    BlockDelta,
    BlockStop,
    MessageDelta,
    MessageStop,
)


_KINDS: dict[int, ErrorKind] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_PATH = "/v1/messages"
_OVERLOADED = 529  # Anthropic's status for an overloaded or unavailable service


def is_anthropics(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def status_of(answer: ErrorAnswer) -> int:
    """Return the status of an error in Anthropic's API."""
    is_overloaded = answer.status == 503 or answer.code == "overloaded"
    return _OVERLOADED if is_overloaded else answer.status


def body_of(answer: ErrorAnswer, request_id: str | None) -> AnthropicError:
    """Return the JSON object of an error, which is also the data of an event in a stream."""
    status = status_of(answer)
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    error: AnthropicErrorDetails = {"type": kind, "message": answer.message}
    if answer.details:
        error["details"] = dict(answer.details)
    return {
        "type": "error",
        "error": error,
        "request_id": request_id,
    }
