"""The cost model: curves, requests of a batch, interference, and what is learnt of each."""

from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.speculation.call_costs import CallCosts, Interference
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.curve import CostCurve

POINTS = st.lists(
    st.tuples(st.integers(1, 2000), st.floats(1e-6, 10, allow_nan=False)), min_size=1, max_size=20
)


def curve_of(*points: tuple[int, float], times: int = 50) -> CostCurve:
    curve = CostCurve()
    for _ in range(times):
        for size, seconds in points:
            curve, _ = curve.observe(size, seconds)
    return curve


def cost_model_of(*names: str, interference: float = 0.0) -> CostModel:
    mine = DraftCosts(Interference.assumed(interference))
    return CostModel(dict.fromkeys(names, mine))


def test_a_new_curve_is_unknown_and_zero():
    curve = CostCurve()
    assert not curve.is_known
    assert [curve.at(size) for size in (0, 1, 10)] == [0, 0, 0]


@settings(max_examples=50)
@given(POINTS, st.integers(0, 400))
def test_more_tokens_never_cost_less_and_every_size_costs_something(points, max_tokens):
    curve = curve_of(*points, times=1)
    costs = [curve.at(size) for size in range(max_tokens + 1)]
    assert min(costs) > 0 and all(a <= b + 1e-12 for a, b in pairwise(costs))


def test_between_two_sizes_the_curve_is_a_straight_line():
    curve = curve_of((10, 1.0), (20, 2.0))
    assert [curve.at(size) for size in (10, 15, 20)] == pytest.approx([1.0, 1.5, 2.0])


def test_beyond_the_measured_sizes_the_curve_keeps_its_slope():
    curve = curve_of((10, 1.0), (20, 2.0))
    assert [curve.at(size) for size in (5, 30, 100)] == pytest.approx([0.5, 3.0, 10.0])


def test_before_the_measured_sizes_the_curve_ends_at_a_tenth_of_the_first():
    curve = curve_of((10, 1.0), (20, 3.0))
    assert [curve.at(size) for size in (0, 5, 6, 8)] == pytest.approx([0.1, 0.1, 0.2, 0.6])


def test_beyond_the_measured_sizes_a_flat_curve_rises_half_as_fast_as_in_proportion():
    curve = curve_of((10, 1.0), (20, 1.0))
    assert [curve.at(size) for size in (15, 20, 40, 100)] == pytest.approx([1.0, 1.0, 1.5, 3.0])


def test_a_size_measured_cheaper_than_a_smaller_one_costs_the_mean_of_both():
    curve = curve_of((10, 2.0), (20, 1.0))
    assert curve.at(10) == curve.at(20) == pytest.approx(1.5)


def test_a_size_measured_often_outweighs_a_smaller_one_measured_once():
    curve = curve_of((20, 1.0))
    curve, _ = curve.observe(10, 3.0)
    assert 1.0 < curve.at(10) == curve.at(20) < 1.1


def test_one_measured_size_gives_a_cost_to_its_neighbours():
    curve = curve_of((16, 1.0))
    few, same, many = curve.at(1), curve.at(16), curve.at(32)
    assert same == pytest.approx(1.0)
    assert 0.5 < few < same < many < 2


def test_the_curve_follows_the_mean():
    curve = CostCurve()
    for seconds in [1.0, 2.0, 3.0] * 30:
        curve, _ = curve.observe(8, seconds)
    assert curve.at(8) == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize("position", [0, 1, 20])
def test_an_outlier_has_little_effect_and_fades(position):
    curve = CostCurve()
    for number in range(40):
        curve, _ = curve.observe(8, 1.0 if number == position else 0.01)
        if number == position + 4:
            assert curve.at(8) < 0.03
    assert curve.at(8) == pytest.approx(0.01, rel=0.3)


def test_a_first_measurement_of_zero_seconds_fades():
    curve = CostCurve()
    for seconds in [0.0, *[1.0] * 60]:
        curve, _ = curve.observe(8, seconds)
    assert curve.at(8) == pytest.approx(1.0, rel=0.1)


# ---- calls of many requests


def test_what_rows_do_not_explain_is_the_cost_of_the_requests_of_a_batch():
    costs = CallCosts()
    for size in (1, 8, 64):
        for _ in range(30):
            costs, _ = costs.observe(size, 1, 0.01 + 0.001 * size, 1.0, reads=False)
    for _ in range(100):
        costs, _ = costs.observe(8, 5, 0.01 + 0.008 + 4 * 0.002, 1.0, reads=False)
    assert costs._term.seconds == pytest.approx(0.002, rel=0.05)
    assert costs.seconds_of([8], [5])[0] == pytest.approx(0.026, rel=0.05)
    assert costs.seconds_of([8], [1])[0] == pytest.approx(0.018, rel=0.05)


