"""The guard: drafts stop where they lose against plain decoding, and only there."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from diffuspec.adl.baseline import Baseline, Interval

PLAIN = 0.012  # seconds of a step without drafts
NAME = "dream"


class Run:
    """A guard, and running requests that commit tokens with drafts and without."""

    def __init__(self, num_running: int = 2) -> None:
        self.baseline = Baseline([NAME])
        self.num_running = num_running
        self.seconds = {True: 0.0, False: 0.0}  # by whether drafts were allowed
        self.measure_plain()

    def measure_plain(self) -> None:
        for _ in range(3):
            self.baseline.observe(Interval(self.num_running, PLAIN, PLAIN, PLAIN))

    def go(self, num_steps: int, speed: float) -> None:
        """Decode. With drafts, three tokens a step come at `speed` times plain decoding's speed."""
        for _ in range(num_steps):
            is_drafted = self.is_allowed
            seconds = 3 * PLAIN / speed if is_drafted else PLAIN
            self.seconds[is_drafted] += seconds
            if is_drafted:
                self.draft(2.0 * self.num_running, seconds)
            else:
                self.baseline.observe(Interval(self.num_running, PLAIN, PLAIN, PLAIN))

    def draft(
        self, num_accepted: float, seconds: float, num_missing: int = 0, surprise: float = 0.0
    ) -> None:
        """Verify drafts, as many tokens of which are accepted as were expected."""
        tokens = {NAME: num_accepted}
        cost = {NAME: seconds}
        interval = Interval(self.num_running, seconds, PLAIN, PLAIN, cost, tokens, num_missing)
        interval.surprise = surprise
        self.baseline.observe(interval)

    @property
    def is_allowed(self) -> bool:
        return self.baseline.allows(NAME, self.num_running)


@pytest.mark.parametrize("num_running", [1, 2, 16])
def test_drafts_that_gain_time_never_stop(num_running):
    run = Run(num_running)
    for _ in range(100):
        run.go(10, speed=1.3)
        run.go(1, speed=0.5)  # lost by chance
    assert run.seconds[False] == 0


@pytest.mark.parametrize("num_running", [1, 2, 16])
def test_drafts_that_lose_time_take_a_small_share_of_it(num_running):
    run = Run(num_running)
    run.go(20_000, speed=0.8)
    with_drafts, without = run.seconds[True], run.seconds[False]
    assert 0 < 0.2 * with_drafts < 0.02 * (with_drafts + without)


@pytest.mark.parametrize("num_running", [1, 2, 16])
@pytest.mark.parametrize("speed", [0.5, 0.9])
def test_drafts_that_lose_time_from_the_first_stop_after_a_dozen_plain_steps_lost(
    num_running, speed
):
    run = Run(num_running)
    while run.is_allowed:
        run.go(1, speed)
    lost = (1 - speed) * run.seconds[True] / PLAIN
    latest = 3 / speed - 3  # what one step loses
    assert lost <= 12 + latest


def test_drafts_that_stopped_are_tried_again_and_go_on_if_they_gain_time_then():
    run = Run()
    run.go(60, speed=0.5)
    assert not run.is_allowed
    run.go(1500, speed=1.5)
    assert run.is_allowed
    stopped = run.seconds[False]
    run.go(100, speed=1.5)
    assert run.seconds[False] == stopped


def test_a_drafter_that_hung_once_does_not_stop_drafts_for_ever():
    run = Run()
    run.draft(0.0, 60.0)
    assert not run.is_allowed
    run.go(7000, speed=1.5)
    assert run.is_allowed


def test_drafts_that_lose_among_many_requests_go_on_among_few():
    baseline = Baseline([NAME])
    for _ in range(60):
        baseline.observe(Interval(16, 2 * PLAIN, PLAIN, PLAIN, {NAME: PLAIN}))
    allowed = [baseline.allows(NAME, number) for number in (22, 16, 12, 11, 2)]
    assert allowed == [False, False, False, True, True], "those of a power of two are alike"


