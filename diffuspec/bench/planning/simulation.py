"""A simulated pipeline: the real coordinator over simulated roles, as a client sees it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Self

import numpy as np

from diffuspec.bench.load import TimedTokens
from diffuspec.bench.planning.machines import Machine
from diffuspec.bench.planning.processor import Processor
from diffuspec.bench.planning.roles import INFO, SimulatedDrafter, SimulatedVerifier
from diffuspec.bench.planning.traffic import Answer
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Prompt, StepStats
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.scheduler.drafters import DrafterPool

_DRAFT_LENGTH = DraftLengthConfig(max_draft_tokens=64)


class Simulation:
    """A `LoadClient` of a machine's roles and their coordinator; it checks the answers.

    Belongs to a loop in virtual time; use it as an async context manager.
    """

    def __init__(
        self,
        machine: Machine,
        answers: Sequence[Answer],
        choose: Callable[[Answer], SpeculationParams],
        info: TargetInfo = INFO,
        num_shared_tokens: int = 0,
    ) -> None:
        """`choose` says how a request is drafted.

        num_shared_tokens: leading tokens of every prompt that both roles have cached.
        """
        processor = Processor(machine.interference)
        verifier = SimulatedVerifier(machine, processor, answers, info, num_shared_tokens)
        drafters = [
            SimulatedDrafter(machine, processor, answers, num_shared_tokens)
            for _ in range(machine.num_drafters)
        ]
        pool = DrafterPool(len(drafters)) if drafters else None
        for number, drafter in enumerate(drafters):
            assert pool is not None
            pool.add(drafter, f"drafter {number}")
        config = CoordinatorConfig(overlap=machine.overlap)
        self.steps: list[StepStats] = []  # of all requests so far
        self.targets = [verifier.worker]
        self.drafters = [drafter.worker for drafter in drafters]
        self._coordinator = Coordinator(verifier, pool, config, _DRAFT_LENGTH)
        self._answers, self._choose = answers, choose

    async def __aenter__(self) -> Self:
        await self._coordinator.__aenter__()
        await self._coordinator.profile()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._coordinator.__aexit__(*_)

    @property
    def clients(self) -> list[Self]:
        return [self]

    @property
    def prompts(self) -> list[Prompt]:
        return [answer.prompt for answer in self._answers]

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        """Yield the answer to a prompt. `max_tokens` is ignored: each answer has its own length."""
        ids = np.array(prompt, np.int32)
        answer = self._answers[int(ids[0])]
        token_ids = list[int]()
        stream = self._coordinator.stream(ids, answer.sampling, self._choose(answer))
        async with contextlib.aclosing(stream):
            async for output in stream:
                token_ids += output.token_ids
                self.steps.append(output.step)
                yield TimedTokens(time.monotonic(), len(output.token_ids), "")
        assert tuple(token_ids) == answer.token_ids, f"request {answer.number} differs from plain"
