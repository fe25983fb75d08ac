"""A coordinator with fake workers, set up for tests of the whole loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diffuspec.coordinator.coordinator import Coordinator
from diffuspec.coordinator.drafter_pool import DrafterPool
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import Drafter
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import RequestOutput
from tests.support.fakes import (
    FAKE_TARGET,
    FakeDrafter,
    FakeVerifier,
    decode_plainly,
    oracle_of,
    sometimes_right,
)

PROMPT = [3, 1, 4, 1, 5]
FOREVER = SamplingParams(max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(max_tokens=24, ignore_eos=True)
FIXED = SpeculationParams(policy="fixed", num_draft_tokens=4)


@dataclass
class Stage:
    """A coordinator with its fake workers."""

    coordinator: Coordinator
    verifier: FakeVerifier
    drafter: Any

    def stream(
        self,
        prompt: Sequence[int] = PROMPT,
        sampling: SamplingParams = SHORT,
        speculation: SpeculationParams = FIXED,
        request_id: str | None = None,
        committed: Sequence[int] = (),
    ) -> AsyncGenerator[RequestOutput]:
        ids: Any = np.array(prompt, np.int64)  # ids beyond int32 are refused, too
        return self.coordinator.stream(
            ids,
            sampling,
            speculation,
            request_id=request_id,
            committed_token_ids=np.array(committed, np.int32),
        )

    async def tokens(self, *args: Any, **kwargs: Any) -> list[int]:
        return [i async for step in self.stream(*args, **kwargs) for i in step.token_ids]

    def start(self, *args: Any, **kwargs: Any) -> asyncio.Task[list[int]]:
        return asyncio.create_task(self.tokens(*args, **kwargs))

    def plain(self, prompt: Sequence[int] = PROMPT, sampling: SamplingParams = SHORT) -> list[int]:
        return decode_plainly(self.verifier, prompt, sampling)

    def metric(self, name: str, **labels: str) -> float:
        registry = self.coordinator.metrics.registry
        return registry.get_sample_value(f"diffuspec_{name}", labels) or 0.0


@asynccontextmanager
async def on_stage(
    drafter: Drafter | DrafterPool | str | None = "sometimes_right",
    max_sequences: int = 2,
    max_model_len: int = 512,
    **config: Any,
) -> AsyncIterator[Stage]:
    verifier = FakeVerifier(
        replace(FAKE_TARGET, max_sequences=max_sequences, max_model_len=max_model_len)
    )
    if drafter == "sometimes_right":
        drafter = FakeDrafter(oracle_of(verifier), sometimes_right)
    assert not isinstance(drafter, str)
    settings = CoordinatorConfig(**config)
    async with Coordinator(verifier, drafter, settings, DraftLengthConfig()) as coordinator:
        yield Stage(coordinator, verifier, drafter)


def pool_of(drafters: Sequence[Drafter]) -> DrafterPool:
    pool = DrafterPool()
    for number, drafter in enumerate(drafters):
        pool.add(drafter, f"drafter {number}")
    return pool


def slow_down(worker: Any, call: str, seconds: float) -> None:
    """Give a fake's calls a duration: of each draft, or of a whole verification."""
    inner = getattr(worker, call)

    async def slow(requests: Sequence[Any]) -> Any:
        await asyncio.sleep(seconds * (len(requests) if call == "draft" else 1))
        return await inner(requests)

    setattr(worker, call, slow)


async def until(condition: Callable[[], Any]) -> None:
    """Give the loops as many turns as they need, then time."""
    for pause in (*[0.0] * 200, *[0.01] * 500):
        if condition():
            return
        await asyncio.sleep(pause)
    raise AssertionError("it did not happen within 200 turns of the event loop and 5 seconds")
