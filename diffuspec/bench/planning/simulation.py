"""A simulated pipeline: the real coordinator over simulated roles, and a client of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence

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
    """The roles of a machine and their coordinator. Belongs to a loop in virtual time."""

    def __init__(
        self,
        machine: Machine,
        answers: Sequence[Answer],
        info: TargetInfo = INFO,
        num_shared_tokens: int = 0,
    ) -> None:
        """num_shared_tokens: leading tokens of every prompt that both roles have cached."""
        processor = Processor(machine.interference)
        self.answers = answers
        self.verifier = SimulatedVerifier(machine, processor, answers, info, num_shared_tokens)
        self.drafters = [
            SimulatedDrafter(machine, processor, answers, num_shared_tokens)
            for _ in range(machine.num_drafters)
        ]
        pool = DrafterPool(len(self.drafters)) if self.drafters else None
        for number, drafter in enumerate(self.drafters):
            assert pool is not None
            pool.add(drafter, f"drafter {number}")
        config = CoordinatorConfig(overlap=machine.overlap)
        self.coordinator = Coordinator(self.verifier, pool, config, _DRAFT_LENGTH)

    @property
    def prompts(self) -> list[Prompt]:
        return [answer.prompt for answer in self.answers]


class SimulatedClient:
    """A `LoadClient` that chooses how each request is drafted, and checks the answers."""

    def __init__(
        self, simulation: Simulation, choose: Callable[[Answer], SpeculationParams]
    ) -> None:
        self.steps: list[StepStats] = []  # of all requests so far
        self._coordinator = simulation.coordinator
        self._choose = choose
        self._answers = simulation.answers

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
