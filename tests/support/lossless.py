"""Jobs, their answers, and how answers are compared, wherever the roles run.

Tests of losslessness say what must hold; their fixtures supply the roles, which run in this process
or on a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pytest
from tokenizers import Tokenizer

from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.core.types import FinishReason, Prompt, RequestOutput, StepStats, TokenLogprobs
from diffuspec.scheduler.coordinator import Coordinator
from diffuspec.text.detokenizer import Detokenizer

Arrival = Literal["alone", "together", "one after the other"]

PLAIN = SpeculationParams(policy="off")


@dataclass(frozen=True)
class Job:
    prompt: Prompt
    sampling: SamplingParams
    speculation: SpeculationParams = PLAIN


Ask: TypeAlias = Callable[[Job, str], AsyncIterator[RequestOutput]]
"""Submits a job under a request id; yields its outputs."""


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprobs, ...]
    steps: tuple[StepStats, ...]

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    def assert_same(self, other: Answer) -> None:
        assert self.token_ids == other.token_ids
        assert (self.text, self.finish_reason) == (other.text, other.finish_reason)
        mine = [one.logprob for one in self.logprobs]
        assert mine == pytest.approx([one.logprob for one in other.logprobs], abs=1e-3)
        tops = [[logprob for _, logprob in one.top] for one in self.logprobs]
        for top, one in zip(tops, other.logprobs, strict=True):
            assert top == pytest.approx([logprob for _, logprob in one.top], abs=1e-3)


def ask_coordinator(coordinator: Coordinator, tokenizer: Tokenizer | None = None) -> Ask:
    """Ask a coordinator; without a tokenizer, answers have no text."""

    def ask(job: Job, name: str) -> AsyncIterator[RequestOutput]:
        text = Detokenizer(tokenizer, job.sampling.stop) if tokenizer is not None else None
        prompt = np.array(job.prompt, np.int32)
        return coordinator.stream(prompt, job.sampling, job.speculation, text, request_id=name)

    return ask


async def answer(outputs: AsyncIterator[RequestOutput], has_begun: asyncio.Event) -> Answer:
    """Collect the outputs of a request; set `has_begun` with the first of them."""
    collected = []
    async for output in outputs:
        collected.append(output)
        has_begun.set()
    return Answer(
        tuple(i for output in collected for i in output.token_ids),
        "".join(output.text for output in collected),
        collected[-1].finish_reason,
        tuple(one for output in collected for one in output.logprobs or ()),
        tuple(output.step for output in collected),
    )


async def answer_all(ask: Ask, jobs: Sequence[Job], arrival: Arrival = "together") -> list[Answer]:
    """Return the answers of all jobs, in order; the id of a job's request is its number."""
    tasks = []
    for number, job in enumerate(jobs):
        has_begun = asyncio.Event()
        task = asyncio.create_task(answer(ask(job, str(number)), has_begun))
        tasks.append(task)
        if arrival == "alone":
            await task
        elif arrival == "one after the other":
            begun = asyncio.create_task(has_begun.wait())
            await asyncio.wait((begun, task), return_when=asyncio.FIRST_COMPLETED)
            begun.cancel()
    return list(await asyncio.gather(*tasks))
