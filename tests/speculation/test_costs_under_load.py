"""Estimates stay near the truth for as long as a service runs, whatever its load."""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from statistics import fmean, median

import pytest

from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.curve import bucket_of

_STEPS = 100_000
_PROFILE = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 32), (4, 1), (4, 8), (4, 32))
_LOADS = (1, 2, 4, 8, 16, 32)


def true_seconds(num_rows: int, num_requests: int) -> float:
    """Seconds of a verification on a machine with a slowness of 1."""
    return 0.001 + 0.0003 * num_rows + 0.0005 * (num_requests - 1)


class Service:
    """Verifications with noise and hiccups, on a machine that others slow down for a while."""

    def __init__(self, seed: int, loads: tuple[int, ...], is_profiled: bool = True) -> None:
        self.costs = CostModel({"d": DraftCosts(Interference.assumed(1.0))})
        self.load = loads[0]
        self.slowness = 1.0
        self._rng = random.Random(seed)
        self._loads = loads
        for number, rows in _PROFILE if is_profiled else ():
            size = number * rows
            seconds = true_seconds(size, number)
            self.costs = self.costs.observe_verification(size, number, seconds, {})

    def step(self, step: int) -> tuple[int, float]:
        """Let the model observe one step; return its rows and its seconds."""
        rng = self._rng
        if step % 1000 == 0:
            self.load = rng.choice(self._loads)
        if step % 1700 == 700:
            self.slowness = math.exp(rng.uniform(-0.7, 0.7))
        is_plain = step % 256 < 3 or step // 3000 % 2 == 1
        drafted = 0 if is_plain else sum(rng.randrange(9) for _ in range(self.load))
        hiccup = 3.0 if rng.random() < 0.02 else 1.0
        noise = math.exp(rng.gauss(0.0, 0.15)) * hiccup
        rows = self.load + drafted
        seconds = self.slowness * true_seconds(rows, self.load) * noise
        # As the learner has it: of plain steps, each third in a row is measured.
        if not is_plain:
            self.costs = self.costs.observe_verification(rows, self.load, seconds, {})
        elif step % 3 == 2:
            self.costs = self.costs.observe_plain(self.load, seconds, seconds)
        return rows, seconds


@pytest.mark.parametrize(
    ("loads", "is_profiled"), [((8,), True), ((1,), True), (_LOADS, True), (_LOADS, False)]
)
def test_estimates_are_within_a_quarter_of_the_truth_after_any_number_of_steps(loads, is_profiled):
    service = Service(1, loads, is_profiled)
    errors = defaultdict[str, list[float]](list)
    for step in range(_STEPS):
        rows, _ = service.step(step)
        costs = service.costs
        if step > 1000:
            real = service.slowness * true_seconds(rows, service.load)
            errors["step"].append(abs(costs.verify_seconds(rows, service.load) / real - 1))
            plain = service.slowness * true_seconds(service.load, service.load)
            errors["plain"].append(abs(costs.plain_seconds(service.load) / plain - 1))
    assert {name: fmean(each) < 0.25 for name, each in errors.items()} == {
        "step": True,
        "plain": True,
    }


def test_an_estimate_stays_near_the_median_of_the_last_hundred_like_calls():
    service = Service(2, _LOADS)
    far = 0
    calls = defaultdict[tuple[int, int], deque[tuple[int, float]]](lambda: deque(maxlen=100))
    for step in range(_STEPS):
        rows, seconds = service.step(step)
        costs = service.costs
        alike = calls[bucket_of(rows), service.load]
        alike.append((rows, seconds / costs._slow_down.factor))
        if len(alike) == 100:
            typical = median(time for _, time in alike) * costs._slow_down.factor
            size = round(median(size for size, _ in alike))
            ratio = costs.verify_seconds(size, service.load) / typical
            far += not 0.5 < ratio < 2
    assert far < 0.01 * _STEPS


@pytest.mark.parametrize("beside", [1e-6, 0.01, 10.0])
def test_interference_is_bounded_whatever_is_measured(beside):
    interference, rng = Interference.assumed(0.5), random.Random(0)
    for _ in range(_STEPS // 10):
        interference = interference.observe(
            rng.lognormvariate(-4, 2), rng.lognormvariate(-4, 2), beside
        )
        assert 0.0 <= interference.value <= 1.0


def test_no_time_is_so_short_or_long_that_an_estimate_is_nothing_or_not_finite():
    costs, rng = Service(3, _LOADS, is_profiled=False).costs, random.Random(3)
    for step in range(_STEPS // 10):
        load = rng.choice(_LOADS)
        seconds = rng.choice([0.0, 1e-9, 0.01, 1e6])
        if step % 2:
            costs = costs.observe_verification(load, load, seconds, {})
        else:
            costs = costs.observe_plain(load, seconds, seconds)
        assert all(
            0 < estimate < math.inf
            for estimate in (costs.plain_seconds(load), costs.verify_seconds(3 * load, load))
        )
