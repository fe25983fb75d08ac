"""Errors as gRPC status codes, and back: the one place where they are mapped.

Our errors are sent as a code and, in google.rpc.ErrorInfo, the name of their class, so that the
other side can raise the same class. Any other error becomes INTERNAL, and its message is only
logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from diffuspec.core import errors
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.v1.types_pb2 import StepError

logger = logging.getLogger(__name__)

DOMAIN = "diffuspec"
BEGUN_KEY = "diffuspec-begun"  # initial metadata of an answer: the request has left the queue
_STATUS_KEY = "grpc-status-details-bin"


class TransportError(WorkerError):
    """The other side could not be reached, went away, or did not answer in time."""


class LostAnswerError(TransportError):
    """The server was lost while it worked on the call."""


class IdleStreamError(TransportError):
    """The server closed a stream that had been idle for too long; open another one."""


_CODES: dict[type[DiffuspecError], grpc.StatusCode] = {
    errors.ConfigError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.VocabularyError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ShuttingDownError: grpc.StatusCode.UNAVAILABLE,
    errors.OutOfMemoryError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RequestCancelledError: grpc.StatusCode.ABORTED,  # CANCELLED would cancel the caller
    errors.FatalRequestError: grpc.StatusCode.INTERNAL,
    errors.StalePrefixError: grpc.StatusCode.FAILED_PRECONDITION,
    IdleStreamError: grpc.StatusCode.UNAVAILABLE,
    TransportError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.VerifierUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.DiffuspecError: grpc.StatusCode.INTERNAL,
}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}

# The error for a status that does not name one of ours.
_FALLBACKS: dict[grpc.StatusCode, type[DiffuspecError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.UNAUTHENTICATED: errors.ConfigError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ConfigError,
}


def _tree(root: type[DiffuspecError]) -> Iterator[type[DiffuspecError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


_BY_NAME = {
    kind.__name__: kind for kind in _tree(DiffuspecError) if kind.__module__ == errors.__name__
} | {IdleStreamError.__name__: IdleStreamError}


def code_of(error: BaseException) -> grpc.StatusCode:
    """Return the code of the nearest ancestor class that has one."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return grpc.StatusCode.INTERNAL


def describe(error: BaseException) -> tuple[grpc.StatusCode, str, str]:
    """Return code, message and reason. Other errors are logged, and their messages not sent."""
    if isinstance(error, DiffuspecError):
        return code_of(error), str(error), _name(type(error))
    logger.error("a call failed", exc_info=error)
    return grpc.StatusCode.INTERNAL, "internal error; see the log of the worker", ""


def _name(kind: type[BaseException]) -> str:
    """Return the nearest class name that the other side knows."""
    return next(k.__name__ for k in kind.__mro__ if _BY_NAME.get(k.__name__) is k)


def step_error(error: BaseException) -> StepError:
    """Return an error in the form in which a stream sends it."""
    code, message, reason = describe(error)
    return StepError(code=code.value[0], message=message, reason=reason)


def from_step_error(error: StepError) -> DiffuspecError:
    """Return the error received on a stream."""
    code = _BY_NUMBER.get(error.code, grpc.StatusCode.UNKNOWN)
    return _error(code, error.message, error.reason, WorkerError)


async def abort(
    context: grpc.aio.ServicerContext[object, object], error: BaseException
) -> NoReturn:
    """End a call with the error's status."""
    code, message, reason = describe(error)
    details = AnyMessage()
    details.Pack(ErrorInfo(reason=reason, domain=DOMAIN))
    status = Status(code=code.value[0], message=message, details=[details] if reason else [])
    await context.abort(code, message, ((_STATUS_KEY, status.SerializeToString()),))
    raise AssertionError("abort raises")


def from_rpc_error(error: grpc.aio.AioRpcError) -> DiffuspecError:
    """Return the error that ended a call."""
    reason = ""
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        info = ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            reason = info.reason
    is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    has_begun = any(key == BEGUN_KEY for key, _ in error.initial_metadata() or ())
    default = LostAnswerError if has_begun and not is_late else TransportError
    return _error(error.code(), error.details() or "no details", reason, default)


def is_task_cancelled() -> bool:
    """Return whether a CancelledError concerns this task, not a call or step that it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _error(
    code: grpc.StatusCode, message: str, reason: str, default: type[WorkerError]
) -> DiffuspecError:
    kind = _BY_NAME.get(reason) or _FALLBACKS.get(code)
    return default(f"{message} ({code.name})") if kind is None else kind(message)
