"""Drafting cost by prefix length, with a drafter that only counts."""

from collections.abc import Sequence

import numpy as np

from diffuspec.bench.overhead import (
    NUM_DRAFT_TOKENS,
    NUM_NEW_TOKENS,
    measure_step_overhead,
    overhead_ms_per_step,
    sweep_draft_cost,
)
from diffuspec.bench.systems import Answer
from diffuspec.types import DraftRequest, Lattice, StepStats


class CountingModel:
    def __init__(self) -> None:
        self.prefixes: list[tuple[int, ...]] = []
        self.released: list[str] = []

    async def lattices(self, requests: Sequence[DraftRequest]) -> list[Lattice]:
        (request,) = requests
        assert request.num_draft_tokens == NUM_DRAFT_TOKENS
        self.prefixes.append(tuple(request.prefix.tolist()))
        one = np.ones(1, np.int32)
        return [Lattice(one[:, None], np.zeros((1, 1), np.float32), one, 0)]

    async def release(self, request_id: str) -> None:
        self.released.append(request_id)


class SteadySystem:
    name = "steady"

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        """Each step takes 10 ms, and 1 ms for each prompt token more than the forwards."""
        steps = (StepStats(20, 20, 1, 2, search_seconds=0.002, step_seconds=0.010),) * 2
        forwards = 0.020 - 0.001 * len(prompt_ids) * 2
        return Answer((1, 2, 3, 4), 1.0, 2, steps, forwards)


def test_drafts_alternate_between_a_known_prefix_and_new_last_tokens() -> None:
    model = CountingModel()
    costs = sweep_draft_cost(model, (20, 50), prefix_cache=True, vocab_size=9, num_runs=3)
    assert [(cost.num_prefix_tokens, cost.num_runs) for cost in costs] == [(20, 3), (50, 3)]
    assert all(0 < cost.min_ms <= cost.median_ms for cost in costs)
    assert all(cost.prefix_cache for cost in costs)
    lengths = [len(prefix) for prefix in model.prefixes]
    assert lengths == [20 - NUM_NEW_TOKENS, 20] * 4 + [50 - NUM_NEW_TOKENS, 50] * 4
    known, *drafted = model.prefixes[0], *model.prefixes[1:8:2]
    assert all(prefix[: len(known)] == known for prefix in drafted)
    assert len(set(drafted)) == 4
    assert len(model.released) == 2


def test_without_the_cache_nothing_is_drafted_beforehand() -> None:
    model = CountingModel()
    sweep_draft_cost(model, (20,), prefix_cache=False, vocab_size=9, num_runs=3)
    assert [len(prefix) for prefix in model.prefixes] == [20] * 4


def test_overhead_is_what_the_forwards_leave() -> None:
    assert round(overhead_ms_per_step(SteadySystem().answer([1, 2], 4)), 6) == 2


def test_overheads_are_summed_up_over_prompts() -> None:
    found = measure_step_overhead(SteadySystem(), "beams", 20, [[1], [1] * 2, [1] * 6], 4)
    assert (found.tree_shape, found.num_draft_tokens, found.num_answers) == ("beams", 20, 3)
    assert (round(found.min_ms, 6), round(found.median_ms, 6)) == (1, 2)
    assert round(found.median_search_ms, 6) == 2
