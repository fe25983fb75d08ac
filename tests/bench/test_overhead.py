"""Drafting cost by prefix length, with a drafter that only counts."""

from collections.abc import Sequence

import numpy as np

from diffuspec.bench.overhead import (
    NUM_DRAFT_TOKENS,
    NUM_NEW_TOKENS,
    DraftCost,
    measure_step_overheads,
    overhead_ms_per_step,
    sweep_draft_cost,
)
from diffuspec.bench.systems.answer import Answer, System
from diffuspec.core.params import TreeShape
from diffuspec.core.types import DraftRequest, Lattice, StepStats


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

    def close(self) -> None:
        pass


class SteadySystem:
    name = "steady"

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> Answer:
        """Each step takes 10 ms, and 1 ms for each prompt token more than the forwards."""
        steps = (StepStats(20, 20, 1, 2, search_seconds=0.002, step_seconds=0.010),) * 2
        forwards = 0.020 - 0.001 * len(prompt_ids) * 2
        return Answer((1, 2, 3, 4), 1.0, 2, steps, forwards)


def sweep(
    model: CountingModel, lengths: Sequence[int], *, prefix_cache: bool, runs_per_round: int
) -> list[DraftCost]:
    return sweep_draft_cost(
        model,
        lengths,
        prefix_cache=prefix_cache,
        vocab_size=9,
        num_rounds=2,
        runs_per_round=runs_per_round,
    )


def test_drafts_alternate_between_a_known_prefix_and_new_last_tokens() -> None:
    model = CountingModel()
    costs = sweep(model, (20, 50), prefix_cache=True, runs_per_round=3)
    assert [(cost.num_prefix_tokens, cost.num_runs) for cost in costs] == [(20, 6), (50, 6)]
    assert all(0 < cost.min_ms <= cost.median_ms for cost in costs)
    assert all(cost.prefix_cache for cost in costs)
    known, *drafted = model.prefixes[8], *model.prefixes[9:16:2]
    assert len(known) == 20 - NUM_NEW_TOKENS
    assert all(prefix[: len(known)] == known for prefix in drafted)
    assert len(set(drafted)) == 4
    assert len(model.released) == 4


def test_the_prefix_lengths_take_turns() -> None:
    model = CountingModel()
    sweep(model, (20, 50), prefix_cache=True, runs_per_round=1)
    short, long = [20 - NUM_NEW_TOKENS, 20] * 2, [50 - NUM_NEW_TOKENS, 50] * 2
    assert [len(prefix) for prefix in model.prefixes] == long + short + short + long


def test_without_the_cache_nothing_is_drafted_beforehand() -> None:
    model = CountingModel()
    sweep(model, (20,), prefix_cache=False, runs_per_round=1)
    assert [len(prefix) for prefix in model.prefixes] == [20] * 4


def test_overhead_is_what_the_forwards_leave() -> None:
    assert round(overhead_ms_per_step(SteadySystem().answer([1, 2], 4)), 6) == 2


def test_overheads_are_summed_up_over_prompts() -> None:
    prompts = [[1], [1] * 2, [1] * 6]
    (found,) = measure_step_overheads({"beams": SteadySystem()}, 20, prompts, 4, num_rounds=1)
    assert (found.tree_shape, found.num_draft_tokens, found.num_answers) == ("beams", 20, 3)
    assert (round(found.min_ms, 6), round(found.median_ms, 6)) == (1, 2)
    assert round(found.median_search_ms, 6) == 2


def test_every_system_answers_every_prompt_in_every_round() -> None:
    systems: dict[TreeShape, System] = {"path": SteadySystem(), "beams": SteadySystem()}
    found = measure_step_overheads(systems, 20, [[1], [1]], 4, num_rounds=3)
    assert [(one.tree_shape, one.num_answers) for one in found] == [("path", 6), ("beams", 6)]
