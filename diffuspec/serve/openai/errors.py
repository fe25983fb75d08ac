"""Errors as OpenAI's clients expect them: a status, and a JSON object with type, code and param."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from diffuspec.core import errors
from diffuspec.core.errors import DiffuspecError, InvalidRequestError
from diffuspec.core.parameter import declared
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.serve.openai.objects import Error, ErrorCode, ErrorType


class BadRequestError(InvalidRequestError):
    """A wrong body, and the place of the error. Messages never contain a user's text."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: ErrorCode | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        """details: those of an error in Anthropic's API."""
        super().__init__(message)
        self.details = details or {}
        self.param = param
        self.code = code


class HttpError(DiffuspecError):
    """A refusal without a class in the library's tree: of a key, a path, a size, a time."""

    def __init__(
        self,
        status: int,
        message: str,
        code: ErrorCode,
        *,
        kind: ErrorType = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.answer = ErrorAnswer(status, message, kind, code, param, headers or {})


def no_such_model(served: str) -> HttpError:
    """Return the refusal of a request for a model other than the served one."""
    message = f"no such model: this service has {served!r}"
    return HttpError(404, message, "model_not_found", param="model")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error in the form in which clients get it."""

    status: int
    message: str
    kind: ErrorType
    code: ErrorCode | None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    def body(self) -> Error:
        """Return the JSON object, which is also the data of an event in a stream."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


_SAMPLING = {one.name for one in declared(SamplingParams)}
_NAMES = _SAMPLING | {"prompt", "prediction", "chat_template_kwargs", "continue_final_message"}
_SPECULATION = {one.name for one in declared(SpeculationParams)} - _NAMES
_RETRY = {"retry-after": "1"}
_NO_RETRY = {"x-should-retry": "false"}  # respected by openai-python
_INVALID: ErrorType = "invalid_request_error"
_SERVER: ErrorType = "server_error"

# Internal details go to the log, not to clients.
_ANSWERS: dict[type[BaseException], ErrorAnswer] = {
    errors.OverloadedError: ErrorAnswer(
        429, "too many requests are waiting; try again later", "rate_limit_error", "overloaded",
        headers=_RETRY,
    ),
    errors.TrialTimeoutError: ErrorAnswer(
        503, "the form of the answer could not be tried in time; try again later", _SERVER,
        "overloaded", headers=_RETRY,
    ),
    errors.ShuttingDownError: ErrorAnswer(
        503, "the service is shutting down; try again later", _SERVER, "unavailable",
        headers=_RETRY,
    ),
    errors.RequestCancelledError: ErrorAnswer(
        503, "the service is shutting down; try again later", _SERVER, "cancelled", headers=_RETRY
    ),
    errors.FatalRequestError: ErrorAnswer(
        500, "workers were lost three times while they worked on this request, the last time while "
        "it ran alone; do not retry it", _SERVER, "fatal_request", headers=_NO_RETRY,
    ),
    errors.VerifierUnavailableError: ErrorAnswer(
        503, "the model is not available now; try again later", _SERVER, "unavailable",
        headers=_RETRY,
    ),
    errors.WorkerError: ErrorAnswer(
        503, "a worker failed; the same request may succeed", _SERVER, "worker_failed"
    ),
    TimeoutError: ErrorAnswer(
        504, "the request took longer than the service allows", _SERVER, "timeout",
        headers=_NO_RETRY,
    ),
}  # fmt: skip
# How errors of schemas within a grammar begin.
_OF_A_GRAMMAR = ("%json on line ", "a schema of the grammar ")
_UNKNOWN = ErrorAnswer(500, "internal error", _SERVER, "internal_error", headers=_NO_RETRY)


def answer_to(error: BaseException) -> ErrorAnswer:
    """Return the answer to an error: that of its nearest class that has one."""
    if isinstance(error, HttpError):
        return error.answer
    if isinstance(error, InvalidRequestError):
        code = getattr(error, "code", None)
        if isinstance(error, errors.ContextLengthError):
            code = "context_length_exceeded"
        param = getattr(error, "param", None) or _named(str(error))
        details = getattr(error, "details", {})
        return ErrorAnswer(400, str(error), _INVALID, code, param, details=details)
    return next((_ANSWERS[one] for one in type(error).__mro__ if one in _ANSWERS), _UNKNOWN)


def in_words_of(error: InvalidRequestError, asked_by: str | None) -> InvalidRequestError:
    """Return an error about the format of an answer, with the client's name for it."""
    name, _, problem = str(error).partition(" ")
    if asked_by is not None and str(error).startswith(_OF_A_GRAMMAR):
        return BadRequestError(f"{asked_by}: {error}", asked_by)
    if asked_by is None or name not in ("structured_output", "json_schema"):
        return error
    return BadRequestError(f"{asked_by} {problem}", asked_by)


def renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError:
    """Return an error about a key with its name in another API, if `names` has one."""
    answer = answer_to(error)
    key, dot, rest = (answer.param or "").partition(".")
    if key not in names:
        return error
    message = re.sub(rf"^{re.escape(key)}\b", names[key], answer.message)
    return BadRequestError(message, f"{names[key]}{dot}{rest}", answer.code)


def _named(message: str) -> str | None:
    """Return the parameter with which a message of the library begins, if any."""
    word = re.sub("^(a|the) ", "", message).partition(" ")[0]
    if word in _SPECULATION:
        return f"speculation.{word}"
    return word if word in _NAMES else None
