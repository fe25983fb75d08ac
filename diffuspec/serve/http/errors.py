"""Errors as responses, in the format of their API.

Unexpected errors are logged without users' text.
"""

from __future__ import annotations

import logging
import traceback

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from diffuspec.core.errors import DiffuspecError, InvalidRequestError, OverloadedError
from diffuspec.serve.http.events import ClientGoneError
from diffuspec.serve.http.observer import note_error
from diffuspec.serve.http.paths import route_of
from diffuspec.serve.messages.objects import body_of, is_anthropics, status_of
from diffuspec.serve.openai.errors import ErrorAnswer, HttpError, answer_to
from diffuspec.serve.openai.objects import ErrorCode

logger = logging.getLogger(__name__)

_CODES: dict[int, ErrorCode] = {404: "not_found", 405: "method_not_allowed"}
_MESSAGES = {
    404: "no such path: /openapi.json has those of this service",
    405: "this path does not take this method: the header Allow names those that it takes",
}


def install(app: FastAPI) -> None:
    """Make an application answer errors with `respond`; `Edge` answers unexpected ones."""

    async def on_error(request: Request, error: Exception) -> Response:
        return respond(error, request.scope)

    for kind in (DiffuspecError, TimeoutError, HTTPException):
        app.add_exception_handler(kind, on_error)


def respond(error: Exception, scope: Scope) -> Response:
    """Return the response to an error of a request."""
    if isinstance(error, ClientGoneError):
        return Response(status_code=499)  # the client has gone
    answer = answer_for(error)
    if not is_anthropics(route_of(scope)):
        return JSONResponse(answer.body(), answer.status, dict(answer.headers))
    body = body_of(answer, scope.get("state", {}).get("request_id"))
    return JSONResponse(body, status_of(answer), dict(answer.headers))


def answer_for(error: Exception) -> ErrorAnswer:
    """Return the answer to an error; log it if the fault is ours."""
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code)
        headers = dict(error.headers or {})  # the methods that a path allows
        if headers.get("Allow") == "GET":
            headers["Allow"] = "GET, HEAD"  # HeadAsGet answers HEAD wherever GET is allowed
        message = _MESSAGES.get(error.status_code, str(error.detail))
        answer = ErrorAnswer(
            error.status_code, message, "invalid_request_error", code, headers=headers
        )
    else:
        answer = _answer_ours(error)
    note_error(answer.code or answer.kind)
    return answer


def _answer_ours(error: Exception) -> ErrorAnswer:
    answer = answer_to(error)
    if not isinstance(error, InvalidRequestError | OverloadedError | HttpError | TimeoutError):
        log_failure(error)
    return answer


def log_failure(error: Exception) -> None:
    """Log our own errors by message, others by location: their messages may quote users."""
    if isinstance(error, DiffuspecError):
        logger.warning("a request failed: %s: %s", type(error).__name__, error)
    else:
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("a request failed: %s\n%s", type(error).__name__, frames)
