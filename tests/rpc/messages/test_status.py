"""Errors as statuses, and back."""

from typing import Any

import grpc
import pytest

from diffuspec.core import errors
from diffuspec.core.errors import DiffuspecError, WorkerError
from diffuspec.rpc.messages import status
from diffuspec.rpc.messages.status import TransportError
from diffuspec.v1.types_pb2 import StepError

EVERY_ERROR = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DiffuspecError)
]


async def through_a_call(error: Exception) -> DiffuspecError:
    """What a client makes of an error that a unary handler raised."""

    async def handler(request, context):
        await status.abort(context, error)

    server = grpc.aio.server()
    handlers: dict[str, Any] = {"Call": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            call: Any = channel.unary_unary("/a.B/Call")
            await call(b"")
        except grpc.aio.AioRpcError as caught:
            return status.from_rpc_error(caught)
        finally:
            await server.stop(None)
    raise AssertionError("the call succeeded")


@pytest.mark.parametrize("kind", EVERY_ERROR)
async def test_every_error_comes_back_as_itself(kind):
    error = kind("k must be ≥ 1, got 0")
    for found in (await through_a_call(error), status.from_step_error(status.step_error(error))):
        assert type(found) is kind
        assert str(found) == str(error)


def test_no_error_cancels_the_caller():
    """A status CANCELLED is raised as CancelledError on the other side."""
    assert grpc.StatusCode.CANCELLED not in {status.code_of(kind("")) for kind in EVERY_ERROR}


async def test_an_error_that_only_one_side_knows_is_its_nearest_kin():
    class TooOldError(errors.VerifierError):
        pass

    assert type(status.from_step_error(status.step_error(TooOldError("x")))) is errors.VerifierError
    assert type(await through_a_call(TooOldError("x"))) is errors.VerifierError


async def test_what_is_not_ours_tells_nothing(caplog):
    error = RuntimeError("the secret")
    in_call = await through_a_call(error)
    in_stream = status.from_step_error(status.step_error(error))
    assert (type(in_call), type(in_stream)) == (TransportError, WorkerError)
    assert "secret" not in str(in_call) + str(in_stream)
    assert "the secret" in caplog.text


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidRequestError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.OverloadedError),
        (grpc.StatusCode.UNAUTHENTICATED, errors.ConfigError),
        (grpc.StatusCode.UNAVAILABLE, WorkerError),
        (grpc.StatusCode.INTERNAL, WorkerError),
    ],
)
def test_a_status_without_a_known_reason_is_read_by_its_code(code, kind):
    found = status.from_step_error(StepError(code=code.value[0], message="so it is"))
    assert type(found) is kind
    assert "so it is" in str(found)
    unknown = status.from_step_error(StepError(code=code.value[0], reason="NoSuchError"))
    assert type(unknown) is kind


def test_a_code_that_does_not_exist_is_a_failure():
    assert type(status.from_step_error(StepError(code=99))) is WorkerError
