"""The guard: drafts stop where they lose against plain decoding, and only there."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.speculation.guard import Interval, SpeculationGuard

PLAIN = 0.012  # seconds of a step without drafts
NAME = "dream"


class Run:
    """A guard, and running requests that commit tokens with drafts and without."""

    def __init__(self, num_running: int = 2, names: tuple[str, ...] = (NAME,)) -> None:
        self.guard = SpeculationGuard(names)
        self.num_running = num_running
        self.seconds = {True: 0.0, False: 0.0}  # by whether drafts were allowed
        self.measure_plain()

    def observe(self, interval: Interval) -> None:
        self.guard, _ = self.guard.observe(interval)

    def measure_plain(self) -> None:
        for _ in range(3):
            self.observe(Interval(self.num_running, PLAIN, PLAIN, PLAIN))

    def go(self, num_steps: int, speed: float) -> None:
        """Decode. With drafts, three tokens a step come at `speed` times plain decoding's speed."""
        for _ in range(num_steps):
            is_drafted = self.is_allowed
            seconds = 3 * PLAIN / speed if is_drafted else PLAIN
            self.seconds[is_drafted] += seconds
            if is_drafted:
                self.draft(2.0 * self.num_running, seconds)
            else:
                self.observe(Interval(self.num_running, PLAIN, PLAIN, PLAIN))

    def draft(self, num_accepted: float, seconds: float, **changes: Any) -> None:
        """Verify drafts, as many tokens of which are accepted as were expected."""
        tokens, cost = {NAME: num_accepted}, {NAME: seconds}
        interval = Interval(self.num_running, seconds, PLAIN, PLAIN, cost, tokens)
        self.observe(replace(interval, **changes))

    @property
    def is_allowed(self) -> bool:
        return self.allows(NAME, self.num_running)

    def allows(self, drafter: str, num_running: int) -> bool:
        return not self.guard.num_stopped_steps(drafter, num_running)


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
    run = Run(16)
    for _ in range(60):
        run.observe(Interval(16, 2 * PLAIN, PLAIN, PLAIN, {NAME: PLAIN}))
    allowed = [run.allows(NAME, number) for number in (22, 16, 12, 11, 2)]
    assert allowed == [False, False, False, True, True], "those of a power of two are alike"


def test_one_drafter_that_loses_does_not_stop_another():
    run, tokens = Run(names=("slow", "fast")), {"fast": 2.0}
    for _ in range(60):
        cost = {"slow": 3 * PLAIN, "fast": 0.5 * PLAIN}
        run.observe(Interval(2, 2.5 * PLAIN, PLAIN, PLAIN, cost, tokens))
    assert run.allows("fast", 2) and not run.allows("slow", 2)


def test_what_prompts_cost_is_not_lost_by_drafts():
    run = Run()
    for _ in range(200):
        base = 5 * PLAIN
        cost, tokens = {NAME: 0.1 * PLAIN}, {NAME: 0.5}
        run.observe(Interval(2, base + 0.1 * PLAIN, PLAIN, base, cost, tokens))
    assert run.is_allowed


def test_requests_that_a_verification_left_out_are_tokens_not_committed():
    run = Run(num_running=4)
    for _ in range(60):
        run.draft(1.0, PLAIN, num_missing=3)
    assert not run.is_allowed


# ---- exploration


@pytest.mark.parametrize("steps", [0.5, 2.0, 50.0])
def test_exploration_steps_take_one_percent_of_the_time(steps):
    run, num_since = Run(), []
    for _ in range(3):
        num_since.append(0)
        while not run.guard.may_explore(NAME, 2, steps):
            run.observe(Interval(2, PLAIN, PLAIN, PLAIN))
            num_since[-1] += 1
        run.guard = run.guard.explore(NAME, 2)
    assert num_since[1:] == pytest.approx([100 * steps] * 2, abs=1)


def test_the_loss_of_exploration_steps_does_not_stop_drafts():
    run = Run()
    for _ in range(200):
        run.draft(0.0, 1.5 * PLAIN, explores=True)
    assert run.is_allowed


