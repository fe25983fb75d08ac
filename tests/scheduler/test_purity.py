"""The schedule changes nothing: one plan of a hundred is checked in whole simulated runs."""

from __future__ import annotations

import copy
from itertools import count

import pytest

from benchmarks.studies.virtual_time_cells import DEFAULT, Cell, measure
from diffuspec.scheduler import loop as loop_module
from diffuspec.scheduler.schedule import schedule
from diffuspec.speculation.values import Plan, Snapshot


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "cell", [Cell("own_gpu", "greedy_mixed", 4), Cell("two_cores", "hard_then_easy", 8)], ids=str
)
def test_the_same_state_gives_the_same_plan_and_is_left_as_it_was(cell, monkeypatch):
    numbers, num_checked = count(), 0

    def checked(snapshot: Snapshot) -> Plan:
        nonlocal num_checked
        if next(numbers) % 100:
            return schedule(snapshot)
        num_checked += 1
        before = copy.deepcopy(snapshot)
        plan = schedule(snapshot)
        assert snapshot == before and schedule(before) == plan
        return plan

    monkeypatch.setattr(loop_module, "schedule", checked)
    [row] = measure(cell, [DEFAULT])
    assert num_checked > 5 and row.tokens_per_second > 0
