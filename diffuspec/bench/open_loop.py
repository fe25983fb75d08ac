"""Open-loop load: requests come at a rate, whether or not earlier ones have been answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from diffuspec.bench.load import LoadAnswer, LoadClient, ask_one
from diffuspec.bench.text_table import TextTable
from diffuspec.core.errors import OverloadedError
from diffuspec.core.types import Prompt


@dataclass(frozen=True, slots=True)
class RateRun:
    """The results of the requests that came at one rate."""

    rate: float  # requests a second
    seconds: float  # time from the first request to the last token
    answers: tuple[LoadAnswer, ...]
    num_refused: int  # requests refused because the service was full

    @property
    def tokens_per_second(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.seconds


def arrival_times(rate: float, count: int) -> list[float]:
    """Return when requests of a Poisson process come, in seconds after the first."""
    source = random.Random(0)
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + source.expovariate(rate))
    return times


async def ask_at_rate(
    client: LoadClient, prompts: Sequence[Prompt], rate: float, max_tokens: int
) -> RateRun:
    """Ask every prompt once, `rate` a second on average. Raises what the client raises."""
    answers: list[LoadAnswer] = []
    num_refused = 0

    async def ask(number: int, prompt: Prompt) -> None:
        nonlocal num_refused
        try:
            answers.append(await ask_one(client, number, prompt, max_tokens))
        except OverloadedError:
            num_refused += 1

    started = time.monotonic()
    times = arrival_times(rate, len(prompts))
    gaps = [0.0, *(later - earlier for earlier, later in pairwise(times))]
    try:
        async with asyncio.TaskGroup() as group:
            for number, (prompt, gap) in enumerate(zip(prompts, gaps, strict=True)):
                await asyncio.sleep(gap)
                group.create_task(ask(number, prompt))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return RateRun(rate, time.monotonic() - started, tuple(answers), num_refused)


def rate_table(runs: Sequence[tuple[str, RateRun]]) -> TextTable:
    """Return a row for each run of each system; times in milliseconds."""
    columns = (
        "system",
        "requests/s",
        "answered",
        "refused",
        "tokens/s",
        "first token p50",
        "first token p99",
        "per token p50",
    )
    cells = [
        (
            name,
            f"{run.rate:g}",
            str(len(run.answers)),
            str(run.num_refused),
            f"{run.tokens_per_second:.0f}",
            *_milliseconds(run),
        )
        for name, run in runs
    ]
    return TextTable("Requests that come at a rate", columns, tuple(cells))


def _milliseconds(run: RateRun) -> tuple[str, ...]:
    if not run.answers:
        return "-", "-", "-"
    firsts = [answer.first_token_seconds for answer in run.answers]
    paces = [pace for answer in run.answers if (pace := answer.seconds_per_token) is not None]
    found = (*np.percentile(firsts, [50, 99]), np.percentile(paces or [0.0], 50))
    return tuple(f"{1000 * seconds:.1f}" for seconds in found)
