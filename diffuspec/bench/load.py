"""Closed-loop load: a number of clients, each of which sends its next question after an answer.

They use a `LoadClient`: the library in this process, or anything that streams tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Protocol

import numpy as np

from diffuspec.bench.text_table import TextTable
from diffuspec.core.errors import OverloadedError
from diffuspec.core.types import Prompt


@dataclass(frozen=True, slots=True)
class TimedTokens:
    """Tokens of an answer that arrived together."""

    at: float  # time.monotonic() on arrival
    num_tokens: int
    text: str


class LoadClient(Protocol):
    """A connection to a service. Many answers may stream at the same time."""

    def stream(self, prompt: Prompt, max_tokens: int) -> AsyncGenerator[TimedTokens]:
        """Yield a greedy answer as its tokens arrive. Raises the service's errors."""
        ...


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """One answer, and the times at which its parts arrived."""

    prompt: int  # index in the prompts of the run
    started_at: float
    parts: tuple[TimedTokens, ...]  # one or more parts with tokens

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts)

    @property
    def first_token_seconds(self) -> float:
        return self.parts[0].at - self.started_at

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time between tokens after the first part; None: there are no tokens after it."""
        later = self.num_tokens - self.parts[0].num_tokens
        return (self.parts[-1].at - self.parts[0].at) / later if later else None


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The answers to all prompts at one concurrency.

    full_seconds: time in which all clients were busy, until the first found no question left.
    """

    concurrency: int
    started_at: float
    full_seconds: float
    answers: tuple[LoadAnswer, ...]
    # processor time of this process and of the engine's other processes, to the last answer
    cpu_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens that arrived while all clients were busy, divided by that time."""
        ends_at = self.started_at + self.full_seconds
        parts = (part for answer in self.answers for part in answer.parts)
        return sum(part.num_tokens for part in parts if part.at <= ends_at) / self.full_seconds


async def ask_one(client: LoadClient, number: int, prompt: Prompt, max_tokens: int) -> LoadAnswer:
    """Send the prompt with this index, and time the answer."""
    started = time.monotonic()
    async with contextlib.aclosing(client.stream(prompt, max_tokens)) as stream:
        parts = tuple([part async for part in stream if part.num_tokens])
    return LoadAnswer(number, started, parts)


async def ask_all(
    client: LoadClient,
    prompts: Sequence[Prompt],
    concurrency: int,
    max_tokens: int,
) -> LoadRun:
    """Send every prompt once, `concurrency` at a time (at most the number of prompts)."""
    run = _Run(client, max_tokens, enumerate(prompts))
    run.started_at, cpu = time.monotonic(), time.process_time()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(run.ask())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    assert run.full_until is not None
    return LoadRun(
        concurrency,
        run.started_at,
        run.full_until - run.started_at,
        tuple(sorted(run.answers, key=lambda answer: answer.prompt)),
        time.process_time() - cpu,
    )


@dataclass(slots=True)
class _Run:
    client: LoadClient
    max_tokens: int
    left: Iterator[tuple[int, Prompt]]
    answers: list[LoadAnswer] = field(default_factory=list)
    started_at: float = 0.0
    full_until: float | None = None

    async def ask(self) -> None:
        for number, prompt in self.left:
            self.answers.append(await ask_one(self.client, number, prompt, self.max_tokens))
        if self.full_until is None:
            self.full_until = time.monotonic()


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One system at one concurrency, over all repeats. Times are in milliseconds."""

    system: str
    concurrency: int
    num_answers: int
    num_tokens: int
    tokens_per_second: float  # median over the repeats
    first_token_p50: float
    first_token_p99: float
    per_token_p50: float  # mean time between an answer's tokens after its first part
    per_token_p99: float
    cpu_per_token: float  # processor time of the client and, with the library, of the engine


def load_row(system: str, runs: Sequence[LoadRun]) -> LoadRow:
    """Summarise the repeats of one system at one concurrency."""
    answers = [answer for run in runs for answer in run.answers]
    firsts = [1000 * answer.first_token_seconds for answer in answers]
    paces = [1000 * pace for answer in answers if (pace := answer.seconds_per_token) is not None]
    num_tokens = sum(answer.num_tokens for answer in answers)
    return LoadRow(
        system=system,
        concurrency=runs[0].concurrency,
        num_answers=len(answers),
        num_tokens=num_tokens,
        tokens_per_second=median(run.tokens_per_second for run in runs),
        first_token_p50=float(np.percentile(firsts, 50)),
        first_token_p99=float(np.percentile(firsts, 99)),
        per_token_p50=float(np.percentile(paces or [0.0], 50)),
        per_token_p99=float(np.percentile(paces or [0.0], 99)),
        cpu_per_token=1000 * sum(run.cpu_seconds for run in runs) / num_tokens,
    )


@dataclass(frozen=True, slots=True)
class RateRun:
    """The results of requests that arrived at one rate."""

    rate: float  # requests per second
    seconds: float  # time from the first request to the last token
    answers: tuple[LoadAnswer, ...]
    num_refused: int  # requests refused because the service was full

    @property
    def tokens_per_second(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.seconds


def arrival_times(rate: float, count: int) -> list[float]:
    """Return the arrival times of a Poisson process, in seconds after the first arrival."""
    source = random.Random(0)
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + source.expovariate(rate))
    return times


async def ask_at_rate(
    client: LoadClient,
    prompts: Sequence[Prompt],
    rate: float,
    max_tokens: int,
    times: Sequence[float] | None = None,
) -> RateRun:
    """Send every prompt once, at an average of `rate` per second. Raises the client's errors.

    times: the rising arrival times in seconds, from 0; None: those of a Poisson process.
    """
    answers: list[LoadAnswer] = []
    num_refused = 0

    async def ask(number: int, prompt: Prompt) -> None:
        nonlocal num_refused
        try:
            answers.append(await ask_one(client, number, prompt, max_tokens))
        except OverloadedError:
            num_refused += 1

    started = time.monotonic()
    times = arrival_times(rate, len(prompts)) if times is None else times
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
