"""The study of overlap: its figures and its plot."""

from functools import cache

import numpy as np
import pytest

from diffuspec.bench.studies.overlap import (
    OVERLAPPED,
    SEQUENTIAL,
    OverlapRow,
    Pace,
    measure_overlap,
    plot_overlap,
)
from diffuspec.core.params import SpeculationParams
from tests.support.fakes import (
    FakeDrafter,
    FakeVerifier,
    Strategy,
    oracle_of,
    right_and_sure,
    sometimes_right,
)

PROMPTS = [np.array([n, 7, 9], np.int32) for n in range(4)]
FIXED = SpeculationParams(policy="fixed", num_draft_tokens=6)


@cache
def measure(
    speculation: SpeculationParams = FIXED,
    foresight: float = 0.7,
    pace: Pace | None = None,
    strategy: Strategy = right_and_sure,
) -> dict[tuple[str, object], OverlapRow]:
    verifier = FakeVerifier()
    drafter = FakeDrafter(oracle_of(verifier), strategy, hit_rate=foresight)
    rows = measure_overlap(verifier, drafter, PROMPTS, speculation=speculation, pace=pace or Pace())
    return {(row.system, row.num_outcomes): row for row in rows}


@pytest.mark.parametrize("foresight", [0.0, 0.4, 0.8, 1.0])
def test_overlap_reaches_the_speed_that_its_hit_rate_allows(foresight):
    rows = measure(foresight=foresight)
    for (system, fan_out), row in rows.items():
        assert row.share_of_ideal > 0.95, (system, fan_out)
    best = rows[OVERLAPPED, 4]
    ideal = 40 / (30 + 10 * (1 - best.hit_rate))
    assert best.speedup == pytest.approx(ideal, rel=0.05)
    assert best.hit_rate == pytest.approx(foresight, abs=0.15)


def test_more_outcomes_hit_more_often_and_leave_the_verifier_less_idle():
    rows = measure()
    rates = [rows[OVERLAPPED, fan_out].hit_rate for fan_out in (0, 1, 2, 4, 8)]
    assert rates == sorted(rates) and rates[0] == 0 and rates[-1] > 0.5
    assert rows[SEQUENTIAL, 0].verify_idle_share == pytest.approx(0.25, abs=0.01)
    assert rows[OVERLAPPED, 8].verify_idle_share < 0.15
    assert rows[OVERLAPPED, 8].num_wasted_draft_tokens > rows[OVERLAPPED, 1].num_wasted_draft_tokens


def test_without_outcomes_overlap_is_sequential_decoding():
    rows = measure()
    none, sequential = rows[OVERLAPPED, 0], rows[SEQUENTIAL, 0]
    assert none.speedup == pytest.approx(1.0, abs=0.01)
    assert none.mean_acceptance_length == sequential.mean_acceptance_length


@pytest.mark.parametrize("draft_seconds", [0.001, 0.029, 0.035, 0.1])
def test_auto_is_never_much_slower_than_the_best_number_of_outcomes(draft_seconds):
    rows = measure(pace=Pace(0.03, draft_seconds))
    best = max(row.tokens_per_second for row in rows.values())
    assert rows[OVERLAPPED, "auto"].tokens_per_second > 0.9 * best  # it learns meanwhile


def test_the_cost_aware_controller_gains_from_overlap_too():
    cost_aware = SpeculationParams(policy="cost_aware")
    rows = measure(cost_aware, foresight=0.9, strategy=sometimes_right)
    assert rows[OVERLAPPED, "auto"].speedup > 1.1
    assert rows[OVERLAPPED, 4].share_of_ideal > 0.9


def test_the_plot_is_a_picture(tmp_path):
    path = tmp_path / "overlap.png"
    plot_overlap(list(measure().values()), path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
