"""Engines behind one address: spread over draft servers, and sent elsewhere when theirs is gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio

from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.draft_proxy import DraftProxy
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.draft_service import DraftServicer
from diffuspec.rpc.server.server import RoleServer
from diffuspec.rpc.services import DRAFT_SERVICE
from diffuspec.v1.draft_service_pb2 import ConnectRequest, ConnectResponse
from tests.support.draft_engine import TimedDrafter, make_hello, make_service
from tests.support.fakes import always_right

INNER, OUTER = Security("inner"), Security("outer")


class Pool:
    """Two draft servers, and a proxy in front."""

    def __init__(self) -> None:
        self.proxy = DraftProxy(INNER)
        self.servers: list[RoleServer] = []
        self.front = RoleServer([self.proxy], OUTER)
        self.connection: Connection

    async def engine(self, vocab_size: int | None = None) -> tuple[Any, ConnectResponse]:
        """Connect an engine; return its stream and the first message to it."""
        stream = self.connection.open_stream(DRAFT_SERVICE, "Connect")
        given = {} if vocab_size is None else {"vocab_size": vocab_size}
        await stream.write(ConnectRequest(hello=make_hello(**given)).SerializeToString())
        message = await stream.read()
        assert isinstance(message, bytes)
        return stream, ConnectResponse.FromString(message)


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[Pool]:
    pool = Pool()
    async with AsyncExitStack() as stack:
        for _ in range(2):
            service = await stack.enter_async_context(make_service(TimedDrafter(always_right)))
            server = RoleServer([DraftServicer(service)], INNER)
            pool.servers.append(await stack.enter_async_context(server))
        await stack.enter_async_context(pool.front)
        await pool.proxy.use([server.address for server in pool.servers])
        pool.connection = Connection(pool.front.address, OUTER, DEFAULT_LIMITS)
        stack.push_async_callback(pool.connection.close)
        yield pool


async def test_engines_go_to_the_server_with_the_fewest(pool: Pool):
    engines = [await pool.engine() for _ in range(4)]
    assert all(message.WhichOneof("message") == "welcome" for _, message in engines)
    assert [*pool.proxy.num_engines().values()] == [2, 2]
    for stream, _ in engines:
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK
    assert [*pool.proxy.num_engines().values()] == [0, 0]


async def test_engines_of_a_server_that_is_taken_away_are_told_and_find_another(pool: Pool):
    streams = [(await pool.engine())[0] for _ in range(2)]
    kept = pool.servers[1].address
    await pool.proxy.use([kept])
    calls = [asyncio.ensure_future(stream.code()) for stream in streams]
    done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    codes = [one.result() for one in done]
    assert codes == [grpc.StatusCode.UNAVAILABLE]
    await pool.engine()
    assert pool.proxy.num_engines() == {kept: 2}


async def test_what_a_server_says_to_an_engine_arrives(pool: Pool):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await pool.engine(vocab_size=3)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_an_engine_without_the_token_and_a_pool_without_servers(pool: Pool):
    stranger = Connection(pool.front.address, INNER, DEFAULT_LIMITS)
    assert await stranger.open_stream(DRAFT_SERVICE, "Connect").code() == (
        grpc.StatusCode.UNAUTHENTICATED
    )
    await stranger.close()
    await pool.proxy.use([])
    assert not await pool.connection.check_health(DRAFT_SERVICE, 5)
    stream = pool.connection.open_stream(DRAFT_SERVICE, "Connect")
    assert await stream.code() == grpc.StatusCode.UNAVAILABLE


async def test_an_engine_of_a_server_that_ends_connects_again_to_the_other(pool: Pool):
    streams = [(await pool.engine())[0] for _ in range(2)]
    gone, left = pool.servers
    await gone.__aexit__()
    calls = [asyncio.ensure_future(stream.code()) for stream in streams]
    done, open_ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == len(open_) == 1
    for _ in range(3):  # the first may be sent to the server that has just ended
        with contextlib.suppress(grpc.aio.AioRpcError):
            await pool.engine()
    assert pool.proxy.num_engines()[gone.address] == 0
    assert pool.proxy.num_engines()[left.address] >= 3


async def test_a_server_that_closes_an_idle_stream_has_not_failed():
    proxy, limits = DraftProxy(INNER), RpcLimits(max_stall_seconds=0.05)
    async with (
        make_service(TimedDrafter(always_right)) as service,
        RoleServer([DraftServicer(service)], INNER, limits=limits) as server,
        RoleServer([proxy], OUTER) as front,
    ):
        await proxy.use([server.address])
        engine = Connection(front.address, OUTER, DEFAULT_LIMITS)
        assert await engine.open_stream(DRAFT_SERVICE, "Connect").code() == (
            grpc.StatusCode.UNAVAILABLE
        )
        assert await engine.check_health(DRAFT_SERVICE, 5)
        await engine.close()
