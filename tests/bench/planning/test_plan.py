"""Plans: what must hold whatever the costs are."""

from __future__ import annotations

import math
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from actors.settings import parse_pipeline
from diffuspec.bench.planning import plan
from diffuspec.bench.planning.acceptance import typed_regime
from diffuspec.bench.planning.costs import CallCosts, CostedMachine, Curve, Figure
from diffuspec.bench.planning.placements import (
    Hardware,
    Models,
    deployment,
    find_models,
    make_placements,
)
from diffuspec.bench.planning.plan import (
    APART,
    OFF,
    SERVED,
    SHARED,
    Arrival,
    Load,
    Placement,
    Plan,
    Point,
    Traffic,
    make_plan,
    needed_acceptance,
    simulate,
)
from diffuspec.bench.planning.plan_report import PlanReport
from diffuspec.core.errors import ConfigError
from diffuspec.pairs import parse_config

H200 = Hardware("h200")


@pytest.fixture(autouse=True)
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_NUM_REQUESTS", "_NUM_PLAIN", "_NUM_AT_RATE"):
        monkeypatch.setattr(plan, name, 16)


class Here(Executor):
    """Calls in this process, at once."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def traffic(acceptance: float) -> Traffic:
    regime = typed_regime(acceptance)
    return Traffic(replace(regime, prompt_tokens=(20, 60), answer_tokens=(20, 60)))


def calls(scale: float, base: float, row: float) -> CallCosts:
    points = ((1.0, scale * base), (64.0, scale * (base + 63 * row)))
    none = Figure(value=0.0, origin="fitted")
    curve = Curve(points=points, origin="fitted")
    return CallCosts(rows=curve, request=none, context=none, row_context=none)


def placement(num_drafters: int, scale: float = 1.0, overlap: bool = True) -> Placement:
    target, drafter = calls(scale, 0.02, 1e-5), calls(scale, 0.009, 1e-5)
    machine = CostedMachine(target, drafter, num_drafters=num_drafters, overlap=overlap)
    return Placement(APART, machine, 1 + num_drafters, 32)


def off(scale: float = 1.0) -> Placement:
    return Placement(OFF, CostedMachine(calls(scale, 0.02, 1e-5), None), 1, 32, has_drafts=False)


@cache  # several tests share a point
def point(num_drafters: int, acceptance: float, at_a_time: int) -> Point:
    one = placement(num_drafters) if num_drafters else off()
    small = traffic(acceptance)
    return simulate(one, small, Load(at_a_time))


@pytest.mark.no_cover
def test_a_further_drafter_does_not_slow_requests_down():
    rates = [point(count, 4.0, 8).tokens_per_second for count in (0, 1, 2)]
    assert rates[1] > 1.2 * rates[0]
    assert rates[2] > 0.97 * rates[1]


@pytest.mark.no_cover
@pytest.mark.parametrize("at_a_time", [1, 8])
def test_drafts_that_are_never_accepted_never_beat_none(at_a_time):
    drafted, plain = point(1, 1.0, at_a_time), point(0, 1.0, at_a_time)
    assert drafted.acceptance_length == 1
    assert drafted.tokens_per_second <= 1.001 * plain.tokens_per_second


@pytest.mark.no_cover
def test_engines_of_another_make_gain_from_a_draft_server_and_share_it():
    def rate(num_engines: int, acceptance: float) -> float:
        own = Placement(SERVED, placement(1).machine, 2, 32, num_engines=num_engines)
        return simulate(own, traffic(acceptance), Load(4)).tokens_per_second

    alone, shared = rate(1, 4.0), rate(3, 4.0)
    assert alone > 1.2 * point(0, 4.0, 4).tokens_per_second
    assert alone * 1.03 > shared > 0.97 * point(0, 4.0, 4).tokens_per_second
    assert rate(1, 1.0) < 1.001 * point(0, 1.0, 4).tokens_per_second


def test_costs_scale():
    one, twice = (
        simulate(placement(1, scale, overlap=False), traffic(4.0), Load(2)) for scale in (1.0, 2.0)
    )
    assert one.tokens_per_second == pytest.approx(2 * twice.tokens_per_second, rel=0.05)
    assert one.target_busy == pytest.approx(twice.target_busy, rel=0.05)


def test_requests_of_a_trace_come_at_its_times():
    trace = tuple(Arrival(at, 30, 10) for at in (0.0, 5.0, 10.0))
    small = replace(traffic(1.0), trace=trace)
    done = simulate(off(), small, Load())
    assert done.num_requests == 3
    assert done.tokens_per_second == pytest.approx(30 / 10.2, rel=0.02)
    assert small.mean_tokens == (30, 10)


def test_drafts_need_more_acceptance_the_more_they_cost():
    cheap, dear = placement(1, overlap=False), placement(1)
    assert needed_acceptance(dear.machine, 1, 0) == pytest.approx(1.0, abs=0.02), "all hits"
    least = needed_acceptance(cheap.machine, 1, 0)
    assert 1.4 < least < 1.6, "a draft takes 0.45 of a step"
    slow = CostedMachine(calls(1, 0.02, 0.02), calls(1, 0.009, 0.02))
    assert needed_acceptance(slow, 1, 0) == math.inf


@cache
def plan_of(rate: float | None = None) -> Plan:
    placements = (off(), replace(placement(1, overlap=False), name=SHARED, num_gpus=1))
    return make_plan(placements, traffic(4.0), (1, 4), rate, Here())


def test_a_plan_is_told_in_80_columns_and_one_sentence():
    report = PlanReport(plan_of(2.0), gpu_hour=3.5)
    assert report.advised().name == SHARED
    assert report.advice().startswith("For 2 requests/s: with the drafter shared on 1 x 1 GPU, ")
    assert "drafts pay up to (at a time): shared 4." in report.advice()
    for table in report.tables():
        assert len(table.to_rich(80)) == 1, table.title
    assert {row["load"] for row in report.to_json()["points"]} == {"1", "4", "2/s"}
    assert not list(report.warnings())


@pytest.mark.parametrize(("interval", "is_near"), [(10.0, False), (0.2, True)])
def test_a_trace_near_the_capacity_gets_a_band(interval: float, is_near: bool):
    trace = tuple(Arrival(interval * number, 30, 10) for number in range(20))
    found = make_plan((off(),), replace(traffic(1.0), trace=trace), (1,), None, Here())
    assert bool(found.bands) == is_near
    said = list(PlanReport(found).warnings())
    assert len(said) == is_near
    if is_near:
        [own] = [point.first_token_p50 for point in found.points if point.load == Load()]
        low, high = found.bands[OFF]
        assert low <= own <= high and low < high
        assert "with 5 % fewer and more requests" in said[0]


@pytest.mark.parametrize(
    ("gains", "most"),
    [((1.0, 1.0, 1.0), 0), ((2.0, 1.5, 1.2), 64), ((2.0, 1.03, 1.01), 22), ((2.0, 1.0, 2.0), 7)],
)
def test_drafts_stop_paying_between_two_simulated_loads(gains: tuple[float, ...], most: int):
    points = [
        replace(point(0, 1.0, 1), placement=name, load=Load(load), tokens_per_second=rate)
        for load, gain in zip((2, 8, 64), gains, strict=True)
        for name, rate in ((OFF, 100.0), (SHARED, 100.0 * gain))
    ]
    assert replace(plan_of(), points=tuple(points)).pays_up_to(SHARED) == most


def test_more_requests_need_more_pipelines():
    busy = replace(plan_of(), rate=50.0)
    assert busy.num_pipelines(OFF) > busy.num_pipelines(SHARED) > 1


def models(target: str = "Qwen2.5-32B", drafter: str | None = "Dream-7B") -> Models:
    return find_models(H200.read(), H200, target, drafter)


def test_placements_hold_the_requests_whose_pages_fit():
    sizes = {
        one.name: one.max_sequences
        for one in make_placements(H200.read(), H200, models(), 2000, 128)
    }
    assert sizes == {OFF: 114, SHARED: 70, APART: 114}


@pytest.mark.parametrize(
    ("target", "drafter", "named"),
    [
        ("Qwen2.5-72B", None, "give --target-gpus"),
        ("Dream-7B", None, "costs of Dream-7B as a drafter only"),
        ("Mistral-99B", None, "nothing is known of Mistral-99B"),
    ],
)
def test_what_cannot_be_known_is_refused(target, drafter, named):
    with pytest.raises(ConfigError, match=named):
        make_placements(H200.read(), H200, models(target, drafter), 2000, 128)


@pytest.mark.parametrize(
    ("name", "num_target_gpus"), [(OFF, 1), (SHARED, 1), (APART, 1), (OFF, 4), (APART, 4)]
)
def test_what_deploys_a_placement_is_accepted_by_the_loader(name, num_target_gpus):
    hardware = replace(H200, num_target_gpus=num_target_gpus)
    of = find_models(hardware.read(), hardware, "Qwen2.5-32B", "Dream-7B")
    placements = make_placements(hardware.read(), hardware, of, 2000, 16)
    [chosen] = [one for one in placements if one.name == name]
    data = deployment(chosen, hardware, of, None)
    if name == APART or num_target_gpus > 1:
        assert parse_pipeline(data).engine.target.max_sequences == 16
    else:
        assert parse_config(data).target.max_sequences == 16
