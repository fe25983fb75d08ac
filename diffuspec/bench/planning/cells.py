"""Cells of the study: one machine, regime and load, decoded by several systems."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from diffuspec.bench.load import LoadRun, TimedTokens, ask_all
from diffuspec.bench.planning.loop import run_in_virtual_time
from diffuspec.bench.planning.machines import MACHINES, Machine
from diffuspec.bench.planning.processor import Processor
from diffuspec.bench.planning.roles import MAX_SEQUENCES, SimulatedDrafter, SimulatedVerifier
from diffuspec.bench.planning.traffic import (
    MAX_ANSWER_TOKENS,
    REGIMES,
    Answer,
    make_answers,
)
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.params import PLAIN, SpeculationParams
from diffuspec.core.types import Prompt
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.scheduler.drafters import DrafterPool

LOADS = (1, 2, 4, 8, 16, 32, MAX_SEQUENCES)
OFF, DEFAULT, FIXED, ORACLE = SYSTEMS = ("off", "default", "fixed", "oracle")
FIXED_LENGTHS = (2, 4, 8, 12, 16, 24, 48)

_DRAFT_LENGTH = DraftLengthConfig(max_draft_tokens=64)
_MIN_ANSWERS = 64  # minimum number of answers in a run
_ROUNDS = 4  # answers for each client


@dataclass(frozen=True, slots=True)
class Cell:
    """A machine, a regime and a load."""

    machine: str
    regime: str
    load: int  # concurrent requests

    def __str__(self) -> str:
        return f"{self.machine}, {self.regime}, {self.load} at a time"

    @property
    def answers(self) -> tuple[Answer, ...]:
        return make_answers(REGIMES[self.regime], max(_MIN_ANSWERS, _ROUNDS * self.load))


@dataclass(frozen=True, slots=True)
class Figures:
    tokens_per_second: float
    first_token_p50: float  # seconds


@dataclass(frozen=True, slots=True)
class CellRow:
    """One system's results in one cell."""

    machine: str
    regime: str
    load: int
    system: str
    tokens_per_second: float
    first_token_p50: float  # seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """Which requests of a run are drafted, and how."""

    speculation: SpeculationParams
    threshold: float = 0.0  # requests whose share of right tokens is above this are drafted

    def choose(self, answer: Answer) -> SpeculationParams:
        return self.speculation if answer.share > self.threshold else PLAIN


_FIXED_PARAMS = {
    length: SpeculationParams(policy="fixed", num_draft_tokens=length, max_nodes=128)
    for length in FIXED_LENGTHS
}


def measure(cell: Cell, systems: Sequence[str]) -> list[CellRow]:
    """Return a row for each system, for FIXED one for each length. Every plan runs once."""
    known: dict[Plan, Figures] = {}

    def row(system: str, plans: Sequence[Plan]) -> CellRow:
        known.update({plan: run_plan(cell, plan) for plan in plans if plan not in known})
        best = max((known[plan] for plan in plans), key=lambda one: one.tokens_per_second)
        where = cell.machine, cell.regime, cell.load
        return CellRow(*where, system, best.tokens_per_second, best.first_token_p50)

    rows = []
    for system in systems:
        if system == FIXED:
            rows += [row(f"{FIXED} {k}", [Plan(one)]) for k, one in _FIXED_PARAMS.items()]
        else:
            rows.append(row(system, _plans(system, cell)))
    return rows


def _plans(system: str, cell: Cell) -> list[Plan]:
    if system == ORACLE:
        return oracle_plans(cell)
    return [Plan(PLAIN if system == OFF else SpeculationParams())]


def oracle_plans(cell: Cell) -> list[Plan]:
    """Return the plans from which the oracle chooses the fastest: static, with full knowledge.

    Thresholds that select no request, or the same ones as a lower threshold, are left out.
    """
    plans, seen = [Plan(PLAIN)], {frozenset[int]()}
    for threshold in REGIMES[cell.regime].thresholds:
        chosen = frozenset(one.number for one in cell.answers if one.share > threshold)
        if chosen not in seen:
            seen.add(chosen)
            plans += [Plan(one, threshold) for one in _FIXED_PARAMS.values()]
    return plans


def run_plan(cell: Cell, plan: Plan) -> Figures:
    """Decode all requests of a cell in virtual time. Asserts that the answers are right."""
    run = run_in_virtual_time(_ask(cell, plan))
    firsts = [answer.first_token_seconds for answer in run.answers]
    return Figures(run.tokens_per_second, median(firsts))


async def _ask(cell: Cell, plan: Plan) -> LoadRun:
    machine, answers = MACHINES[cell.machine], cell.answers
    processor = Processor(machine.interference)
    verifier = SimulatedVerifier(machine, processor, answers)
    drafters = [SimulatedDrafter(machine, processor, answers) for _ in range(machine.num_drafters)]
    async with _coordinator(machine, verifier, drafters) as coordinator:
        await coordinator.profile()
        client = _Client(coordinator, plan, answers)
        prompts: list[Prompt] = [answer.prompt for answer in answers]
        return await ask_all(client, prompts, cell.load, MAX_ANSWER_TOKENS)


def _coordinator(
    machine: Machine, verifier: SimulatedVerifier, drafters: Sequence[SimulatedDrafter]
) -> Coordinator:
    pool = DrafterPool(len(drafters))
    for number, one in enumerate(drafters):
        pool.add(one, f"drafter {number}")
    config = CoordinatorConfig(overlap=machine.overlap)
    return Coordinator(verifier, pool, config, _DRAFT_LENGTH)


class _Client:
    """Sends each request according to the plan, and checks the answer."""

    def __init__(self, coordinator: Coordinator, plan: Plan, answers: Sequence[Answer]) -> None:
        self._coordinator = coordinator
        self._plan = plan
        self._answers = answers

    async def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        """Yield the answer to a prompt. `max_tokens` is ignored: each answer has its own length."""
        ids = np.array(prompt, np.int32)
        answer = self._answers[int(ids[0])]
        speculation, token_ids = self._plan.choose(answer), list[int]()
        stream = self._coordinator.stream(ids, answer.sampling, speculation)
        async with contextlib.aclosing(stream):
            async for output in stream:
                token_ids += output.token_ids
                yield TimedTokens(time.monotonic(), len(output.token_ids), "")
        assert tuple(token_ids) == answer.token_ids, f"request {answer.number} differs from plain"