def test_one_drafter_that_loses_does_not_stop_another():
    baseline = Baseline([NAME])
    tokens = {"fast": 2.0}
    for _ in range(60):
        cost = {"slow": 3 * PLAIN, "fast": 0.5 * PLAIN}
        baseline.observe(Interval(2, 2.5 * PLAIN, PLAIN, PLAIN, cost, tokens))
    assert baseline.allows("fast", 2) and not baseline.allows("slow", 2)


def test_what_prompts_cost_is_not_lost_by_drafts():
    run = Run()
    for _ in range(200):
        base = 5 * PLAIN
        cost, tokens = {NAME: 0.1 * PLAIN}, {NAME: 0.5}
        run.baseline.observe(Interval(2, base + 0.1 * PLAIN, PLAIN, base, cost, tokens))
    assert run.is_allowed


def test_requests_that_a_verification_left_out_are_tokens_not_committed():
    run = Run(num_running=4)
    for _ in range(60):
        run.draft(1.0, PLAIN, num_missing=3)
    assert not run.is_allowed


# ---- trials


def credit_after(intervals: Sequence[Interval]) -> Baseline:
    baseline = Baseline([NAME])
    for interval in intervals:
        baseline.observe(interval)
    return baseline


def test_a_trial_is_allowed_once_it_takes_1_percent_of_the_time():
    for number, is_allowed in ((190, False), (210, True)):
        baseline = credit_after([Interval(2, PLAIN, PLAIN, PLAIN)] * number)
        assert baseline.allows_trial(NAME, 2, 2.0) is is_allowed
    baseline.take_trial(NAME, 2, 2.0)
    assert not baseline.allows_trial(NAME, 2, 2.0)


def test_a_trial_that_costs_more_than_is_ever_saved_up_is_paid_off_afterwards():
    plain = Interval(2, PLAIN, PLAIN, PLAIN)
    baseline = credit_after([plain] * 100_000)
    assert baseline.allows_trial(NAME, 2, 50.0)
    baseline.take_trial(NAME, 2, 50.0)
    for _ in range(4150):  # 42 steps, in all, are owed
        assert not baseline.allows_trial(NAME, 2, 0.0)
        baseline.observe(plain)
    for _ in range(200):
        baseline.observe(plain)
    assert baseline.allows_trial(NAME, 2, 0.0)


def test_trials_that_cost_what_was_saved_up_for_them_do_not_stop_drafts():
    run = Run()
    for _ in range(200):
        run.baseline.take_trial(NAME, 2, 0.5)
        run.draft(0.0, 1.5 * PLAIN)
    assert run.is_allowed


# ---- plain decoding is measured


def test_plain_decoding_is_measured_at_first_and_again_after_many_drafted_steps():
    run = Run()
    assert run.baseline.wants_plain(8), "never measured under this load"
    assert not run.baseline.wants_plain(2)
    run.go(255, speed=1.5)
    assert not run.baseline.wants_plain(2)
    run.go(1, speed=1.5)
    assert run.baseline.wants_plain(2)
    run.measure_plain()
    assert not run.baseline.wants_plain(2)


def test_plain_decoding_is_not_waited_for_where_others_always_draft():
    run = Run()
    run.num_running = 8
    for _ in range(8):
        assert run.baseline.wants_plain(8)
        run.draft(16.0, PLAIN)
    assert not run.baseline.wants_plain(8)


def test_plain_decoding_is_not_waited_for_where_nothing_can_be_learnt():
    baseline = Run().baseline
    for _ in range(8):
        assert baseline.wants_plain(8)
        baseline.skip(8)
    assert not baseline.wants_plain(8)


# ---- a machine that gets slower and faster


