import pytest

from diffuspec.control.costs import StepCosts
from diffuspec.control.loss_budget import LossBudget


def plain_step(num_running: int) -> float:
    return 0.010 + 0.001 * num_running


class Run:
    """A budget, and two running requests that commit tokens with drafts and without."""

    def __init__(self) -> None:
        self.budget = LossBudget()
        self.seconds = {True: 0.0, False: 0.0}  # by whether drafts were allowed
        self.step = plain_step

    def go(self, num_verifications: int, speed: float) -> None:
        """Verify; with drafts, 6 tokens at a time come at `speed` times plain decoding's speed."""
        for _ in range(num_verifications):
            is_plain, plain = self.budget.is_spent, plain_step(2)
            seconds = plain if is_plain else 3 * plain / speed
            self.seconds[not is_plain] += seconds
            self.budget.observe(2 if is_plain else 6, 2, seconds, is_plain, self.step)


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
    assert run.budget.is_spent
    run.go(1500, speed=1.5)
    assert not run.budget.is_spent
    stopped = run.seconds[False]
    run.go(100, speed=1.5)
    assert run.seconds[False] == stopped


def test_a_loss_that_was_only_estimated_is_forgotten_once_plain_decoding_is_measured():
    run = Run()
    run.step = lambda num_running: 0.5 * plain_step(num_running)
    run.go(60, speed=1.5)
    assert run.budget.is_spent
    run.step = plain_step
    run.go(1, speed=1.5)
    assert not run.budget.is_spent


def test_a_drafter_that_hung_once_stops_drafts_for_no_more_than_6400_plain_steps():
    run = Run()
    run.budget.observe(2, 2, 60.0, False, plain_step)
    assert run.budget.is_spent
    run.go(6400, speed=1.5)
    assert not run.budget.is_spent


@pytest.mark.parametrize("is_plain", [True, False])
def test_one_request_alone_drafts_whatever_several_have_lost(is_plain):
    costs = StepCosts()
    costs.observe_verify(2, 2, 2, 0.01)
    costs.num_running = 2
    costs.observe_progress(2, 10.0, is_plain)
    assert costs.must_decode_plainly == (not is_plain)
    costs.num_running = 1
    assert not costs.must_decode_plainly


@pytest.mark.parametrize(
    ("num_nodes", "num_gained_tokens", "seconds", "is_lost"),
    [
        (0, 0, 0.0, False),
        (0, 0, 1.0, True),  # the prompts waited for a draft call
        (0, -40, 0.0, True),  # requests were put off, or waited for drafts
        (18, 0, 0.0, True),
        (18, 18, 0.0, False),
    ],
)
def test_what_drafts_cost_beside_prompts_is_lost(
    num_nodes: int, num_gained_tokens: int, seconds: float, is_lost: bool
):
    costs = StepCosts()
    for num_rows in (2, 20):
        costs.observe_verify(num_rows, 2, 2, 0.05 * num_rows)
    costs.num_running = 2
    costs.observe_beside_prompts(2, num_nodes, num_gained_tokens, seconds)
    costs.observe_beside_prompts(2, num_nodes, num_gained_tokens, seconds)
    assert costs.must_decode_plainly == is_lost
