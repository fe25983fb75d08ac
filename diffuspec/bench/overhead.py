"""What a step costs besides waiting for the target: drafting by prefix length, own overhead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from diffuspec.bench.systems import Answer, System
from diffuspec.interfaces import LatticeModel
from diffuspec.types import DraftRequest, SamplingParams, TokenIds, TreeShape

PREFIX_LENGTHS = (100, 250, 500, 1000, 1500, 2000)
NUM_DRAFT_TOKENS = 20
NUM_NEW_TOKENS = 5  # committed since the last draft
_REQUEST_ID = "bench-draft-cost"


@dataclass(frozen=True, slots=True)
class DraftCost:
    """One lattice, after NUM_NEW_TOKENS more of a prefix that was drafted for before."""

    prefix_cache: bool
    num_prefix_tokens: int
    num_draft_tokens: int
    num_runs: int
    min_ms: float
    median_ms: float


@dataclass(frozen=True, slots=True)
class StepOverhead:
    """Time of a step outside the two forwards, over several answers' means."""

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
    num_runs: int,
) -> list[DraftCost]:
    """Time drafting for prefixes of each length; prefix_cache says how the model was set up.

    Only with the cache is the beginning of a prefix drafted for beforehand.
    """
    rng = np.random.default_rng(0)
    costs = []
    for length in prefix_lengths:
        prefix = rng.integers(vocab_size, size=length - NUM_NEW_TOKENS, dtype=np.int32)
        tails = rng.integers(vocab_size, size=(num_runs + 1, NUM_NEW_TOKENS), dtype=np.int32)
        times = asyncio.run(_time_drafts(model, prefix, tails, prefix_cache))[1:]  # 1 to warm up
        costs.append(
            DraftCost(
                prefix_cache,
                length,
                NUM_DRAFT_TOKENS,
                num_runs,
                1000 * min(times),
                1000 * median(times),
            )
        )
    return costs


async def _time_drafts(
    model: LatticeModel, prefix: TokenIds, tails: TokenIds, is_known: bool
) -> list[float]:
    """Return the seconds of a draft for the prefix with each of the tails."""
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


def measure_step_overhead(
    system: System,
    tree_shape: TreeShape,
    num_draft_tokens: int,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
) -> StepOverhead:
    """Let one of our systems answer the prompts and look at what its steps cost."""
    system.answer(prompts[0], max_tokens)  # warm-up
    answers = [system.answer(prompt, max_tokens) for prompt in prompts]
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
    """Return the mean time of a step that is in neither model's forward."""
    assert answer.forward_seconds is not None
    seconds = sum(step.step_seconds for step in answer.steps) - answer.forward_seconds
    return 1000 * seconds / len(answer.steps)
