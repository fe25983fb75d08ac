"""Answers that continue when the connection to the coordinator is lost, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest

from diffuspec.core.errors import FatalRequestError, OverloadedError, RequestCancelledError
from diffuspec.core.interfaces import ServiceStatus
from diffuspec.core.losses import Losses
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason, RequestOutput, StepStats
from diffuspec.rpc.client import resumption
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.client.resumption import ResumedAnswer
from diffuspec.rpc.messages.status import LostAnswerError, TransportError
from diffuspec.rpc.security import Security, new_token
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.server.server import RoleServer

SAMPLING = SamplingParams(max_tokens=30)


class CountingFrontend:
    """Refuses some requests, then answers 0, 1, 2 and so on; its calls do not end by themselves."""

    def __init__(self) -> None:
        self.num_refusals = 0
        self.starts: list[int] = []  # the first token of each request

    async def stream(
        self,
        prompt: object,
        sampling: SamplingParams,
        speculation: object,
        request_id: object,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        if self.num_refusals:
            self.num_refusals -= 1
            raise OverloadedError("the queue is full")
        self.starts.append(len(committed_token_ids))
        assert [*committed_token_ids] == [*range(len(committed_token_ids))]
        for number in range(len(committed_token_ids), sampling.max_tokens):
            is_last = number == sampling.max_tokens - 1
            reason = FinishReason.LENGTH if is_last else None
            yield RequestOutput((number,), 0, ("x",), "x", None, reason, StepStats(0, 0, 0, 1))
        await asyncio.Event().wait()

    def cancel(self, request_id: str) -> bool:
        return False

    async def status(self) -> ServiceStatus:
        return ServiceStatus(())


class Service:
    """A coordinator's service, with one client of it at a time."""

    def __init__(self, frontend: CountingFrontend, address: str, security: Security) -> None:
        self.frontend = frontend
        self.client: RemoteCoordinator
        self._address, self._security = address, security

    async def connect(self, *_: object) -> None:
        self.client = await RemoteCoordinator.connect(self._address, self._security)

    async def ask(self, committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
        return self.client.stream([1], SAMPLING, committed_token_ids=committed)


@pytest.fixture
async def service(monkeypatch: Any) -> AsyncIterator[Service]:
    monkeypatch.setattr(resumption, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(resumption, "_TURN_SECONDS", 0.01)
    frontend, security = CountingFrontend(), Security(new_token())
    async with RoleServer([CoordinatorServicer(frontend)], security) as server:
        service = Service(frontend, server.address, security)
        await service.connect()
        yield service
        await service.client.close()


async def test_an_answer_ends_with_its_last_increment(service: Service) -> None:
    answer = ResumedAnswer(service.ask, service.connect).stream()
    assert [i async for step in answer for i in step.token_ids] == [*range(30)]


async def test_an_answer_goes_on_after_the_tokens_that_were_yielded(service: Service) -> None:
    answer = ResumedAnswer(service.ask, service.connect).stream()
    tokens: list[int] = []
    for _ in range(2):
        while len(tokens) % 10 < 9:
            tokens += (await anext(answer)).token_ids
        await service.client.close()
        tokens += (await anext(answer)).token_ids
    tokens += [i async for step in answer for i in step.token_ids]
    assert tokens == [*range(30)]
    first, second, third = service.frontend.starts
    assert first == 0 and 9 <= second < third < 30


async def test_answers_that_have_begun_are_asked_for_again_before_the_others(
    service: Service,
) -> None:
    asked: list[int] = []
    is_back = asyncio.Event()

    async def ask(committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
        if is_back.is_set():
            asked.append(len(committed))
        elif not committed and len(queued) > 0:
            raise TransportError("it was lost while the request was in the queue")
        return service.client.stream([1], SAMPLING, committed_token_ids=committed)

    async def wait(_: TransportError) -> None:
        await is_back.wait()

    queued: list[asyncio.Task[object]] = []
    begun = ResumedAnswer(ask, wait).stream()
    await anext(begun)
    queued += [asyncio.create_task(anext(ResumedAnswer(ask, wait).stream())) for _ in range(3)]
    await service.client.close()
    going_on = asyncio.create_task(anext(begun))
    await asyncio.sleep(0)
    await service.connect()
    is_back.set()
    await asyncio.gather(going_on, *queued)
    assert asked[0] > 0 and asked[1:] == [0, 0, 0]


async def test_an_interrupted_answer_waits_where_the_queue_is_full(service: Service) -> None:
    answer = ResumedAnswer(service.ask, service.connect).stream()
    tokens = [*(await anext(answer)).token_ids]
    service.frontend.num_refusals = 3
    await service.client.close()
    tokens += [i async for step in answer for i in step.token_ids]
    assert tokens == [*range(30)] and service.frontend.num_refusals == 0


async def test_a_new_answer_is_refused_at_once_where_the_queue_is_full(service: Service) -> None:
    service.frontend.num_refusals = 1
    with pytest.raises(OverloadedError, match="queue is full"):
        await anext(ResumedAnswer(service.ask, service.connect).stream())


async def test_a_connection_that_fails_without_a_loss_of_the_coordinator_ends_the_answer(
    service: Service,
) -> None:
    async def refuse(error: TransportError) -> None:
        raise error

    answer = ResumedAnswer(service.ask, refuse).stream()
    await anext(answer)
    await service.client.close()
    with pytest.raises(TransportError):
        async for _ in answer:
            pass
    await service.connect()


async def cancelled(answer: ResumedAnswer, service: Service) -> None:
    """Read an answer's first token, lose the connection, and cancel the answer while it waits."""
    stream = answer.stream()
    await anext(stream)
    await service.client.close()
    rest = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.02)
    assert not rest.done()
    assert answer.cancel() and answer.cancel()
    with pytest.raises(RequestCancelledError, match="'victim' was cancelled"):
        await rest
    assert not answer.cancel() and answer.closed.done()
    await service.connect()


async def test_an_answer_that_waits_for_a_coordinator_can_be_cancelled(service: Service) -> None:
    async def wait(_: TransportError) -> None:
        await asyncio.Event().wait()

    await cancelled(ResumedAnswer(service.ask, wait, "victim"), service)


async def test_an_answer_that_is_asked_for_again_can_be_cancelled(service: Service) -> None:
    clients = iter([service.client])

    async def ask(committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
        client = next(clients, None)
        if client is None:
            await asyncio.Event().wait()
        assert client is not None
        return client.stream([1], SAMPLING)

    await cancelled(ResumedAnswer(ask, lambda _: asyncio.sleep(0), "victim"), service)


async def test_a_cancelled_answer_that_is_not_read_is_not_asked_for_again(
    service: Service,
) -> None:
    answer = ResumedAnswer(service.ask, service.connect, "victim")
    stream = answer.stream()
    await anext(stream)
    await service.client.close()
    assert answer.cancel()
    with pytest.raises(RequestCancelledError):
        await anext(stream)
    await service.connect()


async def test_a_finished_answer_cannot_be_cancelled(service: Service) -> None:
    answer = ResumedAnswer(service.ask, service.connect)
    async for step in answer.stream():
        if step.finish_reason is not None:
            assert not answer.cancel()
    assert not answer.cancel()


async def tokens_of_lost_answers(errors: Sequence[TransportError]) -> tuple[list[int], list[int]]:
    """Interrupt an answer with each error after its next token; return tokens and known losses."""
    left, said = [*errors], list[int]()

    async def ask(committed: Sequence[int], losses: Losses) -> AsyncGenerator[RequestOutput]:
        said.append(losses.number)
        return rest(len(committed))

    async def rest(number: int) -> AsyncGenerator[RequestOutput]:
        while number < 30:
            reason = FinishReason.LENGTH if number == 29 else None
            yield RequestOutput((number,), 0, ("x",), "x", None, reason, StepStats(0, 0, 0, 1))
            number += 1
            if left:
                raise left.pop(0)

    answer = ResumedAnswer(ask, lambda _: asyncio.sleep(0))
    return [i async for step in answer.stream() for i in step.token_ids], said


LOST, MOVED = LostAnswerError("its process has ended"), TransportError("it shuts down")


async def test_the_next_process_is_told_how_many_were_lost_at_the_request() -> None:
    tokens, said = await tokens_of_lost_answers([MOVED, LOST, MOVED, LOST])
    assert tokens == [*range(30)]
    assert said == [0, 0, 1, 1, 2]


async def test_the_third_process_lost_at_a_request_ends_it() -> None:
    with pytest.raises(FatalRequestError, match="its process has ended"):
        await tokens_of_lost_answers([LOST] * 3)


async def test_an_answer_is_not_asked_for_again_without_end() -> None:
    tokens, _ = await tokens_of_lost_answers([MOVED] * 16)
    assert tokens == [*range(30)]
    with pytest.raises(TransportError, match="it shuts down"):
        await tokens_of_lost_answers([MOVED] * 17)
