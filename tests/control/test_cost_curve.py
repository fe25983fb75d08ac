from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.control.cost_curve import CostCurve

POINTS = st.lists(
    st.tuples(st.integers(1, 2000), st.floats(1e-6, 10, allow_nan=False)), min_size=1, max_size=20
)


def curve_of(*points: tuple[int, float], times: int = 50) -> CostCurve:
    curve = CostCurve()
    for _ in range(times):
        for size, seconds in points:
            curve.observe(size, seconds)
    return curve


def test_a_new_curve_is_unknown_and_zero():
    curve = CostCurve()
    assert not curve.is_known
    assert not any(curve.up_to(10))
    assert curve.at(10) == 0


@settings(max_examples=50)
@given(POINTS, st.integers(0, 400))
def test_more_tokens_never_cost_less_and_every_size_costs_something(points, max_tokens):
    table = curve_of(*points, times=1).up_to(max_tokens)
    assert len(table) > max_tokens
    assert min(table) > 0 and all(a <= b + 1e-12 for a, b in pairwise(table))


@settings(max_examples=50)
@given(POINTS, st.lists(st.integers(0, 4000), min_size=1))
def test_a_size_costs_the_same_whatever_was_asked_before(points, sizes):
    asked = curve_of(*points, times=1)
    costs = [asked.at(size) for size in sizes]
    assert costs == pytest.approx([curve_of(*points, times=1).at(size) for size in sizes])
    assert costs == pytest.approx([asked.up_to(max(sizes))[size] for size in sizes])


def test_between_two_sizes_the_curve_is_a_straight_line():
    curve = curve_of((10, 1.0), (20, 2.0))
    assert [curve.at(size) for size in (10, 15, 20)] == pytest.approx([1.0, 1.5, 2.0])


def test_beyond_the_measured_sizes_the_curve_keeps_its_slope():
    curve = curve_of((10, 1.0), (20, 2.0))
    assert [curve.at(size) for size in (5, 30, 100)] == pytest.approx([0.5, 3.0, 10.0])


def test_a_size_measured_cheaper_than_a_smaller_one_costs_the_same():
    curve = curve_of((10, 2.0), (20, 1.0))
    assert curve.at(10) == curve.at(20) == pytest.approx(2.0)


def test_one_measured_size_gives_a_cost_to_its_neighbours():
    curve = curve_of((16, 1.0))
    few, same, many = curve.at(1), curve.at(16), curve.at(32)
    assert same == pytest.approx(1.0)
    assert 0.5 < few < same < many < 2


def test_the_curve_follows_the_mean():
    curve = CostCurve()
    for seconds in [1.0, 2.0, 3.0] * 30:
        curve.observe(8, seconds)
    assert curve.at(8) == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("position", [0, 1, 20])
def test_an_outlier_has_little_effect_and_fades(position):
    curve = CostCurve()
    for number in range(40):
        curve.observe(8, 1.0 if number == position else 0.01)
        if number == position + 4:
            assert curve.at(8) < 0.03
    assert curve.at(8) == pytest.approx(0.01, rel=0.3)


def test_a_first_measurement_of_zero_seconds_fades():
    curve = CostCurve()
    for seconds in [0.0, *[1.0] * 60]:
        curve.observe(8, seconds)
    assert curve.at(8) == pytest.approx(1.0, rel=0.1)
