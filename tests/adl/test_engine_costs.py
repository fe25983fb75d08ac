"""What an engine's steps cost is learnt from its reports, on a machine that others use, too."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from diffuspec.adl.cost_model import CostModel

NAME = "pld"


def step_seconds(num_rows: int, num_requests: int) -> float:
    """Seconds of a step on a machine that runs nothing else."""
    return 0.02 + 0.0015 * num_rows + 0.003 * (num_requests - 1)


def slownesses(number: int, seed: int) -> Iterator[float]:
    """Yield the slowness of each step: others run in a quarter of the time, in bursts."""
    rng = random.Random(seed)
    for step in range(number):
        yield (3.0 if step // 12 % 4 == 0 else 1.0) * rng.uniform(0.8, 1.2)


@pytest.mark.parametrize("seed", range(4))
def test_no_step_seems_to_take_next_to_nothing_beside_other_programs(seed: int):
    costs, rng = CostModel([NAME], 0.0, same_speed_steps=8), random.Random(seed)
    for number in (8, 32, 2):
        for step, slowness in enumerate(slownesses(240, seed)):
            is_plain = step % 16 < 3
            num_rows = number if is_plain else number + rng.randint(1, 2 * number)
            seconds = slowness * step_seconds(num_rows, number)
            costs.observe_verification(num_rows, number, seconds, {}, is_plain=is_plain)
            if step > 48:
                assert 0.001 < costs.verify_seconds(1, 1) < 0.3
        expected = costs.verify_seconds(2 * number, number) / costs.verify_seconds(number, number)
        real = step_seconds(2 * number, number) / step_seconds(number, number)
        assert expected == pytest.approx(real, rel=0.35)


def test_what_a_request_costs_shows_when_their_number_changes():
    costs = CostModel([NAME], 0.0, same_speed_steps=8)
    for number in (1, 8):
        for step in range(60):
            num_rows = 8 + step % 6
            costs.observe_verification(num_rows, number, step_seconds(num_rows, number), {})
    assert costs.verification.request_seconds == pytest.approx(0.003, rel=0.35)
    assert costs.verify_seconds(10, 8) == pytest.approx(step_seconds(10, 8), rel=0.1)
