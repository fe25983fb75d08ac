"""A plan as tables, a plot, one sentence of advice, and plain data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from diffuspec.bench.planning.plan import (
    BUSY,
    OFF,
    SERVED,
    Placement,
    Plan,
    Point,
    needed_acceptance,
)
from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.bench.text_table import TextTable

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What is said of a plan. gpu_hour: the price of a GPU's hour; None: it is not known."""

    plan: Plan
    gpu_hour: float | None = None

    def tables(self) -> list[TextTable]:
        return [self._speed_table(), self._time_table(), self._drafts_table()]

    def _speed_table(self) -> TextTable:
        columns = ("load", "tokens/s", "over off", "per GPU", "per user", "GPU-h/Mtok")
        price = () if self.gpu_hour is None else ("price/Mtok",)
        cells = []
        for point in self.plan.points:
            hours = self._gpu_hours(point)
            cells.append(
                (
                    _label(point),
                    f"{point.tokens_per_second:.0f}",
                    self._over_off(point),
                    f"{point.tokens_per_second / self._placement(point).num_gpus:.0f}",
                    f"{1 / point.per_token_p50:.0f}" if point.per_token_p50 else "-",
                    f"{hours:.2f}",
                    *([] if self.gpu_hour is None else [f"{hours * self.gpu_hour:.2f}"]),
                )
            )
        return TextTable("Speed of one pipeline", (*columns, *price), tuple(cells))

    def _time_table(self) -> TextTable:
        cells = tuple(
            (
                _label(point),
                f"{1e3 * point.first_token_p50:.0f}",
                f"{1e3 * point.first_token_p99:.0f}",
                f"{1e3 * point.per_token_p50:.1f}",
                f"{1e3 * point.per_token_p99:.1f}",
                f"{point.target_busy:.0%}",
                f"{point.drafter_busy:.0%}",
                "-" if point.hit_rate is None else f"{point.hit_rate:.0%}",
                f"{point.num_draft_tokens:.1f}",
                f"{point.acceptance_length:.2f}",
            )
            for point in self.plan.points
        )
        columns = (
            *("load", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "target busy"),
            *("draft busy", "hits", "draft len", "tok/ step"),
        )
        return TextTable("Times in milliseconds, and drafts", columns, cells)

    def _drafts_table(self) -> TextTable:
        loads = [point.load.at_a_time or 1 for point in self.plan.of(OFF)]
        context = self.plan.prompt_tokens + self.plan.answer_tokens / 2
        cells = []
        for one in self._drafting():
            needed = [needed_acceptance(one.machine, load, context) for load in loads]
            pays = self.plan.pays_up_to(one.name)
            shown = [f"{value:.2f}" if value < math.inf else "never" for value in needed]
            cells.append((one.name, str(pays) if pays else "none", *shown))
        title = "Where drafts pay: up to how many at a time, and from which acceptance length"
        return TextTable(title, ("drafter", "pays up to", *map(str, loads)), tuple(cells))

    def _drafting(self) -> list[Placement]:
        return [placement for placement in self.plan.placements if placement.has_drafts]

    def _placement(self, point: Point) -> Placement:
        return next(
            placement for placement in self.plan.placements if placement.name == point.placement
        )

    def _gpu_hours(self, point: Point) -> float:
        """GPU-hours per million tokens."""
        seconds = 1e6 * self._placement(point).num_gpus / point.tokens_per_second
        return seconds / _SECONDS_PER_HOUR

    def _over_off(self, point: Point) -> str:
        off = [
            other
            for other in self.plan.points
            if other.placement == OFF and other.load == point.load
        ]
        if not off or point.placement == OFF:
            return ""
        return f"{point.tokens_per_second / off[0].tokens_per_second:.2f}x"

    def advised(self) -> Placement:
        """Return the placement with the fewest GPUs at the rate, then the fastest tokens.

        Without a rate: the one with the most tokens per GPU at the first load.
        """
        plan = self.plan
        opened = {point.placement: point for point in plan.points if point.load.at_a_time is None}
        if plan.rate is not None and opened:
            return min(
                plan.placements,
                key=lambda placement: (
                    plan.num_pipelines(placement.name) * placement.num_gpus,
                    opened[placement.name].per_token_p50,
                ),
            )
        return max(
            plan.placements,
            key=lambda placement: plan.of(placement.name)[0].tokens_per_second / placement.num_gpus,
        )

    def advice(self) -> str:
        """One sentence."""
        plan, best = self.plan, self.advised()
        how = {OFF: "without drafts", SERVED: "with a draft server for vLLM or the like"}
        drafts = how.get(best.name, f"with the drafter {best.name}")
        pipelines = plan.num_pipelines(best.name)
        size = f"{pipelines} x {best.num_gpus:.3g} GPU" if plan.rate else f"{best.num_gpus:.3g} GPU"
        where = f"For {plan.rate:g} requests/s" if plan.rate else "For one request at a time"
        pace = {
            point.placement: point.per_token_p50 for point in plan.points if self._is_advised(point)
        }
        text = f"{where}: {drafts} on {size}, {1e3 * pace[best.name]:.1f} ms a token"
        if best.name != OFF:
            text += f" instead of {1e3 * pace[OFF]:.1f} without drafts"
        limits = [
            f"{one.name} {plan.pays_up_to(one.name) or 'at no load'}" for one in self._drafting()
        ]
        return text + (f"; drafts pay up to (at a time): {', '.join(limits)}." if limits else ".")

    def _is_advised(self, point: Point) -> bool:
        """Return whether the advice speaks of the load of a point."""
        if self.plan.rate is None:
            return point.load == self.plan.of(OFF)[0].load
        return point.load.at_a_time is None

    def warnings(self) -> Iterator[str]:
        """Yield what limits the figures."""
        for point in self.plan.points:
            if point.num_refused:
                yield f"{_label(point)}: {point.num_refused} requests refused, the queue is full."
        for name, (low, high) in self.plan.bands.items():
            yield (
                f"{name}: above {BUSY:.0%} of what it can do, where times to the first token "
                f"depend on chance: with 5 % fewer and more requests, {1e3 * low:.0f} to "
                f"{1e3 * high:.0f} ms in the median."
            )

    def to_json(self) -> dict[str, Any]:
        """Plain data: every point, and what follows."""
        plan = self.plan
        points = [
            asdict(point)
            | {"load": str(point.load), "gpu_hours_per_million": self._gpu_hours(point)}
            for point in plan.points
        ]
        placements = [
            {
                "name": placement.name,
                "num_gpus": placement.num_gpus,
                "max_sequences": placement.max_sequences,
                "num_pipelines": plan.num_pipelines(placement.name),
                "pays_up_to": plan.pays_up_to(placement.name) if placement.has_drafts else None,
            }
            for placement in plan.placements
        ]
        return {
            "advice": self.advice(),
            "placements": placements,
            "points": points,
            "first_token_bands": dict(plan.bands),
        }


def _label(point: Point) -> str:
    return f"{point.load} {point.placement}"


def plot_plan(plan: Plan, path: Path) -> None:
    """Draw tokens/s, tokens/s per GPU and time per token into a PNG file."""

    def lines(of: str, divide: bool = False) -> Sequence[Line]:
        drawn = []
        for one in plan.placements:
            own = plan.of(one.name)
            ys = tuple(getattr(p, of) / (one.num_gpus if divide else 1) for p in own)
            drawn.append(Line(one.name, tuple(str(p.load) for p in own), ys))
        return drawn

    panels = {
        "tokens/s": lines("tokens_per_second"),
        "tokens/s per GPU": lines("tokens_per_second", divide=True),
        "seconds per token, median": lines("per_token_p50"),
    }
    plot_sweep("Plan", "requests at a time", panels, path)
