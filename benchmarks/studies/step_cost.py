"""The time of a step by part: in one process, with rested roles, and in a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

from rich import box
from rich.table import Table

from diffuspec.core.types import StepStats

StepCost: TypeAlias = dict[str, float]  # median milliseconds, by part and of the whole step

_STAGES = {"draft": "drafter", "search": "path search", "verify": "target"}
_BETWEEN, _REST, _ALL = "between processes", "everything else", "step"


def step_cost(steps: Sequence[StepStats], *, is_rested: bool = False) -> StepCost:
    """Return the median cost of steps. is_rested: leave out transport, which is sleep."""
    cost = {title: median_ms(steps, stage) for stage, title in _STAGES.items()}
    working = [step.step_seconds - step.transport_seconds for step in steps]
    cost[_BETWEEN] = 0.0 if is_rested else median_ms(steps, "transport")
    cost[_REST] = _ms(
        [
            seconds - sum(_seconds(step, stage) for stage in _STAGES)
            for step, seconds in zip(steps, working, strict=True)
        ]
    )
    cost[_ALL] = _ms(working) if is_rested else median_ms(steps, "step")
    return cost


def median_ms(steps: Sequence[StepStats], stage: str) -> float:
    """Return the median milliseconds of a stage of StepStats."""
    return _ms([_seconds(step, stage) for step in steps])


def cost_table(costs: Mapping[str, StepCost]) -> Table:
    """Return a table of costs side by side, each compared with the first."""
    first, *others = costs
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("median ms per step", no_wrap=True)
    table.add_column(first, justify="right")
    for name in others:
        table.add_column(name, justify="right")
        table.add_column("difference", justify="right")
    for part, base in costs[first].items():
        cells = [f"{base:.2f}"]
        for name in others:
            ms = costs[name][part]
            cells += [f"{ms:.2f}", f"{ms - base:+.2f}"]
        table.add_row(part, *cells, end_section=part == _REST)
    return table


def _seconds(step: StepStats, stage: str) -> float:
    seconds: float = getattr(step, f"{stage}_seconds")
    return seconds


def _ms(seconds: Sequence[float]) -> float:
    return 1e3 * median(seconds)
