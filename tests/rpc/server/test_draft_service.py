"""The draft service's stream: who is let in, and what ends it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from diffuspec.core.errors import ConfigError
from diffuspec.core.version import own_version
from diffuspec.draft_server.service import DraftService
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.draft_service import DraftServicer
from diffuspec.rpc.server.server import RoleServer
from diffuspec.v1.draft_service_pb2 import ConnectRequest, ConnectResponse, EngineStep, RequestRow
from tests.support.draft_engine import TimedDrafter, make_hello, make_service
from tests.support.fakes import right_and_sure

HELLO = ConnectRequest(hello=make_hello())
STEP = ConnectRequest(
    step=EngineStep(
        step_id=1,
        rows=[RequestRow(request_id="a", token_ids=[1, 2, 3], num_prompt_tokens=2)],
        deadline_seconds=1.0,
    )
)


@pytest.fixture
async def service() -> AsyncIterator[DraftService]:
    async with make_service(TimedDrafter(right_and_sure), max_engines=1) as service:
        yield service


async def talk(address: str, *messages: ConnectRequest, token: str = "") -> list[ConnectResponse]:
    """Send messages, and return what is answered until the stream ends. Raises AioRpcError."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    async with grpc.aio.insecure_channel(address) as channel:
        connect: Any = channel.stream_stream(
            "/diffuspec.v1.DraftService/Connect",
            ConnectRequest.SerializeToString,
            ConnectResponse.FromString,
        )
        return [one async for one in connect(iter(messages), metadata=metadata)]


def server_of(
    service: DraftService, security: Security, host: str = "127.0.0.1", **limits: float
) -> RoleServer:
    return RoleServer([DraftServicer(service)], security, host, 0, RpcLimits(**limits))  # type: ignore[arg-type]


async def test_an_engine_is_welcomed_and_its_step_answered(service, security):
    async with server_of(service, security) as server:
        found = await talk(server.address, HELLO, STEP, token=security.token)
    assert [one.WhichOneof("message") for one in found] == ["welcome", "drafts"]
    assert found[0].welcome.max_draft_tokens == 8 and len(found[1].drafts.rows) == 1
    assert found[0].welcome.server == own_version()
    assert not service.sessions


@pytest.mark.parametrize(
    ("messages", "code", "text"),
    [
        ([STEP], grpc.StatusCode.INVALID_ARGUMENT, "must be its hello"),
        ([HELLO, HELLO], grpc.StatusCode.INVALID_ARGUMENT, "must be a step"),
        ([HELLO, STEP, STEP], grpc.StatusCode.INVALID_ARGUMENT, "step_id must be 2, got 1"),
        (
            [ConnectRequest(hello=make_hello(vocab_size=3))],
            grpc.StatusCode.FAILED_PRECONDITION,
            "vocab_size must be at least",
        ),
        (
            [ConnectRequest(hello=make_hello(protocol_version=9))],
            grpc.StatusCode.FAILED_PRECONDITION,
            "protocol_version must be 1, got 9",
        ),
    ],
)
async def test_what_breaks_the_protocol_ends_the_stream_by_name(
    service, security, messages, code, text
):
    async with server_of(service, security) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await talk(server.address, *messages, token=security.token)
    assert caught.value.code() == code and text in str(caught.value.details())
    assert not service.sessions


async def test_one_engine_too_many_is_refused(service, security):
    service.open(make_hello())
    async with server_of(service, security) as server:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await talk(server.address, HELLO, token=security.token)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "1 engines are connected, which is the limit" in str(caught.value.details())


async def test_where_all_places_are_taken_a_silent_engine_gives_its_own_to_a_new_one(
    service, security, monkeypatch
):
    async with (
        server_of(service, security) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        connect: Any = channel.stream_stream("/diffuspec.v1.DraftService/Connect")
        silent = connect(metadata=security.metadata)
        await silent.write(HELLO.SerializeToString())
        await silent.read()
        monkeypatch.setattr("diffuspec.draft_server.service._LEAST_SILENT_SECONDS", 0.0)
        found = await talk(server.address, HELLO, STEP, token=security.token)
        assert [one.WhichOneof("message") for one in found] == ["welcome", "drafts"]
        assert await silent.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "another engine has got its place" in await silent.details()
    assert not service.sessions


async def test_a_stream_without_a_hello_is_closed(service, security):
    async with (
        server_of(service, security, max_stall_seconds=0.05) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        connect: Any = channel.stream_stream("/diffuspec.v1.DraftService/Connect")
        call = connect(metadata=security.metadata)
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert "after 0.05 s without a message" in await call.details()


async def test_a_server_that_ends_is_unavailable(service, security):
    servicer = DraftServicer(service)
    async with (
        RoleServer([servicer], security) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        connect: Any = channel.stream_stream("/diffuspec.v1.DraftService/Connect")
        call = connect(metadata=security.metadata)
        await call.write(HELLO.SerializeToString())
        await call.read()
        servicer.drain()
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "the draft server is shutting down"


class Unread:
    """The context of an engine that says hello and takes no message."""

    async def read(self) -> ConnectRequest:
        return HELLO

    async def write(self, message: ConnectResponse) -> None:
        await asyncio.Event().wait()


async def test_an_engine_that_does_not_take_its_welcome_leaves_room_for_others(service):
    servicer = DraftServicer(service)
    servicer.begin(RpcLimits(max_stall_seconds=0.05))
    with pytest.raises(TransportError, match=r"no response taken in 0\.05 s"):
        await servicer.Connect(None, Unread())
    assert not service.sessions


async def test_an_open_server_asks_for_no_token_on_a_socket_of_unix(service, tmp_path):
    host = f"unix:{tmp_path / 's'}"
    async with server_of(service, Security("x", is_open=True), host) as server:
        assert server.address == host
        assert len(await talk(host, HELLO)) == 1
        with pytest.raises(ConfigError, match="a server is there already"):
            async with server_of(service, Security("x", is_open=True), host):
                pass


async def test_a_socket_that_a_dead_server_left_is_taken_over(service, tmp_path):
    import socket

    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    async with server_of(service, Security("x", is_open=True), f"unix:{path}") as server:
        assert len(await talk(server.address, HELLO)) == 1


async def test_a_file_in_the_place_of_the_socket_is_left_alone(service, tmp_path):
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is there and is no socket"):
        async with server_of(service, Security("x", is_open=True), f"unix:{path}"):
            pass
    assert path.read_text() == "mine"


def test_an_open_server_is_for_this_machine_alone(service):
    with pytest.raises(
        ConfigError, match=r"0\.0\.0\.0 can be reached by others: give --token-file"
    ):
        server_of(service, Security("x", is_open=True), "0.0.0.0")
