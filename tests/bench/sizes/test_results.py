"""What drafts gain, and costs, computed from times of calls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from diffuspec.bench.machine import describe_machine
from diffuspec.bench.sizes.calls import Kind, Timed
from diffuspec.bench.sizes.costs import costs_of
from diffuspec.bench.sizes.models import draw_target
from diffuspec.bench.sizes.results import Results, speed_ups
from diffuspec.bench.sizes.timing import Speeds


@pytest.fixture
def results(save_sizes: Callable[..., Path]) -> Results:
    target = draw_target(save_sizes("target"), 100, 2, None)
    machine = describe_machine(torch.device("cpu"), torch.float32)
    return Results(machine, Speeds(1e9, 1e9), target, None, refresh_every=10)


def timed(kind: Kind, requests: int, prefix: int, drafted: int, seconds: float) -> Timed:
    return Timed(kind, requests, prefix, drafted, seconds, seconds)


def test_a_pairs_step_has_its_share_of_refreshes(results: Results) -> None:
    results.rows = [
        timed("verify", 1, 8, 0, 0.020),
        timed("verify", 1, 8, 4, 0.022),
        timed("draft", 1, 8, 4, 0.006),
        timed("refresh", 1, 8, 4, 0.016),
    ]
    [found] = speed_ups(results)
    # a refresh adds 10 ms every 10 committed tokens
    assert found.step_seconds == pytest.approx((0.031, 0.033, 0.03499))
    assert found.ratios[0] == pytest.approx(3 * 0.020 / 0.031)
    results.refresh_every = None
    assert speed_ups(results)[0].step_seconds == pytest.approx((0.028,) * 3)


def test_costs_explain_the_times_that_they_are_computed_from(results: Results) -> None:
    def seconds(requests: int, prefix: int, rows: int) -> float:
        seen = 1e-5 + 1e-6 * rows
        return 0.02 + 1e-3 * rows * requests + 0.004 * (requests - 1) + requests * prefix * seen

    sizes = [(1, prefix, drafted) for prefix in (0, 100) for drafted in (0, 3, 7)]
    results.rows = [
        timed("verify", n, prefix, drafted, seconds(n, prefix, 1 + drafted))
        for n, prefix, drafted in [*sizes, (2, 50, 0), (2, 50, 3)]
    ]
    costs = costs_of(results).models["target"].verify
    assert costs is not None
    assert costs.rows.at(4) == pytest.approx(0.024)
    assert costs.row_context.value == pytest.approx(1e-6)
    assert costs.context.value == pytest.approx(1e-5)
    assert costs.request.value == pytest.approx(0.004)