@pytest.mark.parametrize(("plain_times", "is_allowed"), [(4, True), (1, False)])
def test_drafts_on_a_machine_that_got_slower_are_compared_once_plain_steps_are_measured_there(
    plain_times, is_allowed
):
    run = Run(num_running=16)
    run.go(20, speed=1.5)
    for _ in range(2):
        assert not run.baseline.wants_plain(16)
        run.draft(32.0, 16 * PLAIN, surprise=1.4)
    assert run.baseline.wants_plain(16) and run.is_allowed
    for _ in range(3):
        run.baseline.observe(Interval(16, plain_times * PLAIN, PLAIN, PLAIN))
    assert run.is_allowed == is_allowed and not run.baseline.wants_plain(16)


def test_one_verification_that_took_long_is_compared_with_the_next():
    run = Run(num_running=16)
    run.go(20, speed=1.5)
    run.draft(32.0, 30 * PLAIN, surprise=2.0)
    assert run.is_allowed and not run.baseline.wants_plain(16)
    run.draft(32.0, 2 * PLAIN)
    assert not run.is_allowed


def test_a_stopped_drafter_is_tried_again_beside_one_that_drafts():
    baseline, tokens = Baseline(["slow", "fast"]), {"fast": 2.0}
    for _ in range(60):
        baseline.observe(Interval(2, 3 * PLAIN, PLAIN, PLAIN, {"slow": PLAIN}))
    assert not baseline.allows("slow", 2)
    for _ in range(20_000):
        cost = {"fast": 0.5 * PLAIN}
        baseline.observe(Interval(2, 1.5 * PLAIN, PLAIN, PLAIN, cost, tokens))
    assert baseline.allows("slow", 2)


def test_prompts_that_a_drafter_has_read_are_paid_off_over_the_drafts_to_come():
    def allowed_after(num_drafts: int) -> bool:
        baseline = Baseline([NAME])
        cost, reading = {NAME: 20 * PLAIN}, {NAME: 20 * PLAIN}
        for number in range(num_drafts):
            seconds = 21 * PLAIN if not number else PLAIN
            read = reading if not number else {}
            baseline.observe(Interval(1, seconds, PLAIN, PLAIN, cost, reading=read))
        return baseline.allows(NAME, 1)

    assert allowed_after(4) and not allowed_after(40)


def test_plain_decoding_is_measured_more_often_at_first_where_that_is_asked_for():
    baseline, found = Baseline([NAME], 16), list[int]()
    while len(found) < 6:
        num_drafted = 0
        while not baseline.wants_plain(1):
            baseline.observe(Interval(1, PLAIN, PLAIN, PLAIN, {NAME: PLAIN}, {NAME: 1.0}))
            num_drafted += 1
        for _ in range(3):
            baseline.observe(Interval(1, PLAIN, PLAIN, PLAIN))
        found.append(num_drafted)
    assert found == [0, 16, 32, 64, 128, 256]


@pytest.mark.parametrize("plain_seconds", [1e-9, 0.01, 1e3])
def test_its_accounts_are_bounded_whatever_is_measured(plain_seconds):
    baseline, rng = Baseline([NAME]), random.Random(0)
    for _ in range(20_000):
        number = rng.choice([1, 2, 8, 32])
        seconds = rng.lognormvariate(-4, 3)
        interval = Interval(number, seconds, plain_seconds, plain_seconds)
        if rng.random() < 0.8:
            interval.cost_seconds = {NAME: rng.lognormvariate(-5, 3)}
            interval.accepted = {NAME: rng.choice([0.0, 5.0, 300.0])}
            interval.reading = {NAME: rng.choice([0.0, seconds])}
            interval.surprise = rng.gauss(0, 2)
        baseline.observe(interval)
        if baseline.allows_trial(NAME, number, 1.0):
            baseline.take_trial(NAME, number, rng.choice([0.1, 1.0, 1e9]))
    for account in baseline._accounts.values():
        assert abs(account.balance) <= 60 and -60 <= account.credit <= 8
        assert 0 <= account.debt < math.inf
    assert all(len(plain.held) < 1000 for plain in baseline._plain.values())
