"""Errors as Anthropic's clients expect them."""

from __future__ import annotations

from diffuspec.serve.messages.objects import AnthropicError, ErrorKind
from diffuspec.serve.openai.errors import ErrorAnswer

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
_OVERLOADED = 529  # Anthropic's status for a service that is overloaded or not available


def is_anthropics(path: str) -> bool:
    """Whether a path is of Anthropic's API."""
    return path == _PATH or path.startswith(f"{_PATH}/")


def status_of(answer: ErrorAnswer) -> int:
    """Return the status that an error has in Anthropic's API."""
    is_overloaded = answer.status == 503 or answer.code == "overloaded"
    return _OVERLOADED if is_overloaded else answer.status


def body_of(answer: ErrorAnswer, request_id: str | None) -> AnthropicError:
    """Return the JSON object of an error, also the data of an event inside of a stream."""
    status = status_of(answer)
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {
        "type": "error",
        "error": {"type": kind, "message": answer.message},
        "request_id": request_id,
    }
