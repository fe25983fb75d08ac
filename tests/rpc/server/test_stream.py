"""Streams of steps: closed when nothing happens on them, and when their client breaks the rules."""

import asyncio
from typing import Any

import grpc
import pytest

from diffuspec.rpc.client.roles import RemoteVerifier
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.messages.batches import encode_verify_rows
from diffuspec.rpc.messages.prefixes import PrefixStore
from diffuspec.rpc.messages.status import IdleStreamError
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.servicers import VerifierServicer
from diffuspec.rpc.services import VERIFIER_SERVICE
from diffuspec.v1 import verifier_pb2
from tests.rpc.requests import GREEDY, verify_request
from tests.support.fakes import FakeVerifier
from tests.support.serving import connected, serving

SOON = RpcLimits(max_idle_seconds=0.05)


def message(step_id: int) -> bytes:
    batch = verifier_pb2.VerifyRequest(step_id=step_id)
    encode_verify_rows(batch, [verify_request(1)], PrefixStore(10, 100))
    return batch.SerializeToString()


def open_stream(channel: Any, security: Security) -> Any:
    return channel.stream_stream(f"/{VERIFIER_SERVICE}/Verify")(metadata=security.metadata)


async def test_an_idle_stream_is_closed_and_its_requests_released(security):
    verifier = FakeVerifier()
    async with serving(VerifierServicer(verifier), security=security, limits=SOON) as wire:
        channel = wire.channel()
        call = open_stream(channel, security)
        await call.write(message(1))
        await call.read()
        assert await call.code() == grpc.StatusCode.UNAVAILABLE
        assert await call.details() == "the stream was closed after 0.05 s without a message"
        async with asyncio.timeout(5):
            while verifier.held:
                await asyncio.sleep(0.01)


async def test_a_stream_at_work_is_not_idle(security):
    verifier = FakeVerifier()
    async with connected(verifier, security, limits=SOON) as remote:
        verifier.gate.close()
        step = asyncio.create_task(remote.verify([verify_request(1)]))
        await asyncio.wait([step], timeout=0.3)
        verifier.gate.open()
        assert len(await step) == 1


async def test_a_client_outlives_its_idle_streams_also_when_it_writes_as_they_close(security):
    verifier, soon = FakeVerifier(), RpcLimits(max_idle_seconds=0.01)
    async with connected(verifier, security, limits=soon) as remote:
        for length in range(1, 30):
            prefix = [1] * length
            [found] = await remote.verify([verify_request(*prefix)])
            assert found.token_ids == (verifier.next_token(prefix, GREEDY),)
            async with asyncio.timeout(5):
                while verifier.held:  # until the stream is closed
                    await asyncio.sleep(0)


async def test_a_step_that_meets_a_closing_stream_is_sent_on_another(security):
    class ClosesTheFirst(VerifierServicer):
        num_streams = 0

        async def Verify(self, requests: object, context: Any) -> None:
            self.num_streams += 1
            if self.num_streams == 1:
                await context.read()
                raise IdleStreamError("too late")
            await super().Verify(requests, context)

    servicer = ClosesTheFirst(FakeVerifier())
    async with serving(servicer, security=security) as wire:
        remote = await wire.connect(RemoteVerifier)
        assert len(await remote.verify([verify_request(1)])) == 1
        assert servicer.num_streams == 2


@pytest.mark.parametrize(
    ("step_ids", "problem"),
    [
        ((1, 1), "step_id must be above 1, the last of this stream, got 1"),
        ((7, 3), "step_id must be above 7, the last of this stream, got 3"),
        ((0,), "step_id must be 1 or more in a message with rows, got 0"),
    ],
)
async def test_a_step_id_is_used_once(step_ids, problem, security):
    async with serving(VerifierServicer(FakeVerifier()), security=security) as wire:
        channel = wire.channel()
        call = open_stream(channel, security)
        for step_id in step_ids:
            await call.write(message(step_id))
        with pytest.raises(grpc.aio.AioRpcError, match=problem):
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