# ---- plain decoding is measured


def test_plain_decoding_is_measured_at_first_and_again_after_many_drafted_steps():
    run = Run()
    assert run.guard.wants_plain(8), "never measured under this load"
    assert not run.guard.wants_plain(2)
    run.go(255, speed=1.5)
    assert not run.guard.wants_plain(2)
    run.go(1, speed=1.5)
    assert run.guard.wants_plain(2)
    run.measure_plain()
    assert not run.guard.wants_plain(2)


def test_plain_decoding_is_not_waited_for_where_others_always_draft():
    run = Run()
    run.num_running = 8
    for _ in range(8):
        assert run.guard.wants_plain(8)
        run.draft(16.0, PLAIN)
    assert not run.guard.wants_plain(8)


def test_plain_decoding_is_not_waited_for_where_nothing_can_be_learnt():
    guard = Run().guard
    for _ in range(8):
        assert guard.wants_plain(8)
        guard = guard.skip(8)
    assert not guard.wants_plain(8)


# ---- a machine that gets slower and faster


def test_after_two_surprising_verifications_in_a_row_plain_decoding_is_measured():
    run = Run(num_running=16)
    run.go(20, speed=1.5)
    for surprise in (1.4, 0.0, 1.4):
        run.draft(32.0, PLAIN, surprise=surprise)
        assert not run.guard.wants_plain(16)
    run.draft(32.0, PLAIN, surprise=-1.4)
    assert run.guard.wants_plain(16)
    run.measure_plain()
    assert not run.guard.wants_plain(16)


@pytest.mark.parametrize(("surprise", "is_allowed"), [(1.4, True), (0.0, False)])
def test_a_verification_that_took_surprisingly_long_is_compared_with_plain_steps_as_slow(
    surprise, is_allowed
):
    run = Run(num_running=16)
    for _ in range(20):
        run.draft(32.0, 4 * PLAIN, surprise=surprise)
    assert run.is_allowed == is_allowed


def test_a_stopped_drafter_resumes_beside_one_that_drafts():
    run, tokens = Run(names=("slow", "fast")), {"fast": 2.0}
    for _ in range(60):
        run.observe(Interval(2, 3 * PLAIN, PLAIN, PLAIN, {"slow": PLAIN}))
    assert not run.allows("slow", 2)
    for _ in range(20_000):
        run.observe(Interval(2, 1.5 * PLAIN, PLAIN, PLAIN, {"fast": 0.5 * PLAIN}, tokens))
    assert run.allows("slow", 2)


def test_plain_decoding_is_measured_more_often_at_first_where_that_is_asked_for():
    guard, waits = SpeculationGuard((NAME,), 16), list[int]()
    while len(waits) < 6:
        num_drafted = 0
        while not guard.wants_plain(1):
            guard, _ = guard.observe(Interval(1, PLAIN, PLAIN, PLAIN, {NAME: PLAIN}, {NAME: 1.0}))
            num_drafted += 1
        for _ in range(3):
            guard, _ = guard.observe(Interval(1, PLAIN, PLAIN, PLAIN))
        waits.append(num_drafted)
    assert waits == [0, 16, 32, 64, 128, 256]


@pytest.mark.parametrize("plain_seconds", [1e-9, 0.01, 1e3])
def test_its_accounts_are_bounded_whatever_is_measured(plain_seconds):
    guard, rng = SpeculationGuard((NAME,)), random.Random(0)
    for _ in range(20_000):
        number = rng.choice([1, 2, 8, 32])
        seconds = rng.lognormvariate(-4, 3)
        interval = Interval(number, seconds, plain_seconds, plain_seconds)
        if rng.random() < 0.8:
            interval = replace(
                interval,
                cost_seconds={NAME: rng.lognormvariate(-5, 3)},
                accepted={NAME: rng.choice([0.0, 5.0, 300.0])},
                surprise=rng.gauss(0, 2),
            )
        guard, _ = guard.observe(interval)
    for balance, num_since in guard._accounts.values():
        assert abs(balance) <= 60 and 0 <= num_since < math.inf
