import pytest

from diffuspec.control.costs import StepCosts
from diffuspec.control.loss_budget import LossBudget

PLAIN_SECONDS = 0.012  # of a step


class Run:
    """A budget, and two running requests that commit tokens with drafts and without."""

    def __init__(self) -> None:
        self.budget = LossBudget()
        self.seconds = {True: 0.0, False: 0.0}  # by whether drafts were allowed
        for _ in range(3):
            assert self.budget.is_waiting(2)
            self.budget.observe(2, 2, PLAIN_SECONDS, is_plain=True)

    def go(self, num_verifications: int, speed: float) -> None:
        """Verify; with drafts, 6 tokens at a time come at `speed` times plain decoding's speed."""
        assert not self.budget.is_waiting(2)
        for _ in range(num_verifications):
            is_plain = self.budget.is_spent(2)
            seconds = PLAIN_SECONDS if is_plain else 3 * PLAIN_SECONDS / speed
            self.seconds[not is_plain] += seconds
            self.budget.observe(2 if is_plain else 6, 2, seconds, is_plain)


def test_drafts_that_gain_time_never_stop():
    run = Run()
    for _ in range(100):
        run.go(10, speed=1.3)
        run.go(1, speed=0.5)  # lost by chance
    assert run.seconds[False] == 0


def test_drafts_that_lose_time_take_a_small_share_of_it():
    run = Run()
    run.go(20_000, speed=0.8)
    with_drafts, without = run.seconds[True], run.seconds[False]
    lost = 0.2 * with_drafts
    assert 0 < lost < 0.015 * (with_drafts + without)


def test_drafts_that_stopped_are_tried_again_and_go_on_if_they_gain_time_then():
    run = Run()
    run.go(60, speed=0.5)
    assert run.budget.is_spent(2)
    run.go(1500, speed=1.5)
    assert not run.budget.is_spent(2)
    stopped = run.seconds[False]
    run.go(100, speed=1.5)
    assert run.seconds[False] == stopped


def test_a_loss_against_plain_decoding_that_seemed_faster_than_it_is_is_forgotten():
    run = Run()
    run.budget = LossBudget()
    for _ in range(3):
        run.budget.observe(2, 2, PLAIN_SECONDS / 2, is_plain=True)  # by chance
    run.go(12, speed=1.5)
    assert run.budget.is_spent(2)
    run.go(60, speed=1.5)
    assert not run.budget.is_spent(2)


def test_a_drafter_that_hung_once_stops_drafts_for_no_more_than_6400_plain_steps():
    run = Run()
    run.budget.observe(2, 2, 60.0, is_plain=False)
    assert run.budget.is_spent(2)
    run.go(6400, speed=1.5)
    assert not run.budget.is_spent(2)


def test_drafts_of_others_that_are_always_there_are_waited_for_16_times():
    budget = LossBudget()
    for _ in range(16):
        assert budget.is_waiting(3)
        budget.observe(9, 3, 0.1, is_plain=False)
    assert not budget.is_waiting(3) and not budget.is_spent(3)
    assert budget.is_waiting(4)


@pytest.mark.parametrize(("num_running", "is_lost"), [(7, True), (17, False)])
def test_plain_decoding_is_taken_to_be_as_fast_as_with_the_nearest_number(num_running, is_lost):
    budget = LossBudget()
    for number, seconds in [(8, 0.01), (16, 0.02)]:
        budget.observe(number, number, seconds, is_plain=True)
    for _ in range(30):
        budget.observe(num_running, num_running, 0.015, is_plain=False)
    assert budget.is_spent(num_running) == is_lost


def test_a_step_of_a_few_of_the_running_requests_is_not_scaled_up_to_all():
    budget = LossBudget()
    for _ in range(3):
        budget.observe(16, 16, 0.02, is_plain=True)
    for _ in range(30):
        budget.observe(4, 16, 0.01, is_plain=True)  # the others wait, or are read
    for _ in range(30):
        budget.observe(16, 16, 0.03, is_plain=False)
    assert budget.is_spent(16)


@pytest.mark.parametrize(("num_lost", "is_spent"), [(70, False), (75, True)])
def test_drafts_may_lose_60_steps_that_they_have_gained_besides_12_others(num_lost, is_spent):
    run = Run()
    run.go(1000, speed=2)
    for _ in range(num_lost):
        run.budget.observe(0, 2, PLAIN_SECONDS, is_plain=False)
    assert run.budget.is_spent(2) == is_spent


def test_drafts_that_lose_among_many_requests_go_on_among_few():
    budget = LossBudget()
    for number in (16, 2):
        for _ in range(3):
            budget.observe(number, number, 0.02, is_plain=True)
    for _ in range(30):
        budget.observe(16, 16, 0.03, is_plain=False)
    assert [budget.is_spent(number) for number in (31, 16, 15, 2)] == [True, True, False, False]


@pytest.fixture
def costs() -> StepCosts:
    """Costs of two running requests, for whom plain decoding has been measured."""
    costs = StepCosts()
    for num_rows in (1, 2, 20):
        costs.observe_verify(num_rows, min(num_rows, 2), 2, 0.05 * num_rows)
    costs.num_running = 2
    for _ in range(3):
        assert costs.must_decode_plainly
        costs.observe_progress(2, 0.1, is_plain=True)
    assert not costs.must_decode_plainly
    return costs


def test_one_request_alone_drafts_whatever_several_have_lost(costs: StepCosts):
    costs.observe_progress(2, 10.0, is_plain=False)
    assert costs.must_decode_plainly
    costs.num_running = 1
    assert not costs.must_decode_plainly


@pytest.mark.parametrize(
    ("num_nodes", "num_kept_out", "num_gained_tokens", "seconds", "is_lost"),
    [
        (0, 0, 0, 0.0, False),
        (0, 0, 0, 1.0, True),  # the prompts waited for a draft call
        (0, 1, -40, 0.0, True),
        (0, 40, -40, 0.0, False),  # their rows would have taken as long as steps of their own
        (18, 0, 0, 0.0, True),
        (18, 0, 22, 0.0, False),
    ],
)
def test_what_drafts_cost_beside_prompts_is_lost(
    costs: StepCosts,
    num_nodes: int,
    num_kept_out: int,
    num_gained_tokens: int,
    seconds: float,
    is_lost: bool,
):
    for _ in range(2):
        costs.observe_beside_prompts(2, num_nodes, num_kept_out, num_gained_tokens, seconds)
    assert costs.must_decode_plainly == is_lost
