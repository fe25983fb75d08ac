"""What the coordinator takes by itself, over roles that answer at once."""

import pytest

from benchmarks.studies.own_cost import (
    NUM_SEQUENCES,
    POLICIES,
    own_cost_table,
    study_own_cost,
    time_steps,
)


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_time_in_roles_is_not_counted(policy, monkeypatch):
    clock = iter(range(10_000_000))
    monkeypatch.setattr("time.thread_time", lambda: next(clock))
    assert await time_steps(policy, 2, 20) < 1.5, "readings of the clock outside of both roles"


def test_every_policy_has_a_row_for_every_number_of_sequences():
    costs = study_own_cost(num_steps=4, num_runs=1)
    found = [(cost.policy, cost.num_sequences) for cost in costs]
    assert found == [(policy, number) for policy in POLICIES for number in NUM_SEQUENCES]
    assert len(own_cost_table(costs).cells) == len(costs)
