"""Connections: kept while a call is under way, and gone once they are closed or broken."""

import asyncio
import gc
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.server.servicers import VerifierServicer
from tests.rpc.requests import verify_request
from tests.support.fakes import FakeVerifier
from tests.support.serving import Wire, serving

REQUEST = verify_request(1)
RESET = struct.pack("ii", 1, 0)  # closing answers with RST

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HALF_A_FRAME = HTTP2_PREFACE + bytes([0, 0, 16, 1, 4, 0, 0, 0, 1])


async def test_a_call_outlasts_many_keepalive_pings(security):
    verifier = FakeVerifier()
    # A side pings when it has heard nothing for its interval, so the client's must be the shorter
    # one for its pings to be sent. gRPC raises a client's interval to one second.
    limits = RpcLimits(keepalive_seconds=1.8)
    async with serving(VerifierServicer(verifier), security=security, limits=limits) as wire:
        remote = await wire.connect(RemoteVerifier, limits=RpcLimits(keepalive_seconds=1.0))
        verifier.gate.close()
        step = asyncio.create_task(remote.verify([REQUEST]))
        await asyncio.wait([step], timeout=6)
        verifier.gate.open()
        assert len(await step) == 1


async def test_a_server_whose_handshake_takes_long_is_reached(security):
    async with serving(VerifierServicer(FakeVerifier()), security=security) as wire:
        host, port = wire.address.split(":")
        relays: list[asyncio.Task[Any]] = []

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            relays.append(task)
            from_server, to_server = await asyncio.open_connection(host, int(port))
            await asyncio.sleep(1.5)
            await asyncio.gather(pass_on(reader, to_server), pass_on(from_server, writer))

        async with await asyncio.start_server(relay, host) as busy:
            _, port_of_relay = busy.sockets[0].getsockname()
            remote = await RemoteVerifier.connect(f"{host}:{port_of_relay}", wire.security)
            assert len(await remote.verify([REQUEST])) == 1
            await remote.close()
            await asyncio.gather(*relays)


async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(4096):
        sink.write(data)
    sink.close()
    await sink.wait_closed()


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_closed_and_broken_connections_leave_no_file_open(security, no_garbage_collection):
    verifier = FakeVerifier()
    async with serving(VerifierServicer(verifier), security=security) as wire:
        await step_and_close(wire)
        num_files = len(os.listdir("/proc/self/fd"))
        for _ in range(100):
            await step_and_close(wire)
        for data in (b"", HTTP2_PREFACE, HALF_A_FRAME, b"GET / HTTP/1.1\r\n\r\n"):
            await asyncio.to_thread(break_connections, wire.address, data, 50)
        for _ in range(50):
            await close_during_a_step(wire, verifier)
        async with asyncio.timeout(10):
            while len(os.listdir("/proc/self/fd")) > num_files + 2:
                await asyncio.sleep(0.05)


async def step_and_close(wire: Wire) -> None:
    remote = await RemoteVerifier.connect(wire.address, wire.security)
    await remote.verify([REQUEST])
    await remote.close()


async def close_during_a_step(wire: Wire, verifier: FakeVerifier) -> None:
    verifier.gate.close()
    remote = await RemoteVerifier.connect(wire.address, wire.security)
    step = asyncio.create_task(remote.verify([REQUEST]))
    await verifier.gate.arrival()
    await remote.close()
    with pytest.raises(VerifierUnavailableError, match="was closed"):
        await step
    verifier.gate.open()


def break_connections(address: str, data: bytes, count: int) -> None:
    host, port = address.split(":")
    for _ in range(count):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(data)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
