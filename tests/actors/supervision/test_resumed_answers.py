"""Interrupted answers of a pipeline, without a cluster."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from actors.pipeline import Pipeline
from actors.placement import Placement
from actors.supervision.coordinator_supervisor import CoordinatorSupervisor
from diffuspec.core.errors import RequestCancelledError
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import FinishReason, RequestOutput, StepStats
from diffuspec.rpc.messages.status import TransportError
from tests.actors.conftest import tiny_pipeline


def increment(token_id: int, reason: FinishReason | None = None) -> RequestOutput:
    return RequestOutput((token_id,), 0, ("x",), "x", None, reason, StepStats(0, 0, 0, 1))


class LosesItsWay:
    """A client whose first answer is interrupted after a token."""

    def __init__(self) -> None:
        self.samplings: list[SamplingParams] = []

    async def stream(
        self,
        prompt: object,
        sampling: SamplingParams,
        speculation: object,
        request_id: object,
        committed_token_ids: Sequence[int],
        num_losses: int = 0,
    ) -> AsyncGenerator[RequestOutput]:
        self.samplings.append(sampling)
        if not committed_token_ids:
            yield increment(1)
            raise TransportError("gone")
        assert [*committed_token_ids] == [1]
        yield increment(2, FinishReason.LENGTH)


async def test_an_interrupted_answer_goes_on_with_the_same_seed(monkeypatch: Any) -> None:
    client, pipeline = LosesItsWay(), Pipeline(tiny_pipeline())
    monkeypatch.setattr(pipeline, "_client", lambda: asyncio.sleep(0, client))
    monkeypatch.setattr(pipeline, "_wait_for_another", lambda error: asyncio.sleep(0))
    sampled = SamplingParams(temperature=1.0)
    found = [i async for step in pipeline.stream("a", sampled) for i in step.token_ids]
    assert found == [1, 2]
    first, second = client.samplings
    assert first == second and first.seed is not None


async def test_an_answer_is_cancelled_while_there_is_no_coordinator() -> None:
    pipeline = Pipeline(tiny_pipeline())
    placement = Placement(pipeline.config, pipeline.security, ())
    pipeline._coordinator = CoordinatorSupervisor(placement)
    victim = asyncio.create_task(anext(pipeline.stream("a", request_id="victim")))
    await asyncio.sleep(0)
    assert not await pipeline.cancel("other")
    assert await pipeline.cancel("victim")
    with pytest.raises(RequestCancelledError):
        await victim
    assert not await pipeline.cancel("victim")
