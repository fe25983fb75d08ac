"""Every call needs room and a request; health checks always have room."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from diffuspec.core.errors import VerifierUnavailableError
from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.servicers import VerifierServicer
from diffuspec.rpc.services import HEALTH_SERVICE, VERIFIER_SERVICE
from tests.rpc.requests import verify_request
from tests.support.fakes import FakeVerifier
from tests.support.serving import Wire, serving

VERIFY = f"/{VERIFIER_SERVICE}/Verify"
GET_INFO = f"/{VERIFIER_SERVICE}/GetInfo"


@pytest.fixture
async def wire(security: Security) -> AsyncIterator[Wire]:
    limits = RpcLimits(max_calls_per_method=3, max_stall_seconds=0.2)
    async with serving(VerifierServicer(FakeVerifier()), security=security, limits=limits) as wire:
        yield wire


@pytest.fixture
async def channel(wire: Wire) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(wire.address) as channel:
        yield channel


async def test_a_health_check_gets_through_any_number_of_open_calls(wire, channel, security):
    remote = await wire.connect(RemoteVerifier)
    calls = [channel.stream_stream(VERIFY)(metadata=security.metadata) for _ in range(300)]
    ends = [asyncio.create_task(call.code()) for call in calls]
    for ended in itertools.islice(asyncio.as_completed(ends), 297):
        assert await ended == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await remote.check_health(5)
    with pytest.raises(VerifierUnavailableError, match=f"3 calls of {VERIFY} are open"):
        await remote.verify([verify_request(1)])
    for call in calls:
        call.cancel()
    await asyncio.gather(*ends)


async def test_a_call_that_ended_makes_room(wire, channel, security):
    for _ in range(10):
        call = channel.stream_stream(VERIFY)(metadata=security.metadata)
        await call.done_writing()
        assert await call.code() == grpc.StatusCode.OK


@pytest.mark.parametrize("method", [GET_INFO, f"/{HEALTH_SERVICE}/Check"])
async def test_a_unary_call_without_a_request_ends(method, wire, channel, security):
    silent = channel.stream_stream(method)(metadata=security.metadata)
    assert await silent.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert await silent.details() == "no request within 0.2 s of the call"
    empty = channel.stream_stream(method)(metadata=security.metadata)
    await empty.done_writing()
    assert await empty.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_client_that_goes_leaves_no_traceback(security, caplog):
    verifier = FakeVerifier()
    with caplog.at_level(logging.INFO):
        async with serving(VerifierServicer(verifier), security=security) as wire:
            remote = await wire.connect(RemoteVerifier)
            verifier.gate.close()
            step = asyncio.create_task(remote.verify([verify_request(1)]))
            await verifier.gate.arrival()
            await remote.close()
            with pytest.raises(VerifierUnavailableError):
                await step
            verifier.gate.open()
    assert caplog.text == ""
