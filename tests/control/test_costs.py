import pytest

from diffuspec.control.costs import BusyTime, StepCosts
from diffuspec.control.learnt_costs import LearntCosts


def test_a_request_alone_has_no_other_load():
    costs = StepCosts()
    costs.observe_verify(20, 1, 5, 0.1)
    costs.observe_draft(16, 1, 0.1)
    assert (costs.other_rows, costs.other_tokens, costs.other_positions) == (0, 0, 0)


def test_the_load_of_the_rest_of_the_batch_is_averaged():
    costs = StepCosts()
    for _ in range(100):
        costs.observe_verify(40, 4, 12, 0.1)
        costs.observe_draft(32, 4, 0.1)
        costs.observe_overhead(0.01)
    assert costs.other_rows == pytest.approx(30, rel=0.01)
    assert costs.other_tokens == pytest.approx(9, rel=0.01)
    assert costs.other_positions == pytest.approx(24, rel=0.01)
    assert costs.overhead_seconds == pytest.approx(0.01, rel=0.01)


def test_no_more_than_a_usual_verification_counts_as_waiting_for_others():
    costs = StepCosts()
    for _ in range(100):
        costs.observe_verify(4, 4, 4, 0.02)
        costs.observe_overhead(0.5)  # beside a long prompt of another request
    assert costs.overhead_seconds == pytest.approx(0.02, rel=0.1)


def test_the_exposed_share_starts_at_one_and_follows_the_waits():
    costs = StepCosts()
    costs.observe_wait(16, 1.0)
    assert costs.exposed_share == 1, "what a draft costs is not known yet"
    costs.observe_draft(16, 1, 0.1)
    for _ in range(100):
        costs.observe_wait(16, 0.0)
        costs.observe_wait(16, 0.1)
    assert costs.exposed_share == pytest.approx(0.5, abs=0.06)
    for _ in range(100):
        costs.observe_wait(16, 100.0)
    assert costs.exposed_share == pytest.approx(3.0, rel=0.01)


def test_a_wait_for_a_batch_with_others_drafts_counts_as_one_draft():
    costs = StepCosts()
    for _ in range(100):
        costs.observe_draft(160, 16, 0.1)
        costs.observe_draft(10, 1, 0.01)
        costs.observe_draft(160, 16, 0.1)
    for _ in range(100):
        costs.observe_wait(round(160 - costs.other_positions), 0.1)
    assert costs.exposed_share == pytest.approx(1.0, abs=0.05)


def test_a_queue_at_the_drafter_does_not_make_drafting_for_all_dearer():
    costs = StepCosts()
    costs.observe_verify(8, 1, 3, 0.02)
    costs.observe_draft(8, 1, 0.01)
    before = costs.of_drafting([4, 8], [4, 8])
    for _ in range(100):
        costs.observe_wait(8, 0.05)
    assert costs.exposed_share > 2 and costs.of_drafting([4, 8], [4, 8]) == before


def test_plain_steps_of_many_requests_are_priced_by_batches_of_many_requests():
    costs = StepCosts()
    for _ in range(100):
        costs.observe_verify(26, 1, 8, 0.01)
    for _ in range(100):
        costs.observe_verify(80, 25, 60, 0.06)
        costs.observe_verify(25, 25, 25, 0.05)
    costs.observe_draft(50, 25, 0.01)
    costs.num_running = 25
    [price] = costs.of_drafting([2], [2])
    assert price == pytest.approx(0.07 / 0.05, rel=0.1)


def test_crowding_is_the_slowdown_of_verification_by_drafting():
    for crowding in (0.0, 0.4, 1.0):
        costs = StepCosts()
        for number in range(200):
            beside = 0.0 if number % 8 == 0 else 0.02
            costs.observe_verify(20, 1, 3, 0.03 + crowding * beside, beside)
        assert costs.crowding == pytest.approx(crowding, abs=0.02)
        assert costs.verify.at(20) == pytest.approx(0.03, rel=0.02)


def test_verifications_that_are_never_alone_are_measured_too():
    costs = StepCosts()
    for _ in range(200):
        costs.observe_verify(20, 1, 3, 0.03, 0.02)
    for _ in range(200):
        costs.observe_verify(20, 1, 3, 0.06, 0.02)
    assert costs.verify.at(20) > 0.03
    assert costs.num_crowded == 400


def test_pre_drafts_update_the_cost_but_not_the_load_of_the_batch():
    costs = StepCosts()
    costs.observe_pre_drafts(64, 0.2)
    assert costs.draft.at(64) == pytest.approx(0.2)
    assert costs.other_positions == 0


def test_overlapping_calls_count_once_as_busy_time():
    busy = BusyTime()
    busy.begin(1.0)
    busy.begin(2.0)
    assert busy.seconds(2.5) == pytest.approx(1.5)
    busy.end(3.0)
    busy.end(5.0)
    assert busy.seconds(9.0) == pytest.approx(4.0)
    busy.begin(9.0)
    assert busy.seconds(10.0) == pytest.approx(5.0)


def test_joining_halves_saves_time_if_many_rows_take_as_long_as_few():
    costs = StepCosts()
    for size in (8, 16):
        costs.observe_verify(size, 1, size, 0.03)
        costs.observe_draft(size, 1, 0.01)
    assert costs.saved_by_joining((8, 8), (8, 8)) == pytest.approx(0.06 - 0.04)


