"""The speed-up of pre-drafting, by the number of outcomes pre-drafted.

Both roles take a fixed time per batch, as on hardware of their own, whatever machine this runs on.
The models' answers are computed beforehand, so that the loop and its waits alone are timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeAlias

from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.bench.questions import rotated
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import Drafter, Verifier
from diffuspec.core.params import MAX_OUTCOMES, SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, TokenIds, Verdict, VerifyRequest
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.telemetry.metrics import RequestStats, summarize
from diffuspec.telemetry.trace import Tracer

SEQUENTIAL = "sequential"
OVERLAPPED = "overlapped"
_FIXED_PATH = SpeculationParams(policy="fixed", num_draft_tokens=16, tree_shape="path")

FanOut: TypeAlias = int | Literal["auto"]

_FAN_OUTS: Sequence[FanOut] = (0, 1, 2, 4, 8, "auto")


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per batch of each role, whatever its size."""

    verify_seconds: float = 0.030
    draft_seconds: float = 0.010


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """One way of decoding the same prompts."""

    system: str
    num_outcomes: FanOut
    hit_rate: float
    mean_acceptance_length: float
    tokens_per_second: float
    speedup: float  # over sequential
    ideal_tokens_per_second: float  # if verification and drafts after misses took all the time
    verify_idle_share: float
    num_wasted_draft_tokens: float  # tokens wasted for each committed one

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

    Systems take turns at every prompt, so that none gets the machine at a better time. Each first
    rehearses the prompt without waits, so that the models' answers are known when it is timed. The
    tracer records the last fan-out.
    """
    ways: list[tuple[str, FanOut]] = [(SEQUENTIAL, 0)]
    ways += [(OVERLAPPED, fan_out) for fan_out in _FAN_OUTS]
    known = _Known(verifier, drafter)
    systems = [
        _System(name, fan_out, known, pace, speculation, max_tokens, tracer if last else None)
        for number, (name, fan_out) in enumerate(ways, start=1)
        for last in (number == len(ways),)
    ]
    asyncio.run(_take_turns(systems, prompts))
    base = systems[0].row().tokens_per_second
    return [replace(row, speedup=row.tokens_per_second / base) for row in map(_System.row, systems)]


async def _take_turns(systems: Sequence[_System], prompts: Sequence[TokenIds]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for system in systems:
            await stack.enter_async_context(system.rehearsal)
            await stack.enter_async_context(system.coordinator)
        for number, prompt in enumerate(prompts):
            for system in rotated(systems, number):
                await system.answer(prompt)


class _Known:
    """The models, and their answers so far."""

    def __init__(self, verifier: Verifier, drafter: Drafter) -> None:
        self.verifier = verifier
        self.drafter = drafter
        self.verdicts: dict[Hashable, Verdict] = {}
        self.drafts: dict[Hashable, Draft] = {}


class _System:
    """One way of decoding: a coordinator that rehearses, and one that is timed."""

    def __init__(
        self,
        name: str,
        fan_out: FanOut,
        known: _Known,
        pace: Pace,
        speculation: SpeculationParams,
        max_tokens: int,
        tracer: Tracer | None,
    ) -> None:
        self.name, self.fan_out = name, fan_out
        self._verifier = _PacedVerifier(known, pace.verify_seconds)
        self._drafter = _PacedDrafter(known, pace.draft_seconds)
        config = CoordinatorConfig(overlap=name == OVERLAPPED)
        roles = _PacedVerifier(known, 0.0), _PacedDrafter(known, 0.0)
        self.rehearsal = Coordinator(*roles, config, DraftLengthConfig())
        self.coordinator = Coordinator(
            self._verifier, self._drafter, config, DraftLengthConfig(), tracer=tracer
        )
        self._sampling = SamplingParams(max_tokens=max_tokens)
        self._speculation = replace(speculation, num_outcomes=fan_out)
        self._stats: list[RequestStats] = []
        self._num_saved = 0

    async def answer(self, prompt: TokenIds) -> None:
        most = replace(self._speculation, num_outcomes=MAX_OUTCOMES)
        rehearsed = most if self.fan_out == "auto" else self._speculation
        async for _ in self.rehearsal.stream(prompt, self._sampling, rehearsed):
            pass
        steps = [
            increment.step
            async for increment in self.coordinator.stream(
                prompt, self._sampling, self._speculation
            )
        ]
        # The first step is the prefill. A hit saves the draft of the step after it.
        self._stats.append(summarize(steps[1:], len(prompt)))
        self._num_saved += sum(step.pre_draft == "hit" for step in steps[:-1])

    def row(self) -> OverlapRow:
        num_tokens, seconds = self._sum("num_output_tokens"), self._sum("total_seconds")
        num_steps, num_hits = self._sum("num_steps"), self._sum("num_pre_draft_hits")
        num_tried = num_hits + self._sum("num_pre_draft_misses")
        num_awaited = self._sum("num_drafts") - self._num_saved
        ideal = num_steps * self._verifier.mean_seconds + num_awaited * self._drafter.mean_seconds
        return OverlapRow(
            system=self.name,
            num_outcomes=self.fan_out,
            hit_rate=num_hits / num_tried if num_tried else 0.0,
            mean_acceptance_length=num_tokens / num_steps,
            tokens_per_second=num_tokens / seconds,
            speedup=1.0,
            ideal_tokens_per_second=num_tokens / ideal,
            verify_idle_share=self._sum("verify_idle_seconds") / seconds,
            num_wasted_draft_tokens=self._sum("num_wasted_draft_tokens") / num_tokens,
        )

    def _sum(self, name: str) -> float:
        return float(sum(getattr(one, name) for one in self._stats))


class _Paced:
    """A role whose calls take a fixed time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._taken: list[float] = []

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of a call so far; a busy machine sleeps longer than asked."""
        return fmean(self._taken) if self._taken else self.seconds

    async def _pace(self, started: float) -> None:
        await asyncio.sleep(max(started + self.seconds - time.monotonic(), 0.0))
        self._taken.append(time.monotonic() - started)


class _PacedVerifier(_Paced):
    """A Verifier that takes a fixed time per batch."""

    def __init__(self, known: _Known, seconds: float) -> None:
        super().__init__(seconds)
        self.info = known.verifier.info
        self._known = known

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        started, known = time.monotonic(), self._known.verdicts
        keys = [(r.prefix.tobytes(), r.tree, r.sampling) for r in requests]
        missing = {k: r for k, r in zip(keys, requests, strict=True) if k not in known}
        if missing:
            verdicts = await self._known.verifier.verify([*missing.values()])
            known.update(zip(missing, verdicts, strict=True))
        await self._pace(started)
        return [replace(known[key], verify_seconds=self.seconds) for key in keys]

    async def release(self, request_id: str) -> None:
        await self._known.verifier.release(request_id)


class _PacedDrafter(_Paced):
    """A Drafter that takes a fixed time per batch."""

    def __init__(self, known: _Known, seconds: float) -> None:
        super().__init__(seconds)
        self._known = known

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        started, known = time.monotonic(), self._known.drafts
        keys = [_draft_key(request) for request in requests]
        missing = {k: r for k, r in zip(keys, requests, strict=True) if k not in known}
        if missing:
            drafts = await self._known.drafter.draft([*missing.values()])
            known.update(zip(missing, drafts, strict=True))
        await self._pace(started)
        own = self.seconds
        return [replace(known[key], draft_seconds=own, search_seconds=0.0) for key in keys]

    async def release(self, request_id: str) -> None:
        await self._known.drafter.release(request_id)


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