def test_batches_alone_give_a_curve_and_no_term_for_their_requests():
    costs = CallCosts()
    costs, _ = costs.observe(64, 8, 0.1, 1.0, reads=False)
    assert costs.seconds_of([64], [8])[0] == pytest.approx(0.1) and costs._term.seconds == 0


# ---- verifications and the drafts beside them


def model(interference: float = 1.0) -> CostModel:
    costs = cost_model_of("one", "two", interference=interference)
    for _ in range(60):
        costs = costs.observe_verification(20, 1, 0.03, {})
    return costs


@pytest.mark.parametrize("interference", [0.0, 0.4, 1.0])
def test_interference_is_the_slowdown_of_verifications_by_draft_calls(interference):
    costs = model(interference=0.5)
    beside = 0.02
    seconds = 0.03 + beside * interference / (1 + interference)
    for number in range(800):
        if number % 2:
            costs = costs.observe_verification(20, 1, seconds, {"one": beside})
        else:
            costs = costs.observe_verification(20, 1, 0.03, {})
    assert costs.drafters["one"].interference.value == pytest.approx(interference, abs=0.1)
    assert costs.drafters["two"].interference.value == pytest.approx(0.5)
    assert costs.verify_seconds(20, 1) == pytest.approx(0.03, rel=0.05)


def test_verifications_that_are_never_alone_are_measured_too():
    costs = model()
    for _ in range(400):
        costs = costs.observe_verification(20, 1, 0.09, {"one": 0.02})
    assert costs.verify_seconds(20, 1) == pytest.approx(0.08, rel=0.02)


def test_verifications_that_vary_as_much_with_drafting_beside_them_are_not_slowed_down_by_it():
    interference = Interference.assumed(0.0)
    for number in range(200):
        interference = interference.observe(
            0.04 + (0.004 if number % 2 else -0.004), 0.04, beside=0.02
        )
    assert interference.value < 0.02


def test_drafters_beside_one_verification_share_the_blame_for_it():
    costs = model(interference=0.0)
    for _ in range(400):
        costs = costs.observe_verification(20, 1, 0.04, {"one": 0.02, "two": 0.02})
    lost = [costs.drafters[name].interference.lost_seconds(0.02) for name in ("one", "two")]
    assert lost[0] == pytest.approx(lost[1], rel=0.1)
    assert sum(lost) + costs.verify_seconds(20, 1) == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("one", "other", "interference", "ends"),
    [
        (1.0, 2.0, 0.0, (1.0, 2.0)),
        (1.0, 2.0, 1.0, (2.0, 3.0)),
        (2.0, 1.0, 1.0, (3.0, 2.0)),
        (1.0, 1.0, 0.5, (1.5, 1.5)),
    ],
)
def test_calls_side_by_side_slow_each_other_down_until_the_shorter_ends(
    one, other, interference, ends
):
    assert Interference.assumed(interference).ends(one, other) == pytest.approx(ends)


@pytest.mark.parametrize("interference", [0.0, 0.5, 1.0])
def test_what_a_call_loses_beside_another_is_what_the_other_slows_it_down_by(interference):
    found, alone = Interference.assumed(interference), 0.02
    ends_at, _ = found.ends(alone, 1.0)
    assert ends_at - found.lost_seconds(ends_at) == pytest.approx(alone)


# ---- drafting


def test_what_drafts_compute_again_costs_each_its_share():
    costs = DraftCosts(Interference.assumed(0.0))
    assert costs.observe(16, 1, 0, 0.012, num_refreshed=512) == costs  # the first call
    for number in range(200):
        is_refresh = number % 5 == 4
        seconds = 0.004 + 0.010 * is_refresh
        costs = costs.observe(16, 1, 0, seconds, num_refreshed=512 * is_refresh)
    assert costs.seconds(16, 1) == pytest.approx(0.006, rel=0.1)
    assert costs.seconds(16, 2) - costs.seconds(16, 1) == pytest.approx(0.002, rel=0.3)
    assert costs.reading_seconds(1000) == pytest.approx(
        DraftCosts(Interference.assumed(0.0)).observe(16, 1, 0, 0.004).reading_seconds(1000)
    )


def test_prompts_that_a_draft_call_reads_have_a_price_of_their_own():
    costs = DraftCosts(Interference.assumed(1.0))
    for size in (1, 100):
        costs = costs.observe(size, 1, 0, 0.01 + 0.001 * size)
    assert costs.seconds(8, 1, 50) == pytest.approx(0.01 + 0.058), "as a position, at first"
    for num_unread, seconds in ((50, 0.01), (1000, 0.5)) * 30:
        costs = costs.observe(8, 1, num_unread, 0.018 + seconds)
    assert costs.seconds(8, 1) == pytest.approx(0.018)
    assert costs.seconds(8, 1, 50) == pytest.approx(0.028)
    assert costs.seconds(8, 1, 1000) == pytest.approx(0.518)


# ---- a machine that gets slower and faster


