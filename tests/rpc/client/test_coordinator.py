"""Prompts over the wire: text, ids and chats in, the same outputs out."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diffuspec.core.errors import (
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    VerifierUnavailableError,
)
from diffuspec.core.interfaces import RequestStatus, RoleStatus, ServiceStatus
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import FinishReason, Prompt, RequestOutput, StepStats, TokenLogprobs
from diffuspec.rpc.client.connection import Connection
from diffuspec.rpc.client.coordinator import RemoteCoordinator
from diffuspec.rpc.limits import DEFAULT_LIMITS, RpcLimits
from diffuspec.rpc.messages.status import TransportError
from diffuspec.rpc.security import Security
from diffuspec.rpc.server.coordinator import CoordinatorServicer
from diffuspec.rpc.services import COORDINATOR_SERVICE
from diffuspec.v1 import coordinator_pb2, types_pb2
from tests.support.serving import Wire, serving

STATUS = ServiceStatus(
    (RoleStatus("verifier", "10.0.0.1:5"), RoleStatus("drafter", is_healthy=False, reason="gone")),
    ("drafter: gone",),
    num_running=2,
    num_waiting=1,
    requests=(RequestStatus("a-1", "verifying", 0.25, "the verifier", 5, 12),),
    num_unlisted_requests=2,
)


def output(
    token_id: int, finish_reason: FinishReason | None = None, text: str = "ä b"
) -> RequestOutput:
    return RequestOutput(
        (token_id, 7),
        1,
        (text[:1], text[1:]),
        text,
        (TokenLogprobs(-0.1, ((token_id, -0.1), (3, -2.5))), TokenLogprobs(-1.5, ())),
        finish_reason,
        StepStats(5, 9, 1, 2, fallback="drafter_error", pre_draft="hit", verify_seconds=0.1),
        prompt_logprobs=(TokenLogprobs(-0.25, ((4, -0.25),)),),
    )


class FakeFrontend:
    """Answers with as many outputs as max_tokens says, or until it is told to stop."""

    def __init__(self, *, is_held_up: bool = False) -> None:
        self.calls: list[tuple[Prompt, SamplingParams, SpeculationParams | None, str | None]] = []
        self.committed: list[int] = []  # of the last call
        self.num_losses = 0  # as the last call says
        self.error: Exception | None = None
        self.text = "ä b"
        self.is_closed = asyncio.Event()
        self.may_finish = asyncio.Event()
        if not is_held_up:
            self.may_finish.set()

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        speculation: SpeculationParams | None,
        request_id: str | None,
        committed_token_ids: Sequence[int] = (),
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        given: Any = prompt.tolist() if isinstance(prompt, np.ndarray) else prompt
        self.calls.append((given, sampling, speculation, request_id))
        self.committed, self.num_losses = [*committed_token_ids], num_losses
        try:
            for token_id in range(sampling.max_tokens - 1):
                yield output(token_id, text=self.text)
            await self.may_finish.wait()
            if self.error is not None:
                raise self.error
            yield output(99, FinishReason.LENGTH)
        finally:
            self.is_closed.set()

    def cancel(self, request_id: str) -> bool:
        self.error = RequestCancelledError(f"{request_id} was cancelled")
        self.may_finish.set()
        return request_id == "known"

    async def status(self) -> ServiceStatus:
        return STATUS


@contextlib.asynccontextmanager
async def coordinator(
    frontend: FakeFrontend, security: Security, limits: RpcLimits = DEFAULT_LIMITS
) -> AsyncIterator[RemoteCoordinator]:
    async with serving(CoordinatorServicer(frontend), security=security, limits=limits) as wire:
        yield await wire.connect(RemoteCoordinator)


@pytest.mark.parametrize(
    "prompt",
    ["some text", [1, 2, 3], [], [{"role": "user", "content": "hello"}]],
    ids=["text", "ids", "no ids", "chat"],
)
async def test_a_prompt_arrives_as_it_was_sent_and_so_do_the_outputs(prompt, security):
    frontend = FakeFrontend()
    sampling = SamplingParams(
        temperature=0.5, top_p=0.9, top_k=4, seed=-7, max_tokens=3, stop=("x",), logprobs=1
    )
    speculation = SpeculationParams(
        policy="fixed",
        num_draft_tokens=7,
        tree_shape="path",
        max_nodes=9,
        drafter_weight="adaptive",
    )
    async with coordinator(frontend, security) as remote:
        found = [one async for one in remote.stream(prompt, sampling, speculation, "id-1")]
    assert found == [output(0), output(1), output(99, FinishReason.LENGTH)]
    assert frontend.calls == [(prompt, sampling, speculation, "id-1")]


async def test_what_is_not_given_is_left_to_the_service(security):
    frontend = FakeFrontend()
    async with coordinator(frontend, security) as remote:
        async with contextlib.aclosing(remote.stream("a")) as stream:
            await anext(stream)
        await frontend.is_closed.wait()
    assert frontend.calls == [("a", SamplingParams(), None, None)] and frontend.committed == []


async def test_committed_tokens_arrive_as_they_were_sent(security):
    frontend, committed = FakeFrontend(), [5, 0, 151_000]
    sampling = SamplingParams(max_tokens=2)
    async with coordinator(frontend, security) as remote:
        found = [one async for one in remote.stream("a", sampling, None, None, committed)]
        with pytest.raises(InvalidRequestError, match="committed_token_ids must be token ids"):
            await anext(remote.stream("a", sampling, None, None, [-1]))
    assert len(found) == 2 and frontend.committed == committed


async def generate(wire: Wire, request: coordinator_pb2.GenerateRequest) -> None:
    """Send a request as it is."""
    connection = Connection(wire.address, wire.security, wire.limits)
    answer = (COORDINATOR_SERVICE, "Generate", request, coordinator_pb2.GenerateResponse)
    try:
        async for _ in connection.stream(*answer, 10):
            pass
    finally:
        await connection.close()


async def test_a_request_that_sets_one_field_gets_the_others_as_the_service_has_them(security):
    frontend = FakeFrontend()
    configured = SpeculationParams(policy="paper", max_nodes=9, num_outcomes=2)
    request = coordinator_pb2.GenerateRequest(text="a")
    request.speculation.tree_shape = types_pb2.TREE_SHAPE_PATH
    request.sampling.max_tokens = 1
    async with serving(CoordinatorServicer(frontend, configured), security=security) as wire:
        await generate(wire, request)
    [(_, _, speculation, _)] = frontend.calls
    assert speculation == replace(configured, tree_shape="path")


async def test_closing_the_stream_cancels_the_request(security):
    frontend = FakeFrontend(is_held_up=True)
    async with coordinator(frontend, security) as remote:
        stream = remote.stream("a", SamplingParams(max_tokens=2))
        await anext(stream)
        assert not frontend.is_closed.is_set()
        await stream.aclose()
        await asyncio.wait_for(frontend.is_closed.wait(), 5)


async def test_cancelling_by_id_ends_the_stream_with_an_error(security):
    frontend = FakeFrontend(is_held_up=True)
    async with coordinator(frontend, security) as remote:
        stream = remote.stream("a", SamplingParams(max_tokens=2), request_id="known")
        await anext(stream)
        assert await remote.cancel("known")
        with pytest.raises(RequestCancelledError, match="known was cancelled"):
            await anext(stream)
        assert not await remote.cancel("unknown")


@pytest.mark.parametrize(
    "error", [OverloadedError("full"), InvalidRequestError("bad"), VerifierUnavailableError("gone")]
)
async def test_errors_come_back_as_what_they_were(error, security):
    frontend = FakeFrontend()
    frontend.error = error
    async with coordinator(frontend, security) as remote:
        with pytest.raises(type(error), match=str(error)):
            async for _ in remote.stream("a", SamplingParams(max_tokens=1)):
                pass


async def test_what_is_no_request_is_refused(security):
    async with coordinator(FakeFrontend(), security) as remote:
        wrong = ([{"role": "user"}], ""), ([-1], ""), ("a", "a b"), ("a", "x" * 129)
        for prompt, request_id in wrong:
            with pytest.raises(InvalidRequestError):
                await anext(remote.stream(prompt, request_id=request_id))
        with pytest.raises(InvalidRequestError, match="must name"):
            await remote.cancel("")


async def test_the_status_is_told(security):
    async with coordinator(FakeFrontend(), security) as remote:
        assert await remote.status() == STATUS
        assert await remote.check_health(5)


async def test_a_call_whose_connection_is_closed_fails_and_does_not_cancel_its_caller(security):
    frontend, is_asked = FakeFrontend(), asyncio.Event()

    async def hang() -> ServiceStatus:
        is_asked.set()
        await asyncio.Event().wait()
        return STATUS

    frontend.status = hang  # type: ignore[method-assign]
    async with coordinator(frontend, security) as remote:
        call = asyncio.create_task(remote.status())
        await is_asked.wait()
        await remote.close()
        with pytest.raises(TransportError, match="was closed"):
            await call


@pytest.mark.parametrize(
    ("request_fields", "problem"),
    [
        ({"tokens": {"token_ids": [1] * 5}}, "at most 4 prompt tokens, got 5"),
        ({"text": "a", "committed_token_ids": [1] * 5}, "at most 4 committed tokens, got 5"),
        ({"chat": {"messages": [{}] * 3}}, "at most 2 chat messages, got 3"),
        ({"text": "a", "key_name": "k" * 129}, "at most 128 letters in key_name, got 129"),
    ],
)
async def test_lists_that_are_too_long_are_refused(request_fields, problem, security):
    frontend, limits = FakeFrontend(), RpcLimits(max_prompt_tokens=4, max_chat_messages=2)
    async with serving(CoordinatorServicer(frontend), security=security, limits=limits) as wire:
        with pytest.raises(InvalidRequestError, match=problem):
            await generate(wire, coordinator_pb2.GenerateRequest(**request_fields))
    assert not frontend.calls


async def test_an_answer_that_takes_too_long_ends_at_the_deadline(security):
    frontend = FakeFrontend(is_held_up=True)
    async with serving(CoordinatorServicer(frontend), security=security) as wire:
        remote = await wire.connect(RemoteCoordinator, deadline_seconds=0.2)
        with pytest.raises(TransportError, match="Deadline Exceeded"):
            async for _ in remote.stream("a", SamplingParams(max_tokens=2)):
                pass
        await asyncio.wait_for(frontend.is_closed.wait(), 5)
