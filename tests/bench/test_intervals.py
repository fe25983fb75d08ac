"""Confidence intervals of figures that are known."""

import pytest

from diffuspec.bench.intervals import QuestionCost, bootstrap


def test_questions_that_all_say_the_same_leave_no_doubt() -> None:
    own = [QuestionCost(12, 1.0, 3)] * 5
    baseline = [QuestionCost(12, 2.0, 12)] * 5
    found = bootstrap(own, baseline)
    assert found.speedup == found.spec_bench_speedup == pytest.approx((2, 2))
    assert found.mean_acceptance_length == pytest.approx((4, 4))


def test_a_question_that_is_slow_for_both_does_not_widen_the_ratio() -> None:
    baseline = [QuestionCost(10, seconds, 10) for seconds in (1.0, 2.0, 8.0, 30.0)]
    own = [QuestionCost(10, cost.seconds / 2, 5) for cost in baseline]
    assert bootstrap(own, baseline).speedup == pytest.approx((2, 2))


def test_questions_that_differ_give_an_interval_around_the_mean() -> None:
    baseline = [QuestionCost(10, 10.0, 10)] * 40
    own = [QuestionCost(10, 10.0 if i % 2 else 5.0, 5) for i in range(40)]
    low, high = bootstrap(own, baseline).speedup
    assert 1.2 < low < 40 / 30 < high < 1.5
    assert bootstrap(own, baseline) == bootstrap(own, baseline)


def test_nothing_measured_is_no_division_by_zero() -> None:
    nothing = [QuestionCost(0, 0.0, 0)]
    assert bootstrap(nothing, nothing).speedup == (0, 0)
