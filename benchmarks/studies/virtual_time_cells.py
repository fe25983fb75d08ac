"""Cells of the study: one machine, regime and load, decoded by several systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.studies.virtual_time_machines import MACHINES
from benchmarks.studies.virtual_time_regimes import REGIMES, thresholds
from diffuspec.bench.load import LoadRun, ask_all
from diffuspec.bench.planning.loop import run_in_virtual_time
from diffuspec.bench.planning.roles import MAX_SEQUENCES
from diffuspec.bench.planning.simulation import Simulation
from diffuspec.bench.planning.traffic import (
    MAX_ANSWER_TOKENS,
    Answer,
    make_answers,
)
from diffuspec.core.params import PLAIN, SpeculationParams

LOADS = (1, 2, 4, 8, 16, 32, MAX_SEQUENCES)
OFF, DEFAULT, FIXED, ORACLE = SYSTEMS = ("off", "default", "fixed", "oracle")
FIXED_LENGTHS = (2, 4, 8, 12, 16, 24, 48)

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
    for threshold in thresholds(REGIMES[cell.regime]):
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
    async with Simulation(MACHINES[cell.machine], cell.answers, plan.choose) as simulation:
        return await ask_all(simulation, simulation.prompts, cell.load, MAX_ANSWER_TOKENS)
