"""Sends a pipeline or an engine one question at a time, and computes statistics of the answers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from actors.settings import PipelineConfig
from diffuspec.bench.questions import Question
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import Prompt, RequestOutput, StepStats
from diffuspec.telemetry.request_stats import RequestStats, summarize


class Streaming(Protocol):
    """A pipeline, or an engine in this process."""

    def stream(
        self, prompt: Prompt, sampling: SamplingParams, speculation: SpeculationParams
    ) -> AsyncIterator[RequestOutput]: ...


@dataclass(slots=True)
class Run:
    """All answers in one mode."""

    tokens: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[StepStats] = field(default_factory=list)
    decoding: list[StepStats] = field(default_factory=list)  # steps without prefill
    seconds: float = 0.0

    @property
    def stats(self) -> RequestStats:
        return summarize(self.steps, 0)

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds

    @property
    def verify_idle_share(self) -> float:
        stats = self.stats
        return stats.verify_idle_seconds / stats.total_seconds if stats.total_seconds else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of verdicts whose next draft was ready; None without pre-drafts."""
        stats = self.stats
        tried = stats.num_pre_draft_hits + stats.num_pre_draft_misses
        return stats.pre_draft_hit_rate if tried else None


async def answer(
    service: Streaming,
    question: Question,
    speculation: SpeculationParams,
    max_tokens: int,
    run: Run,
) -> None:
    """Answer the first turn of a question, and add the answer to a run."""
    prompt = [{"role": "user", "content": question.turns[0]}]
    tokens: list[int] = []
    steps: list[StepStats] = []
    started = time.perf_counter()
    async for increment in service.stream(
        prompt, SamplingParams(max_tokens=max_tokens), speculation
    ):
        tokens += increment.token_ids
        steps.append(increment.step)
    run.seconds += time.perf_counter() - started
    run.steps += steps
    run.decoding += steps[1:]
    run.tokens.append(tuple(tokens))


def one_at_a_time(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration for one request at a time, without worker threads for models."""
    target = config.engine.target.model_copy(update={"max_sequences": 1})
    engine = config.engine.model_copy(update={"target": target})
    return config.model_copy(update={"engine": engine})


def progress_bar() -> Progress:
    """Return a bar on stderr that disappears at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
