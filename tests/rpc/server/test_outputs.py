"""Outputs reach a client in order; one that stops reading loses its request."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from diffuspec.core.errors import OverloadedError, WorkerError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import RequestOutput, StepStats
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.limits import RpcLimits
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.server.outputs import ClientStalledError, send_outputs
from diffuspec.telemetry import context
from tests.rpc.client.test_coordinator import FakeFrontend
from tests.support.serving import serving

LIMITS = RpcLimits(max_unread_outputs=8, max_stall_seconds=30.0)


class Client:
    """Takes `num_read` outputs of a call, and no more."""

    def __init__(self, num_read: int) -> None:
        self.num_read = num_read
        self.token_ids: list[int] = []

    async def send_initial_metadata(self, metadata: Any) -> None:
        assert not self.token_ids

    async def write(self, response: Any) -> None:
        if len(self.token_ids) >= self.num_read:
            await asyncio.Event().wait()
        self.token_ids += response.token_ids


class Decoder:
    """Yields an output every `seconds`, and knows how many it decoded."""

    def __init__(self, seconds: float, count: int, end: BaseException | None = None) -> None:
        self.seconds = seconds
        self.count = count
        self.end = end
        self.num_decoded = 0
        self.is_closed = False

    async def outputs(self) -> AsyncGenerator[RequestOutput]:
        try:
            for token_id in range(self.count):
                await asyncio.sleep(self.seconds)
                self.num_decoded += 1
                yield RequestOutput((token_id,), 0, ("",), "", None, None, StepStats(0, 0, 0, 1))
            if self.end is not None:
                raise self.end
        finally:
            self.is_closed = True


@pytest.mark.virtual_time
async def test_a_client_gets_all_outputs_in_order():
    client, decoder = Client(num_read=100), Decoder(0.01, 100)
    await send_outputs(decoder.outputs(), client, LIMITS)
    assert client.token_ids == list(range(100))
    assert decoder.is_closed


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("seconds", "reason", "num_decoded"),
    [
        # Read, being written, waiting, too many.
        (0.01, "8 outputs are waiting for it", 5 + 1 + 8 + 1),
        (20.0, "no response taken in 30 s", 7),
    ],
)
async def test_a_request_ends_when_its_client_stops_reading_or_takes_too_long(
    seconds, reason, num_decoded
):
    client, decoder = Client(num_read=5), Decoder(seconds, 10_000)
    with pytest.raises(ClientStalledError, match=reason):
        await send_outputs(decoder.outputs(), client, LIMITS)
    assert decoder.is_closed
    assert decoder.num_decoded == num_decoded


@pytest.mark.virtual_time
@pytest.mark.parametrize("end", [OverloadedError("full"), asyncio.CancelledError()], ids=repr)
async def test_an_error_comes_after_the_outputs_before_it(end):
    client, decoder = Client(num_read=100), Decoder(0.0, 6, end)
    expected = WorkerError if isinstance(end, asyncio.CancelledError) else type(end)
    with pytest.raises(expected):
        await send_outputs(decoder.outputs(), client, LIMITS)
    assert client.token_ids == list(range(6))


@pytest.mark.virtual_time
async def test_a_call_that_is_cancelled_closes_the_outputs():
    client, decoder = Client(num_read=0), Decoder(0.01, 100)
    sending = asyncio.create_task(send_outputs(decoder.outputs(), client, LIMITS))
    await asyncio.sleep(0.05)
    sending.cancel()
    await asyncio.wait([sending])
    assert sending.cancelled() and decoder.is_closed


async def test_a_client_that_stops_reading_leaves_one_line_in_the_log(security, caplog):
    class Counting(FakeFrontend):
        num_outputs = 0

        async def stream(self, *arguments: Any, **others: Any) -> AsyncGenerator[RequestOutput]:
            async for output in super().stream(*arguments, **others):
                self.num_outputs += 1
                await asyncio.sleep(0)
                yield output

    frontend, limits = Counting(), RpcLimits(max_stall_seconds=0.2)
    servicer = CoordinatorServicer(frontend)
    with caplog.at_level(logging.INFO):
        async with serving(servicer, security=security, limits=limits) as wire:
            remote = await wire.connect(RemoteCoordinator)
            stream = remote.stream("a", SamplingParams(max_tokens=1_000_000), request_id="mine")
            await anext(stream)
            await asyncio.wait_for(frontend.is_closed.wait(), 10)
            await stream.aclose()
    [line] = caplog.messages
    assert line.startswith("the request was cancelled: the client stopped reading")
    assert frontend.num_outputs < 1000


async def test_the_id_the_key_and_the_trace_of_a_request_cross_the_wire(security):
    seen = []

    class Watching(FakeFrontend):
        async def stream(self, *arguments: Any, **others: Any) -> AsyncGenerator[RequestOutput]:
            one = (context.request_id, context.key_name, context.traceparent)
            seen.append(tuple(variable.get() for variable in one))
            async for output in super().stream(*arguments, **others):
                yield output

    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with serving(CoordinatorServicer(Watching()), security=security) as wire:
        remote = await wire.connect(RemoteCoordinator)
        for key_name, given in (("alice", trace), ("", "forged"), ("bob", "")):
            context.key_name.set(key_name)
            context.traceparent.set(given)
            sampling = SamplingParams(max_tokens=2)
            assert [output async for output in remote.stream("a", sampling, request_id="mine")]
    assert seen == [("mine", "alice", trace), ("mine", "", ""), ("mine", "bob", "")]
