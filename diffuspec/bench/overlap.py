"""What drafting ahead of the verdict buys, by how many outcomes are drafted.

The roles take as long as told, as if each had hardware of its own, whatever the machine at hand.
The models' answers are kept, so that what is timed is the loop and its waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal, TypeAlias

from diffuspec.bench.plots import Line, plot_sweep
from diffuspec.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.coordinator import Coordinator
from diffuspec.interfaces import Drafter, Verifier
from diffuspec.metrics import RequestStats, summarize
from diffuspec.trace import Tracer
from diffuspec.types import (
    MAX_OUTCOMES,
    Draft,
    DraftRequest,
    SamplingParams,
    SpeculationParams,
    StepStats,
    TokenIds,
    Verdict,
    VerifyRequest,
)

SEQUENTIAL = "sequential"
OVERLAPPED = "overlapped"
_FIXED_TREE = SpeculationParams(policy="fixed", num_draft_tokens=16, tree_shape="path")


FanOut: TypeAlias = int | Literal["auto"]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long the roles take for a batch, whatever is in it."""

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
    ideal_tokens_per_second: float  # were all time but the roles' calls gone, and hits' drafts too
    verify_idle_share: float
    num_wasted_draft_tokens: float  # by committed token

    @property
    def share_of_ideal(self) -> float:
        return self.tokens_per_second / self.ideal_tokens_per_second


def measure_overlap(
    verifier: Verifier,
    drafter: Drafter,
    prompts: Sequence[TokenIds],
    fan_outs: Sequence[FanOut] = (0, 1, 2, 4, 8, "auto"),
    speculation: SpeculationParams = _FIXED_TREE,
    pace: Pace = Pace(),
    max_tokens: int = 96,
    tracer: Tracer | None = None,
) -> list[OverlapRow]:
    """Answer all prompts sequentially and with each fan-out, one request at a time.

    Every system runs twice, at first without waits, so that the models' answers are known when it
    is timed. The tracer is given the last fan-out.
    """
    roles = _PacedVerifier(verifier), _PacedDrafter(drafter)
    systems: list[tuple[str, FanOut]] = [(SEQUENTIAL, 0)]
    systems += [(OVERLAPPED, fan_out) for fan_out in fan_outs]
    rows: list[OverlapRow] = []
    for name, fan_out in systems:
        config = CoordinatorConfig(overlap=name == OVERLAPPED)
        trace = tracer if (name, fan_out) == systems[-1] else None
        most = MAX_OUTCOMES if fan_out == "auto" else fan_out
        for seconds, count, to in ((Pace(0, 0), most, None), (pace, fan_out, trace)):
            roles[0].begin(seconds.verify_seconds)
            roles[1].begin(seconds.draft_seconds)
            asked = replace(speculation, num_outcomes=count)
            stats = asyncio.run(_answer(*roles, config, prompts, asked, max_tokens, to))
        taken = Pace(roles[0].mean_seconds, roles[1].mean_seconds)
        rate = rows[0].tokens_per_second if rows else None
        rows.append(_row(name, fan_out, stats, taken, rate))
    return rows


async def _answer(
    verifier: Verifier,
    drafter: Drafter,
    config: CoordinatorConfig,
    prompts: Sequence[TokenIds],
    speculation: SpeculationParams,
    max_tokens: int,
    tracer: Tracer | None,
) -> list[RequestStats]:
    """Return what each prompt's steps came to, but for the first: that reads the prompt."""
    stats = []
    lengths = DraftLengthConfig()
    async with Coordinator(verifier, drafter, config, lengths, tracer=tracer) as coordinator:
        for prompt in prompts:
            steps: list[StepStats] = []
            sampling = SamplingParams(max_tokens=max_tokens)
            async for increment in coordinator.stream(prompt, sampling, speculation):
                steps.append(increment.step)
            stats.append(summarize(steps[1:], len(prompt)))
    return stats


def _row(
    system: str,
    fan_out: FanOut,
    stats: Sequence[RequestStats],
    pace: Pace,
    sequential_rate: float | None,
) -> OverlapRow:
    def total(name: str) -> float:
        return float(sum(getattr(one, name) for one in stats))

    num_tokens, seconds = total("num_output_tokens"), total("total_seconds")
    num_hits = total("num_pre_draft_hits")
    tried = num_hits + total("num_pre_draft_misses")
    # A verdict's hit saves the draft of the step after it.
    ideal = total("num_steps") * pace.verify_seconds
    ideal += max(total("num_drafts") - num_hits, 0) * pace.draft_seconds
    rate = num_tokens / seconds
    return OverlapRow(
        system=system,
        num_outcomes=fan_out,
        hit_rate=num_hits / tried if tried else 0.0,
        mean_acceptance_length=num_tokens / total("num_steps"),
        tokens_per_second=rate,
        speedup=rate / (sequential_rate or rate),
        ideal_tokens_per_second=num_tokens / ideal,
        verify_idle_share=total("verify_idle_seconds") / seconds,
        num_wasted_draft_tokens=total("num_wasted_draft_tokens") / num_tokens,
    )


class _Paced:
    """Answers after a while, and remembers what it has answered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._taken: list[float] = []
        self._known: dict[Hashable, object] = {}

    def begin(self, seconds: float) -> None:
        """From now on every call takes so long; what they took before is forgotten."""
        self.seconds = seconds
        self._taken.clear()

    @property
    def mean_seconds(self) -> float:
        """What calls took: a busy machine sleeps longer than told."""
        return fmean(self._taken) if self._taken else self.seconds

    async def _pace(self, started: float) -> None:
        await asyncio.sleep(max(started + self.seconds - time.monotonic(), 0.0))
        self._taken.append(time.monotonic() - started)

    def _missing(self, keys: Sequence[Hashable]) -> list[int]:
        return [i for i, key in enumerate(keys) if key not in self._known]


class _PacedVerifier(_Paced):
    """A Verifier that takes its time."""

    def __init__(self, verifier: Verifier) -> None:
        super().__init__()
        self.info = verifier.info
        self._verifier = verifier

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        started = time.monotonic()
        keys = [(r.prefix.tobytes(), r.tree, r.sampling) for r in requests]
        if missing := self._missing(keys):
            verdicts = await self._verifier.verify([requests[i] for i in missing])
            self._known.update(zip([keys[i] for i in missing], verdicts, strict=True))
        await self._pace(started)
        found = [self._known[key] for key in keys]
        return [replace(v, verify_seconds=self.seconds) for v in found if isinstance(v, Verdict)]

    async def release(self, request_id: str) -> None:
        await self._verifier.release(request_id)


class _PacedDrafter(_Paced):
    """A Drafter that takes its time."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__()
        self._drafter = drafter

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        started = time.monotonic()
        keys = [_draft_key(request) for request in requests]
        if missing := self._missing(keys):
            drafts = await self._drafter.draft([requests[i] for i in missing])
            self._known.update(zip([keys[i] for i in missing], drafts, strict=True))
        await self._pace(started)
        found = [self._known[key] for key in keys]
        return [
            replace(draft, draft_seconds=self.seconds, search_seconds=0.0)
            for draft in found
            if isinstance(draft, Draft)
        ]

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
        "verdicts that found their draft": [line("measured", lambda row: row.hit_rate)],
        "speed-up over sequential": [
            line("measured", lambda row: row.speedup),
            Line("ideal at this hit rate", xs, tuple(ideals)),
        ],
        "share of time the verifier waits": [line("measured", lambda row: row.verify_idle_share)],
    }
    plot_sweep("Drafting ahead of the verdict", "outcomes drafted ahead", panels, path)
