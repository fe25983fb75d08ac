"""The speed-up of pre-drafting, by the number of outcomes pre-drafted, in virtual time.

Both roles take a fixed time per batch, as on their own hardware, whatever machine this runs on.
Computing the models takes no virtual time, so only the loop's waits are timed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from diffuspec.bench.planning.loop import run_in_virtual_time
from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, TokenIds, Verdict, VerifyRequest
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.telemetry.request_stats import summarize
from diffuspec.telemetry.trace import Tracer

SEQUENTIAL = "sequential"
OVERLAPPED = "overlapped"
_FIXED_PATH = SpeculationParams(policy="fixed", num_draft_tokens=16, tree_shape="path")

FanOut: TypeAlias = int | Literal["auto"]

_FAN_OUTS: Sequence[FanOut] = (0, 1, 2, 4, 8, "auto")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that each role takes per batch, whatever its size."""

    verify_seconds: float = 0.030
    draft_seconds: float = 0.010


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """The results of one way of decoding the same prompts."""

    system: str
    num_outcomes: FanOut
    hit_rate: float
    mean_acceptance_length: float
    tokens_per_second: float
    speedup: float  # relative to sequential decoding
    ideal_tokens_per_second: float  # if verifications and drafts after misses took all the time
    verify_idle_share: float
    num_wasted_draft_tokens: float  # drafted tokens wasted for each committed one

    @property
    def share_of_ideal(self) -> float:
        return self.tokens_per_second / self.ideal_tokens_per_second


def measure_overlap(
    verifier: Verifier,
    drafter: Drafter,
    prompts: Sequence[TokenIds],
    speculation: SpeculationParams = _FIXED_PATH,
    pace: Pace = Pace(),
    max_tokens: int = 96,
    tracer: Tracer | None = None,
) -> list[OverlapRow]:
    """Answer all prompts sequentially and with each fan-out, one request at a time.

    The roles must compute in the event loop's thread. The tracer records the last fan-out.
    """
    verifies = _PacedVerifier(verifier, pace.verify_seconds)
    drafts = _PacedDrafter(drafter, pace.draft_seconds)
    ways: list[tuple[str, FanOut]] = [(SEQUENTIAL, 0)]
    ways += [(OVERLAPPED, fan_out) for fan_out in _FAN_OUTS]
    sampling = SamplingParams(max_tokens=max_tokens)
    rows = []
    for number, (system, fan_out) in enumerate(ways, start=1):
        config = CoordinatorConfig(overlap=system == OVERLAPPED)
        traced = tracer if number == len(ways) else None
        coordinator = Coordinator(verifies, drafts, config, DraftLengthConfig(), tracer=traced)
        own = replace(speculation, num_outcomes=fan_out)
        work = _answer_all(coordinator, prompts, sampling, own, pace)
        row = run_in_virtual_time(work, time.monotonic())  # starts at the trace's clock
        rows.append(replace(row, system=system))
    base = rows[0].tokens_per_second
    return [replace(row, speedup=row.tokens_per_second / base) for row in rows]


async def _answer_all(
    coordinator: Coordinator,
    prompts: Sequence[TokenIds],
    sampling: SamplingParams,
    speculation: SpeculationParams,
    pace: Pace,
) -> OverlapRow:
    stats, num_saved = [], 0
    async with coordinator:
        for prompt in prompts:
            stream = coordinator.stream(prompt, sampling, speculation)
            steps = [increment.step async for increment in stream]
            # The first step is the prefill. A hit saves the draft of the next step.
            stats.append(summarize(steps[1:], len(prompt)))
            num_saved += sum(step.pre_draft == "hit" for step in steps[:-1])

    def total(name: str) -> float:
        return float(sum(getattr(one, name) for one in stats))

    num_tokens, seconds = total("num_output_tokens"), total("total_seconds")
    num_steps, num_hits = total("num_steps"), total("num_pre_draft_hits")
    num_tried = num_hits + total("num_pre_draft_misses")
    num_awaited = total("num_drafts") - num_saved
    ideal = num_steps * pace.verify_seconds + num_awaited * pace.draft_seconds
    return OverlapRow(
        system=OVERLAPPED,
        num_outcomes=speculation.num_outcomes,
        hit_rate=num_hits / num_tried if num_tried else 0.0,
        mean_acceptance_length=num_tokens / num_steps,
        tokens_per_second=num_tokens / seconds,
        speedup=1.0,
        ideal_tokens_per_second=num_tokens / ideal,
        verify_idle_share=total("verify_idle_seconds") / seconds,
        num_wasted_draft_tokens=total("num_wasted_draft_tokens") / num_tokens,
    )


class _PacedVerifier:
    """A Verifier that takes a fixed virtual time per batch, and caches its verdicts."""

    def __init__(self, verifier: Verifier, seconds: float) -> None:
        self.info = verifier.info
        self._verifier, self._seconds = verifier, seconds
        self._known: dict[Hashable, Verdict] = {}

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        known = self._known
        keys = [(r.prefix.tobytes(), r.tree, r.sampling) for r in requests]
        if missing := {k: r for k, r in zip(keys, requests, strict=True) if k not in known}:
            verdicts = await self._verifier.verify([*missing.values()])
            known.update(zip(missing, verdicts, strict=True))
        await asyncio.sleep(self._seconds)
        return [replace(known[key], verify_seconds=self._seconds) for key in keys]

    async def release(self, request_id: str) -> None:
        await self._verifier.release(request_id)


class _PacedDrafter:
    """A Drafter that takes a fixed virtual time per batch, and caches its drafts."""

    def __init__(self, drafter: Drafter, seconds: float) -> None:
        self._drafter, self._seconds = drafter, seconds
        self._known: dict[Hashable, Draft] = {}

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        known, own = self._known, self._seconds
        keys = [_draft_key(request) for request in requests]
        if missing := {k: r for k, r in zip(keys, requests, strict=True) if k not in known}:
            drafts = await self._drafter.draft([*missing.values()])
            known.update(zip(missing, drafts, strict=True))
        await asyncio.sleep(own)
        return [replace(known[key], draft_seconds=own, search_seconds=0.0) for key in keys]

    async def release(self, request_id: str) -> None:
        await self._drafter.release(request_id)


def _draft_key(request: DraftRequest) -> Hashable:
    return (
        request.prefix.tobytes(),
        request.num_draft_tokens,
        request.tree_shape,
        request.max_nodes,
        request.drafter_weight,
        request.sampling,
        request.num_alternatives,
    )


def plot_overlap(rows: Sequence[OverlapRow], path: Path) -> None:
    """Draw hit rate, speed-up and idle share over the fan-out into a PNG file."""
    overlapped = [row for row in rows if row.system == OVERLAPPED]
    xs = tuple(str(row.num_outcomes) for row in overlapped)

    def line(label: str, pick: Callable[[OverlapRow], float]) -> Line:
        return Line(label, xs, tuple(pick(row) for row in overlapped))

    ideals = [row.speedup / row.share_of_ideal for row in overlapped]
    panels = {
        "speed-up over sequential": [
            line("measured", lambda row: row.speedup),
            Line("ideal at this hit rate", xs, tuple(ideals)),
        ],
        "hit rate": [line("measured", lambda row: row.hit_rate)],
        "idle share of the verifier": [line("measured", lambda row: row.verify_idle_share)],
    }
    plot_sweep("Pre-drafting", "outcomes pre-drafted", panels, path)
