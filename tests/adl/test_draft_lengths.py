"""Draft lengths against the best of all constant ones, where costs are known lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from diffuspec.adl.cost_model import CostModel
from diffuspec.adl.draft_lengths import Load, choose_lengths, trial_length
from diffuspec.core.params import SamplingParams, SpeculationParams
from diffuspec.scheduler.calls import UNNAMED
from diffuspec.scheduler.request import Request
from tests.support.snapshots import cost_model, decoding


@dataclass
class World:
    """Requests in lockstep, whose drafted tokens are each right with one probability."""

    rightness: float
    draft: tuple[float, float] = (3e-3, 5e-5)  # seconds, seconds per position
    verify: tuple[float, float] = (3e-3, 2e-4)  # seconds, seconds per row
    num_requests: int = 1

    def costs(self) -> CostModel:
        return cost_model(self.verify, self.draft)

    def requests(self) -> list[Request]:
        return [decoding(rightness=self.rightness) for _ in range(self.num_requests)]

    def rate(self, lengths: Sequence[int]) -> float:
        """Tokens per second of these drafts, verified up to the depth that is best."""
        return max(self._rate(lengths, depth) for depth in range(max(lengths) + 1))

    def _rate(self, lengths: Sequence[int], depth: int) -> float:
        verified = [min(k, depth) for k in lengths]
        tokens = sum(sum(self.rightness**n for n in range(k + 1)) for k in verified)
        seconds = self.verify[0] + self.verify[1] * (self.num_requests + sum(verified))
        if positions := sum(lengths):
            seconds += self.draft[0] + self.draft[1] * positions
        return tokens / seconds

    def best_rate(self) -> float:
        """Tokens per second of the best length for all, 0 included."""
        return max(self.rate([k] * self.num_requests) for k in range(33))


def load_of(costs: CostModel, num_requests: int) -> Load:
    return Load(costs, UNNAMED, num_requests, num_requests, num_lanes=1)


WORLDS = {
    "good": World(0.9),
    "middling": World(0.7),
    "bad": World(0.3),
    "useless": World(0.02),
    "nearly perfect": World(0.99),
    "verification is free": World(0.8, verify=(3e-3, 0)),
    "verification is dear": World(0.7, verify=(1e-3, 2e-3)),
    "drafting is free": World(0.8, draft=(1e-6, 0)),
    "drafting is dear": World(0.8, draft=(3e-2, 1e-4)),
    "long drafts are dear": World(0.8, draft=(1e-3, 1e-3)),
    "a batch": World(0.9, num_requests=8),
    "a bad batch": World(0.3, num_requests=8),
    "a batch, a call of the drafter is dear": World(
        0.3, draft=(3e-2, 0), verify=(3e-2, 0), num_requests=8
    ),
    "a good batch, a call of the drafter is dear": World(
        0.85, draft=(3e-2, 0), verify=(3e-2, 0), num_requests=8
    ),
    "a batch, rows are dear": World(0.6, verify=(1e-3, 2e-3), num_requests=16),
    "a batch, rows are dear to draft": World(0.7, draft=(1e-3, 3e-3), num_requests=16),
    "a large batch": World(0.8, verify=(9e-3, 4e-4), num_requests=64),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_the_rate_comes_near_that_of_the_best_constant_length(world):
    requests = world.requests()
    found, _ = choose_lengths(requests, load_of(world.costs(), world.num_requests))
    lengths = [found.get(one, 0) for one in requests]
    assert world.rate(lengths) > 0.9 * world.best_rate()


def test_drafts_are_as_long_as_allowed_if_further_tokens_cost_nothing():
    world = World(0.99, draft=(1e-3, 0), verify=(5e-3, 0))
    [request] = world.requests()
    found, _ = choose_lengths([request], load_of(world.costs(), 1))
    assert found == {request: 32}


def test_drafts_are_no_longer_than_makes_a_difference_even_if_further_tokens_cost_nothing():
    world = World(0.7, draft=(1e-3, 0), verify=(5e-3, 0))
    [request] = world.requests()
    found, _ = choose_lengths([request], load_of(world.costs(), 1))
    assert found[request] <= 12


@pytest.mark.parametrize("num_requests", [1, 8])
def test_nothing_is_drafted_where_plain_decoding_is_faster(num_requests):
    world = World(0.02, num_requests=num_requests)
    load = load_of(world.costs(), num_requests)
    assert choose_lengths(world.requests(), load) == ({}, load.plain_rate)


def test_before_any_cost_is_measured_drafts_are_of_a_middle_length():
    requests = World(0.9, num_requests=2).requests()
    found, _ = choose_lengths(requests, load_of(CostModel([UNNAMED], 1.0), 2))
    assert set(found) == set(requests)
    assert all(4 <= length <= 16 for length in found.values())


def test_the_requests_of_a_batch_get_the_longer_drafts_the_more_is_accepted_of_them():
    good, bad = decoding(rightness=0.95), decoding(rightness=0.1)
    costs = cost_model((1e-3, 1e-4), (1e-3, 1e-4))
    found, _ = choose_lengths([good, bad], load_of(costs, 2))
    assert found[good] > 5 > found.get(bad, 0)


def test_a_batch_drafts_less_where_rows_have_a_price():
    costs, lengths = cost_model((2e-2, 2e-4), (2e-2, 1e-4)), []
    for number in (1, 32):
        requests = [decoding(rightness=0.85) for _ in range(number)]
        found, _ = choose_lengths(requests, load_of(costs, number))
        lengths.append(sum(found.values()) / number)
    assert lengths[1] < lengths[0]


def test_drafts_that_are_not_waited_for_are_longer():
    chosen = []
    for exposed in (1.0, 0.1):
        costs = cost_model((2e-2, 2e-4), (1e-3, 5e-3))
        load = load_of(costs, 1)
        load.exposed_share = exposed
        [request] = World(0.85).requests()
        found, _ = choose_lengths([request], load)
        chosen.append(found[request])
    assert chosen[0] < chosen[1]


@pytest.mark.parametrize(("interference", "number"), [(0.0, 4), (1.0, 8)])
def test_a_batch_goes_on_in_halves_where_roles_do_not_slow_each_other_down(interference, number):
    costs = cost_model((4e-3, 1e-4), (4e-3, 1e-4), interference)
    requests = [decoding(rightness=0.9) for _ in range(8)]
    found, _ = choose_lengths(requests, load_of(costs, 8))
    assert len(found) == number


def test_prompts_that_are_read_between_steps_leave_drafts_less_to_gain():
    world = World(0.9)
    load, requests = load_of(world.costs(), 1), world.requests()
    _, without = choose_lengths(requests, load)
    _, rate = choose_lengths(requests, replace(load, reading_seconds=1e-3))
    assert rate < without


@pytest.mark.parametrize(
    ("room", "interference", "pays"), [(10, 1.0, False), (100, 1.0, True), (10, 0.1, True)]
)
def test_a_drafter_reads_a_prompt_if_drafts_save_that_time_in_the_tokens_to_come(
    room, interference, pays
):
    costs = cost_model((0.01, 0.0), (0.002, 0.001), interference)
    load = Load(costs, UNNAMED, 1, 1, 1)
    assert load.plain_rate == pytest.approx(100)
    assert costs.drafters[UNNAMED].reading_seconds(100) == pytest.approx(0.1)
    assert load.pays_for(100, room, rate=200) == pays  # a token takes 5 ms less
    assert load.pays_for(0, room, rate=100), "its prompt is read"


@pytest.mark.parametrize("max_tokens", [1, 3, 100])
def test_no_draft_is_longer_than_what_its_request_may_still_commit(max_tokens):
    request = decoding(rightness=0.99)
    request.sampling = SamplingParams(max_tokens=max_tokens)
    costs = cost_model((5e-3, 0), (1e-3, 0))
    found, _ = choose_lengths([request], load_of(costs, 1))
    assert found.get(request, 0) <= request.room
    assert trial_length(request) <= request.room


def test_a_trial_of_a_hopeless_request_costs_a_batch_its_wait_and_one_row():
    costs = cost_model((0.1, 0.001), (0.04, 0.0005))
    cost = 0.04 + 8 * 0.0005 + 0.001
    steps = load_of(costs, 4).trial_steps(decoding(rightness=0.0))
    assert steps == pytest.approx(cost / 0.104, rel=1e-6)


def test_what_a_trial_is_expected_to_save_is_not_charged_down_to_a_quarter_of_its_wait():
    costs = cost_model((0.1, 0.03), (0.04, 0.0))
    load, plain = load_of(costs, 1), 0.13
    # The second token, right in 0.2 of the cases, is not worth its row.
    expected = 0.04 / plain + 0.03 / plain - 0.45
    assert load.trial_steps(decoding(rightness=0.45)) == pytest.approx(expected, rel=1e-6)
    assert load.trial_steps(decoding(rightness=0.9)) == pytest.approx(0.25 * 0.04 / plain, rel=1e-6)


def test_a_trial_of_a_request_that_the_drafter_has_not_read_yet_is_charged_in_full():
    costs = cost_model((0.1, 0.0), (0.04, 0.0))
    load = load_of(costs, 1)
    in_full = load.trial_steps(decoding(rightness=0.0), num_unread=4)
    assert load.trial_steps(decoding(rightness=0.9), num_unread=4) == in_full > 0.3


def test_a_trial_beside_the_verification_of_the_others_costs_a_token():
    costs = cost_model((0.1, 0.001), (0.04, 0.0), interference=0.0)
    row, plain = 0.001, 0.104
    steps = load_of(costs, 4).trial_steps(decoding(rightness=0.0))
    assert steps == pytest.approx((row + plain / 4) / plain, rel=1e-6)


@pytest.mark.parametrize(("interference", "steps"), [(0.0, 0.0), (0.5, 0.2)])
def test_a_trial_while_the_target_reads_the_prompt_costs_what_it_slows_that_down(
    interference, steps
):
    costs = cost_model((0.1, 0.0), (0.04, 0.0), interference=interference)
    load = replace(load_of(costs, 4), is_early=True)
    assert load.trial_steps(decoding(rightness=0.0)) == pytest.approx(steps, rel=1e-6)


def test_lengths_that_requests_chose_themselves_are_rated_like_others():
    world = World(0.9)
    load = load_of(world.costs(), 1)
    [request] = world.requests()
    assert load.rate_of({}) == load.plain_rate
    assert load.rate_of({request: 8}) > load.plain_rate
    useless = decoding(SpeculationParams(policy="fixed"), rightness=0.01)
    assert load.rate_of({useless: 8}) == load.plain_rate


@pytest.mark.parametrize(("good", "number"), [(4, 16), (1, 8)])
def test_good_requests_are_drafted_for_beside_bad_ones(good, number):
    rights = [0.95] * good + [0.05] * (number - good)
    requests = [decoding(rightness=one) for one in rights]
    load = load_of(cost_model((0.02, 5e-4), (0.005, 5e-5)), number)
    found, rate = choose_lengths(requests, load)
    assert set(found) == set(requests[:good])
    accepted = good * requests[0].expectation.at(16)
    [seconds] = load.seconds([16 * good], [16 * good])
    assert rate > 0.95 * (number + accepted) / seconds
