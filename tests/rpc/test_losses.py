"""A server that is lost during a call: over a relay whose connections a test resets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from diffuspec.core.errors import (
    DrafterError,
    DrafterLostError,
    VerifierLostError,
    VerifierUnavailableError,
)
from diffuspec.core.losses import on_begin
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import RequestOutput
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.client.roles import RemoteDrafter, RemoteVerifier
from diffuspec.rpc.messages.status import LostAnswerError, TransportError
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.server.servicers import DrafterServicer, RoleServicer, VerifierServicer
from tests.rpc.client.test_coordinator import FakeFrontend
from tests.rpc.requests import draft_request, verify_request
from tests.support.fakes import FAKE_TARGET, FakeDrafter, FakeVerifier, always_right, oracle_of
from tests.support.serving import serving


class Relay:
    """Passes bytes on to a server, until it is gone."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self._host, _, self._port = target.rpartition(":")
        self._server: asyncio.Server
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def go(self) -> None:
        """Reset all connections, and refuse others."""
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to, from_ = await asyncio.open_connection(self._host, int(self._port)), (reader, writer)
        self._writers += [writer, to[1]]
        for source, sink in ((reader, to[1]), (to[0], from_[1])):
            self._tasks.append(asyncio.create_task(_pass_on(source, sink)))


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(2**16):
            sink.write(data)


@contextlib.asynccontextmanager
async def relayed(
    kind: Any, servicer: RoleServicer, security: Security
) -> AsyncIterator[tuple[Any, Relay]]:
    """Yield a client of a servicer that is connected over a relay, and the relay."""
    async with serving(servicer, security=security) as wire:
        relay = Relay(wire.address)
        await relay.open()
        client = await kind.connect(relay.address, security)
        try:
            yield client, relay
        finally:
            await client.close()
            await relay.go()


class Waiting(FakeFrontend):
    """Says that a request has left its queue if it should, and does not answer."""

    def __init__(self, *, begins: bool) -> None:
        super().__init__(is_held_up=True)
        self.has_it = asyncio.Event()
        self._begins = begins

    async def stream(self, *arguments: Any, **others: Any) -> AsyncGenerator[RequestOutput]:
        begin = on_begin.get()
        assert begin is not None
        if self._begins:
            begin()
        self.has_it.set()
        async for output in super().stream(*arguments, **others):
            yield output


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("closes", [False, True], ids=["", "closed here first"])
async def test_a_client_knows_whether_a_lost_coordinator_worked_on_its_request(
    begins, closes, security
):
    frontend = Waiting(begins=begins)
    async with relayed(RemoteCoordinator, CoordinatorServicer(frontend), security) as (
        client,
        relay,
    ):
        answer = client.stream("a", SamplingParams(max_tokens=1), num_losses=2)
        reading = asyncio.ensure_future(anext(answer))
        await frontend.has_it.wait()
        await asyncio.sleep(0.05)  # what it says about the request arrives
        await (client.close() if closes else relay.go())
        with pytest.raises(TransportError) as caught:
            await reading
        assert isinstance(caught.value, LostAnswerError) == begins
    assert frontend.num_losses == 2


async def test_an_answer_that_is_late_is_no_loss(security):
    async with serving(CoordinatorServicer(Waiting(begins=True)), security=security) as wire:
        client = await wire.connect(RemoteCoordinator, deadline_seconds=0.1)
        with pytest.raises(TransportError) as caught:
            await anext(client.stream("a", SamplingParams(max_tokens=1)))
        assert not isinstance(caught.value, LostAnswerError)


async def test_a_verifier_that_is_lost_at_a_call_is_told_from_one_that_is_away(security):
    verifier = FakeVerifier()
    verifier.gate.close()
    servicer = VerifierServicer(verifier)
    async with relayed(RemoteVerifier, servicer, security) as (client, relay):
        call = asyncio.create_task(client.verify([verify_request(1)]))
        await verifier.gate.arrival()
        await relay.go()
        with pytest.raises(VerifierLostError):
            await call
        with pytest.raises(VerifierUnavailableError) as caught:
            await client.verify([verify_request(1)])
        assert not isinstance(caught.value, VerifierLostError)
        verifier.gate.open()


async def test_a_drafter_that_is_lost_at_a_call_is_told_from_one_that_is_away(security):
    drafter = FakeDrafter(oracle_of(FakeVerifier()), always_right)
    drafter.gate.close()
    servicer = DrafterServicer(drafter, FAKE_TARGET)
    async with relayed(RemoteDrafter, servicer, security) as (client, relay):
        call = asyncio.create_task(client.draft([draft_request(1)]))
        await drafter.gate.arrival()
        await relay.go()
        with pytest.raises(DrafterLostError):
            await call
        with pytest.raises(DrafterError) as caught:
            await client.draft([draft_request(1)])
        assert not isinstance(caught.value, DrafterLostError)
        drafter.gate.open()