def machine_that_sped_up(times: float) -> CostModel:
    """Return the costs of one that was profiled first, and then decoded plainly, faster."""
    costs = cost_model_of("one")
    for num_rows in (1, 9, 33):
        costs = costs.observe_verification(num_rows, 1, 0.01 + 0.0005 * num_rows, {})
    costs = costs.observe_draft("one", 8, 1, 0, 0.03)
    for _ in range(100):
        costs = costs.observe_plain(1, 0.0105 / times, 0.0105 / times)
    return costs


@pytest.mark.parametrize("times", [0.25, 1.0, 4.0])
def test_costs_that_are_not_measured_follow_plain_decoding(times):
    costs = machine_that_sped_up(times)
    assert costs.verify_seconds(33, 1) == pytest.approx(0.0265 / times, rel=0.3)
    assert costs.drafters["one"].seconds(8, 1) == pytest.approx(0.03 / times, rel=0.3)


def test_steps_with_drafts_say_nothing_of_plain_decoding():
    costs = machine_that_sped_up(1.0)
    for _ in range(100):
        costs = costs.observe_verification(9, 1, 0.1, {"one": 0.0})
        costs = costs.observe_draft("one", 8, 1, 0, 0.1)
    assert costs.verify_seconds(1, 1) < 0.03 and costs.plain_seconds(1) < 0.03


def test_plain_steps_of_more_requests_than_ever_before_tell_of_their_costs_not_of_the_machine():
    costs = cost_model_of("one")
    for number in (1, 8, 32, 1):
        for _ in range(20):
            costs = costs.observe_plain(number, 0.03 + 0.003 * number, 0.03 + 0.003 * number)
    found = [costs.verify_seconds(number, number) for number in (1, 8, 16, 32)]
    assert found == pytest.approx([0.033, 0.054, 0.078, 0.126], rel=0.05)


def test_a_plain_step_stands_for_the_drafted_ones_since_the_latest():
    costs = machine_that_sped_up(1.0)
    for _ in range(50):
        costs = costs.observe_verification(9, 1, 0.0145, {})
    for _ in range(2):
        costs = costs.observe_plain(1, 3 * 0.0105, 3 * 0.0105)
    assert costs.verify_seconds(33, 1) == pytest.approx(3 * 0.0265, rel=0.15)


# ---- plain decoding


def test_plain_decoding_costs_a_verification_until_it_is_measured():
    costs = model().observe_plain(64, 0.05, 0.05)
    expected = costs.verify_seconds(1, 1)
    assert costs.plain_seconds(1) == expected, "64 requests say nothing of one"
    for _ in range(60):
        costs = costs.observe_plain(1, 0.03, 0.07)
    assert costs.plain_seconds(1) == pytest.approx(0.07, rel=0.02)


def test_plain_decoding_never_costs_nothing():
    assert cost_model_of("one").plain_seconds(4) > 0


def test_one_slow_batch_hardly_changes_what_a_request_in_a_batch_costs():
    costs = CallCosts()
    for _ in range(60):
        costs, _ = costs.observe(8, 1, 0.01, 1.0, reads=False)
        costs, _ = costs.observe(8, 8, 0.01, 1.0, reads=False)
    costs, _ = costs.observe(8, 8, 10.0, 1.0, reads=False)
    assert costs.seconds_of([8], [8])[0] < 0.015


def test_a_batch_that_reads_prompts_says_nothing_of_what_a_request_costs():
    costs = CallCosts()
    for size in (1, 4, 900):
        costs, _ = costs.observe(size, 1, 0.01 + 0.0001 * size, 1.0, reads=False)
    costs, _ = costs.observe(4, 4, 0.0164, 1.0, reads=False)
    before = costs._term.seconds
    costs, _ = costs.observe(900, 16, 0.03, 1.0, reads=True)
    assert costs._term.seconds == before > 0


def test_sizes_beyond_the_usual_ones_are_no_outliers_of_each_other():
    curve = CostCurve()
    for _ in range(100):
        curve, _ = curve.observe(1, 0.01)
        curve, _ = curve.observe(2000, 1.0)
        curve, _ = curve.observe(20000, 10.0)
    assert [curve.at(2000), curve.at(20000)] == pytest.approx([1.0, 10.0], rel=0.2)


def test_one_prompt_that_was_read_says_what_one_of_twice_its_size_takes():
    curve = CostCurve()
    curve, _ = curve.observe(2000, 1.0)
    assert curve.at(4000) == pytest.approx(2.0, rel=0.1)


def test_rows_are_as_many_as_a_step_has_time_for_and_never_few():
    costs = cost_model_of("one")
    assert costs.num_rows_within(0.25, 4096) == 4096, "before anything is measured"
    for size in (1, 1024):
        costs = costs.observe_verification(size, 1, 0.01 + 0.001 * size, {})
    assert costs.num_rows_within(0.25, 4096) == pytest.approx(251, abs=2)
    assert costs.num_rows_within(10.0, 512) == 512
    assert costs.num_rows_within(1e-6, 4096) == 64
