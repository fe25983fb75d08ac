"""`python -m benchmarks.studies.own_cost`: the coordinator's own cost.

Drafter and verifier answer immediately, and nothing overlaps, so all processor time is the loop's
own: planning and checking drafts, batches, commits, statistics, outputs, and the event loop. Half
of every draft is accepted. By the scheduler's clock the calls take some milliseconds, so that
drafts pay and, with few sequences, every step has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from unittest.mock import patch

import numpy as np
import typer
import uvloop
from rich.console import Console

from diffuspec.algorithm.draft_tree import chain
from diffuspec.bench.report import print_tables
from diffuspec.bench.text_table import TextTable
from diffuspec.cli.command import Command
from diffuspec.core.config import CoordinatorConfig, DraftLengthConfig
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import DraftLengthPolicy, SamplingParams, SpeculationParams
from diffuspec.core.types import Draft, DraftRequest, Verdict, VerifyRequest
from diffuspec.scheduler.coordinator import Coordinator

NUM_SEQUENCES = (1, 2, 8, 64, 256)
POLICIES: tuple[DraftLengthPolicy, ...] = ("cost_aware", "fixed", "off")
_NUM_STEPS = 6000  # total steps of all sequences in one run
_NUM_RUNS = 5
_MAX_MODEL_LEN = 1 << 20
_DRAFT_SECONDS, _VERIFY_SECONDS = 1e-3, 5e-3  # simulated time of a call
_SECONDS_EACH = 5e-6  # more for each request of a draft call, and each node of a verification

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class OwnCost:
    """Microseconds of processor time per sequence and step, over several runs."""

    policy: DraftLengthPolicy
    num_sequences: int
    median_us: float
    min_us: float


class _Clock:
    """time.monotonic(), and the simulated seconds so far."""

    def __init__(self) -> None:
        self._monotonic = time.monotonic
        self.simulated_seconds = 0.0

    def __call__(self) -> float:
        return self._monotonic() + self.simulated_seconds


class _AtOnce:
    """A drafter and a verifier that answer immediately, later by the clock."""

    def __init__(self, num_sequences: int, clock: _Clock) -> None:
        self._clock = clock
        self.info = TargetInfo(
            vocab_size=1000,
            max_model_len=_MAX_MODEL_LEN,
            max_sequences=num_sequences,
            max_tree_nodes=64,
            eos_token_ids=(),
        )
        self.num_verified = 0
        lengths = range(self.info.max_tree_nodes + 1)
        confidences = [-0.05 * (1 + node % 7) for node in lengths]
        self._drafts = [Draft(chain(range(n)), tuple(confidences[:n]), n) for n in lengths]
        self._verdicts = [Verdict((1,) * (n // 2 + 1), tuple(range(n // 2))) for n in lengths]

    async def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self._clock.simulated_seconds += _DRAFT_SECONDS + _SECONDS_EACH * len(requests)
        return [self._drafts[min(one.num_draft_tokens, one.max_nodes)] for one in requests]

    async def verify(self, requests: Sequence[VerifyRequest]) -> list[Verdict]:
        self.num_verified += len(requests)
        num_nodes = sum([one.tree.num_nodes for one in requests])
        self._clock.simulated_seconds += _VERIFY_SECONDS + _SECONDS_EACH * num_nodes
        return [self._verdicts[one.tree.num_nodes] for one in requests]

    async def release(self, request_id: str) -> None:
        pass


async def time_steps(policy: DraftLengthPolicy, num_sequences: int, num_steps: int) -> float:
    """Return the seconds per sequence and step with this many concurrent sequences.

    num_steps: approximate total over all sequences.
    """
    clock = _Clock()
    roles = _AtOnce(num_sequences, clock)
    coordinator = Coordinator(roles, roles, CoordinatorConfig(overlap=False), DraftLengthConfig())
    sampling = SamplingParams(max_tokens=max(1, 8 * num_steps // num_sequences))
    speculation = SpeculationParams(policy=policy)
    prompt = np.ones(32, np.int32)

    async def read() -> None:
        stream = coordinator.stream(prompt, sampling, speculation)
        async with contextlib.aclosing(stream):
            async for _ in stream:
                pass

    with patch.object(time, "monotonic", clock):
        async with coordinator:
            started = time.thread_time()
            await asyncio.gather(*[read() for _ in range(num_sequences)])
            return (time.thread_time() - started) / roles.num_verified


def study_own_cost(num_steps: int = _NUM_STEPS, num_runs: int = _NUM_RUNS) -> list[OwnCost]:
    """Measure every policy with every number of sequences, in turns."""
    cases = [(policy, number) for policy in POLICIES for number in NUM_SEQUENCES]
    found: dict[tuple[DraftLengthPolicy, int], list[float]] = {case: [] for case in cases}
    for _ in range(num_runs):
        for policy, number in cases:
            seconds = uvloop.run(time_steps(policy, number, num_steps))
            found[policy, number].append(1e6 * seconds)
    return [OwnCost(*case, median(times), min(times)) for case, times in found.items()]


def own_cost_table(costs: Sequence[OwnCost]) -> TextTable:
    cells = [
        (cost.policy, str(cost.num_sequences), f"{cost.median_us:.0f}", f"{cost.min_us:.0f}")
        for cost in costs
    ]
    title = "The coordinator's own microseconds per sequence and step"
    return TextTable(title, ("policy", "sequences", "median", "least"), tuple(cells))


@app.command(cls=Command)
def main() -> None:
    """Measure the coordinator's own time per sequence and step; print a table."""
    print_tables([own_cost_table(study_own_cost())], [], Console())


if __name__ == "__main__":
    app()
