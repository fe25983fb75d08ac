"""The cost of a step apart from the target: drafting by prefix length, and our overhead.

The cases take turns over several rounds, so that a slowdown of the machine affects all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from diffuspec.bench.systems.answer import Answer, System
from diffuspec.core.interfaces import LatticeModel
from diffuspec.core.params import SamplingParams, TreeShape
from diffuspec.core.types import DraftRequest, TokenIds

PREFIX_LENGTHS = (100, 250, 500, 1000, 1500, 2000)
NUM_DRAFT_TOKENS = 20
NUM_NEW_TOKENS = 5  # tokens committed since the last draft
_REQUEST_ID = "bench-draft-cost"


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Time to make a lattice after a prefix has grown by NUM_NEW_TOKENS."""

    prefix_cache: bool
    num_prefix_tokens: int
    num_draft_tokens: int
    num_runs: int
    min_ms: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class StepOverhead:
    """Mean time per step outside the forwards of both models: minimum and median over answers."""

    tree_shape: TreeShape
    num_draft_tokens: int
    num_answers: int
    min_ms: float
    median_ms: float
    median_search_ms: float


def sweep_draft_cost(
    model: LatticeModel,
    prefix_lengths: Sequence[int],
    *,
    prefix_cache: bool,
    vocab_size: int,
    num_rounds: int,
    runs_per_round: int,
) -> list[DraftCost]:
    """Time drafting for prefixes of each length. prefix_cache: whether the model has one.

    With a cache, each prefix is drafted once before its growth is timed.
    """
    rng = np.random.default_rng(0)
    text = rng.integers(vocab_size, size=max(prefix_lengths), dtype=np.int32)
    times: dict[int, list[float]] = {length: [] for length in prefix_lengths}
    for number in range(num_rounds):
        for length in prefix_lengths[:: 1 if number % 2 else -1]:
            prefix = text[: length - NUM_NEW_TOKENS]
            shape = runs_per_round + 1, NUM_NEW_TOKENS
            tails = rng.integers(vocab_size, size=shape, dtype=np.int32)
            seconds = asyncio.run(_time_drafts(model, prefix, tails, prefix_cache))
            times[length] += seconds[1:]  # the first is a warm-up
    return [
        DraftCost(
            prefix_cache,
            length,
            NUM_DRAFT_TOKENS,
            len(found),
            1000 * min(found),
            1000 * median(found),
        )
        for length, found in times.items()
    ]


async def _time_drafts(
    model: LatticeModel, prefix: TokenIds, tails: TokenIds, is_known: bool
) -> list[float]:
    """Return the seconds of one draft after the prefix with each tail."""
    times = []
    for tail in tails:
        if is_known:
            await model.lattices([_request(prefix)])
        request = _request(np.concatenate([prefix, tail]))
        started = time.perf_counter()
        await model.lattices([request])
        times.append(time.perf_counter() - started)
    await model.release(_REQUEST_ID)
    return times


def _request(prefix: TokenIds) -> DraftRequest:
    return DraftRequest(
        _REQUEST_ID, prefix, NUM_DRAFT_TOKENS, "path", NUM_DRAFT_TOKENS, 0.5, SamplingParams()
    )


def measure_step_overheads(
    systems: Mapping[TreeShape, System],
    num_draft_tokens: int,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    num_rounds: int,
) -> list[StepOverhead]:
    """Answer all prompts with our systems, given by tree shape, and time their steps."""
    for system in systems.values():
        system.answer(prompts[0], max_tokens)  # warm-up
    answers: dict[TreeShape, list[Answer]] = {shape: [] for shape in systems}
    for _ in range(num_rounds):
        for prompt in prompts:
            for shape, system in systems.items():
                answers[shape].append(system.answer(prompt, max_tokens))
    return [_step_overhead(shape, num_draft_tokens, found) for shape, found in answers.items()]


def _step_overhead(
    tree_shape: TreeShape, num_draft_tokens: int, answers: Sequence[Answer]
) -> StepOverhead:
    overheads = [overhead_ms_per_step(answer) for answer in answers]
    searches = [
        1000 * sum(step.search_seconds for step in answer.steps) / len(answer.steps)
        for answer in answers
    ]
    return StepOverhead(
        tree_shape,
        num_draft_tokens,
        len(answers),
        min(overheads),
        median(overheads),
        median(searches),
    )


def overhead_ms_per_step(answer: Answer) -> float:
    """Return the mean milliseconds per step outside the forwards of both models."""
    assert answer.forward_seconds is not None
    seconds = sum(step.step_seconds for step in answer.steps) - answer.forward_seconds
    return 1000 * seconds / len(answer.steps)