def test_joining_halves_saves_nothing_if_costs_grow_with_rows_and_roles_share_no_processor():
    costs = StepCosts()
    for size in (8, 16):
        costs.observe_verify(size, 1, size, 0.001 * size)
        costs.observe_draft(size, 1, 0.001 * size)
    assert costs.saved_by_joining((8, 8), (8, 8)) == pytest.approx(0.016 - 0.032)
    costs.crowding = 1.0
    assert costs.saved_by_joining((8, 8), (8, 8)) == pytest.approx(0, abs=1e-9)


def running(num_requests: int, crowding: float = 0.0) -> StepCosts:
    costs = StepCosts(crowding=crowding)
    costs.num_running = num_requests
    return costs


def test_costs_of_batches_do_not_count_once_one_request_has_been_alone_for_a_while():
    costs = StepCosts()
    for num_rows in (1, 9):
        costs.observe_verify(num_rows, 1, 1, 0.1)
    costs.observe_overhead(0.0)
    costs.num_running = 8
    for _ in range(50):
        costs.observe_verify(9, 8, 8, 0.9)
        costs.observe_overhead(0.9)
    assert costs.verify.at(9) > 0.8 and costs.overhead_seconds > 0.8
    costs.num_running = 1  # the others may be back at once
    assert costs.verify.at(9) > 0.8
    for _ in range(80):
        costs.observe_verify(1, 1, 1, 0.1)
        costs.num_running = 1
    assert costs.verify.at(9) == pytest.approx(0.1) and costs.overhead_seconds == 0
    costs.num_running = 8
    assert costs.verify.at(9) > 0.8


def test_a_trial_costs_a_plain_batch_the_waits_of_all_its_requests():
    costs = running(4, crowding=0.5)
    costs.observe_verify(4, 4, 4, 0.1)
    costs.observe_verify(12, 4, 12, 0.12)
    costs.observe_draft(8, 1, 0.04)
    costs.observe_reading(10, 8, 0.14)
    assert costs.reading_seconds == pytest.approx(0.01)
    drafting = 0.04 + 6 * 0.01
    assert costs.of_trial(8, 8, 6) == pytest.approx((drafting + 3 * (0.02 + drafting / 2)) / 0.1)


def test_a_trial_of_a_request_alone_costs_no_other():
    costs = StepCosts()
    costs.observe_verify(1, 1, 1, 0.1)
    assert costs.of_trial(8, 8, 100) == 0


def test_time_that_drafting_adds_to_a_verification_is_left_out():
    costs = StepCosts()
    assert costs.alone(8, 0.2, 0.1) == 0.2, "nothing else is known"
    costs.observe_verify(8, 1, 3, 0.1)
    assert costs.alone(8, 0.2, 0.1) == 0.1
    assert costs.alone(8, 0.2, 0.0) == 0.2


def test_requests_that_take_turns_wait_for_all_turns_of_the_busier_role():
    costs = StepCosts()
    costs.observe_verify(1, 1, 1, 0.1)
    costs.observe_verify(9, 1, 9, 0.1)
    costs.observe_draft(8, 1, 0.04)
    assert costs.of_drafting([8], [8]) == pytest.approx([1.4])
    costs.num_running = 2  # half of them drafts while the other half is verified
    assert costs.of_drafting([8], [8])[0] == pytest.approx(2.0, rel=0.05)


def test_requests_beyond_the_largest_plain_batch_cost_at_most_their_rows():
    costs = LearntCosts()
    for num_rows in (1, 4, 8, 64):
        costs.observe_verify(num_rows, 1, 1.0)
    costs.observe_verify(4, 4, 2.0)  # once, while something else was at work
    assert costs.plain_step(16) == pytest.approx(costs.plain_step(4))


def test_a_long_prompt_is_read_after_shorter_ones_that_it_would_delay():
    costs = StepCosts()
    assert costs.num_read_first([10, 1000]) == 2, "nothing is known yet"
    for num_rows in (1, 101):
        costs.observe_verify(num_rows, 1, 1, 1.0 + 0.01 * (num_rows - 1))
    assert costs.num_read_first([10, 390, 100]) == 3  # 390 tokens take 3.9 s, one row 1 s
    assert costs.num_read_first([10, 100, 410, 500]) == 2


def test_rows_beside_prompts_take_no_longer_than_a_verification_of_one_row():
    costs = running(9)
    for num_rows in (1, 101):
        costs.observe_verify(num_rows, 1, 1, 1.0 + 0.01 * (num_rows - 1))
    assert costs.rows_beside(101, 200) == 100  # 1 second
    assert costs.rows_beside(101, 50) == 50


def test_drafting_waits_for_a_reading_that_it_would_slow_down_more_than_plain_decoding():
    costs = running(9, crowding=0.5)
    for num_requests in (1, 9):
        costs.observe_verify(num_requests, num_requests, 1, 1.0 + 0.1 * num_requests)
    assert not costs.delays_reading(1.5)
    assert costs.delays_reading(1.7)
    costs.crowding = 0.0
    assert not costs.delays_reading(100.0)
