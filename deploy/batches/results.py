"""A result: a line as in OpenAI's batch output files, one for each row.

    {"id": "batch_req_12_9c0f...", "custom_id": "a",
     "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

`response` is the endpoint's response, even if it is an error, with the keys of the request that
had no effect as `ignored`, if there are any; `error` is for rows without a
response. The id contains the number and digest of the input line, so a result identifies its row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from diffuspec.core.errors import DiffuspecError, WorkerError

OK = 200

_ID = re.compile(r"batch_req_([1-9][0-9]{0,8})_([0-9a-f]{16})")


@dataclass(frozen=True, slots=True)
class Reply:
    """An endpoint's response to one request."""

    status_code: int
    request_id: str
    body: Mapping[str, Any]
    ignored: tuple[str, ...] = ()  # keys of the request that had no effect

    @property
    def is_ok(self) -> bool:
        return self.status_code == OK


def answered(number: int, digest: int, custom_id: str, reply: Reply) -> dict[str, Any]:
    """Return the result of a row that the endpoint replied to."""
    response = {
        "status_code": reply.status_code,
        "request_id": reply.request_id,
        "body": reply.body,
    }
    if reply.ignored:
        response["ignored"] = list(reply.ignored)
    return _result(number, digest, custom_id, response, None)


def failed(
    number: int,
    digest: int,
    custom_id: str,
    code: str,
    message: str,
    param: str | None = None,
) -> dict[str, Any]:
    """Return the result of a row without a reply."""
    error = {"code": code, "message": message, "param": param}
    return _result(number, digest, custom_id, None, error)


def conversation(question: Mapping[str, Any] | None, replies: Sequence[Reply]) -> Reply:
    """Return a single reply for a row of several turns. Only the last one can be an error."""
    last = replies[-1]
    if question is None or not last.is_ok:
        return last
    turns = [reply.body for reply in replies]
    body = {"object": "conversation", **question, "turns": turns}
    return Reply(last.status_code, last.request_id, body, last.ignored)


def is_failure(result: Mapping[str, Any]) -> bool:
    response = result["response"]
    return response is None or response["status_code"] != OK


def usages(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the usage block of every completion in a result."""
    if is_failure(result):
        return []
    body = result["response"]["body"]
    found = [one.get("usage") for one in body.get("turns", [body])]
    return [usage for usage in found if isinstance(usage, dict)]


def place_of(result: object) -> tuple[int, int] | None:
    """Return line number and digest of a result's row; None if this is not a result."""
    if not isinstance(result, dict) or not {"custom_id", "response", "error"} <= result.keys():
        return None
    found = _ID.fullmatch(str(result.get("id")))
    return (int(found[1]), int(found[2], 16)) if found is not None else None


def encode(result: Mapping[str, Any]) -> bytes:
    """Return a result as a line, with its newline."""
    try:
        return (json.dumps(result, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # half a surrogate pair in a custom_id
        return (json.dumps(result) + "\n").encode()


def _result(
    number: int,
    digest: int,
    custom_id: str,
    response: Mapping[str, Any] | None,
    error: Mapping[str, Any] | None,
) -> dict[str, Any]:
    return {
        "id": f"batch_req_{number}_{digest:016x}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }


class Service(Protocol):
    """An OpenAI endpoint: over HTTP, or in this process."""

    @property
    def concurrency(self) -> int:
        """Number of rows in flight that keeps the service busy."""
        ...

    async def ask(self, url: str, body: Mapping[str, Any], request_id: str) -> Reply:
        """Return the reply to a request, errors of the request included.

        Raises ServiceBusyError and ServiceLostError, after which the same request may succeed.
        """
        ...

    async def is_up(self) -> bool:
        """Return whether the service could answer a request now."""
        ...


class ServiceBusyError(WorkerError):
    """The service accepts no more requests at the moment."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ServiceLostError(WorkerError):
    """The service failed, or cannot be reached."""


class BatchStoppedError(DiffuspecError):
    """The batch cannot continue now. Results are kept; the same command continues it later."""
