"""The time of a step by part, in one process and with roles that sleep while the other works."""

import pytest
from rich.console import Console

from benchmarks.studies.rested import rested
from benchmarks.studies.step_cost import cost_table, step_cost
from diffuspec.core.params import SamplingParams
from diffuspec.core.types import StepStats
from diffuspec.engine.engine import Engine
from tests.support.engines import short_tiny_config


def steps(*more_ms: float) -> list[StepStats]:
    """Steps of 16 ms, of which 1 between processes and 2 of the coordinator's own."""
    return [
        StepStats(
            num_draft_tokens=20,
            num_tree_nodes=20,
            num_accepted_tokens=5,
            num_committed_tokens=6,
            draft_seconds=0.004,
            search_seconds=0.001,
            verify_seconds=(8 + more) / 1e3,
            transport_seconds=0.001,
            step_seconds=(16 + more) / 1e3,
        )
        for more in more_ms
    ]


def test_parts_are_medians_and_everything_else_is_the_rest_of_the_step():
    cost = step_cost(steps(0, 1, 50))
    assert cost == pytest.approx(
        {
            "drafter": 4,
            "path search": 1,
            "target": 9,
            "between processes": 1,
            "everything else": 2,
            "step": 17,
        }
    )


def test_sleep_is_left_out_of_a_rested_step():
    cost = step_cost(steps(0), is_rested=True)
    assert (cost["between processes"], cost["step"]) == (0, pytest.approx(15))


def test_costs_are_compared_with_the_first():
    console = Console(width=100)
    with console.capture() as captured:
        console.print(cost_table({"here": step_cost(steps(0)), "there": step_cost(steps(2))}))
    lines = [line.split() for line in captured.get().splitlines()]
    assert ["target", "8.00", "10.00", "+2.00"] in lines
    assert ["step", "16.00", "18.00", "+2.00"] in lines


SAMPLING = SamplingParams(max_tokens=12)


async def test_rested_roles_give_the_same_answer_and_sleep_while_the_other_works():
    with Engine.from_config(short_tiny_config()) as engine:
        async with rested(engine) as resting:
            answer = await resting.complete("Once upon a time", SAMPLING)
        expected = await engine.complete("Once upon a time", SAMPLING)
        await engine.stop()
    assert answer.token_ids == expected.token_ids
    work = [step.draft_seconds + step.verify_seconds for step in answer.steps[1:]]
    slept = [step.transport_seconds for step in answer.steps[1:]]
    assert all(seconds > 0 for seconds in slept)
    assert sum(slept) > 0.5 * sum(work)
