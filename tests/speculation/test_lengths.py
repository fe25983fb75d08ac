"""Draft lengths against the best of all constant ones, where costs are known lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.core.types import Draft, DraftTree
from diffuspec.speculation.acceptance import Acceptance, SharedAcceptance
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import CostModel
from diffuspec.speculation.lengths import (
    Ahead,
    Load,
    choose_lengths,
    nodes_to_verify,
    num_ahead,
    rate_of,
    size,
)
from diffuspec.speculation.values import RequestView
from tests.support.snapshots import (
    NAME,
    after_plain_steps,
    cost_model,
    decoding,
    measured_guard,
    unknown_costs,
)


@dataclass
class World:
    """Requests in lockstep, whose drafted tokens are each right with one probability."""

    rightness: float
    draft: tuple[float, float] = (3e-3, 5e-5)  # seconds, seconds per position
    verify: tuple[float, float] = (3e-3, 2e-4)  # seconds, seconds per row
    num_requests: int = 1

    def costs(self) -> CostModel:
        return cost_model(self.verify, self.draft)

    def requests(self) -> list[RequestView]:
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
    return Load(costs, NAME, num_requests, num_requests)


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
    chosen, _ = choose_lengths(requests, load_of(world.costs(), world.num_requests))
    lengths = [chosen.get(one.request_id, 0) for one in requests]
    assert world.rate(lengths) > 0.9 * world.best_rate()


def test_drafts_are_as_long_as_allowed_if_further_tokens_cost_nothing():
    world = World(0.99, draft=(1e-3, 0), verify=(5e-3, 0))
    [request] = world.requests()
    lengths, _ = choose_lengths([request], load_of(world.costs(), 1))
    assert lengths == {request.request_id: 32}


def test_drafts_are_no_longer_than_makes_a_difference_even_if_further_tokens_cost_nothing():
    world = World(0.7, draft=(1e-3, 0), verify=(5e-3, 0))
    [request] = world.requests()
    lengths, _ = choose_lengths([request], load_of(world.costs(), 1))
    assert lengths[request.request_id] <= 12


@pytest.mark.parametrize("num_requests", [1, 8])
def test_nothing_is_drafted_where_plain_decoding_is_faster(num_requests):
    world = World(0.02, num_requests=num_requests)
    load = load_of(world.costs(), num_requests)
    assert choose_lengths(world.requests(), load) == ({}, load.plain_rate)


def test_before_any_cost_is_measured_drafts_are_of_a_middle_length():
    requests = World(0.9, num_requests=2).requests()
    lengths, _ = choose_lengths(requests, load_of(unknown_costs(), 2))
    assert lengths.keys() == {one.request_id for one in requests}
    assert all(4 <= length <= 16 for length in lengths.values())


def test_the_requests_of_a_batch_get_the_longer_drafts_the_more_is_accepted_of_them():
    good, bad = decoding(rightness=0.95), decoding(rightness=0.1)
    costs = cost_model((1e-3, 1e-4), (1e-3, 1e-4))
    lengths, _ = choose_lengths([good, bad], load_of(costs, 2))
    assert lengths[good.request_id] > 5 > lengths.get(bad.request_id, 0)


def test_a_batch_drafts_less_where_rows_have_a_price():
    costs, means = cost_model((2e-2, 2e-4), (2e-2, 1e-4)), []
    for number in (1, 32):
        requests = [decoding(rightness=0.85) for _ in range(number)]
        lengths, _ = choose_lengths(requests, load_of(costs, number))
        means.append(sum(lengths.values()) / number)
    assert means[1] < means[0]


def test_drafts_that_are_not_waited_for_are_longer():
    chosen: list[int] = []
    for exposed in (1.0, 0.1):
        load = replace(load_of(cost_model((2e-2, 2e-4), (1e-3, 5e-3)), 1), exposed_share=exposed)
        lengths, _ = choose_lengths(World(0.85).requests(), load)
        chosen += lengths.values()
    assert chosen[0] < chosen[1]


def test_prompts_that_are_read_between_steps_leave_drafts_less_to_gain():
    world = World(0.9)
    load, [request] = load_of(world.costs(), 1), world.requests()
    _, without = choose_lengths([request], load)
    _, rate = choose_lengths([request], replace(load, num_unread={request.request_id: 100}))
    assert load.plain_rate < rate < without


@pytest.mark.parametrize(("room", "interference", "pays"), [(10, 1.0, False), (150, 1.0, True)])
def test_a_drafter_reads_a_prompt_if_drafts_save_that_time_in_the_tokens_to_come(
    room, interference, pays
):
    costs = cost_model((0.01, 0.0), (0.002, 1e-4), interference)
    request = decoding(rightness=0.9, room=room)
    load = replace(load_of(costs, 1), num_unread={request.request_id: 1000})
    lengths, _ = choose_lengths([request], load)
    assert bool(lengths) == pays


@pytest.mark.parametrize("room", [1, 3, 100])
def test_no_draft_is_longer_than_what_its_request_may_still_commit(room):
    request = decoding(rightness=0.99, room=room)
    lengths, _ = choose_lengths([request], load_of(cost_model((5e-3, 0), (1e-3, 0)), 1))
    assert 0 < lengths[request.request_id] <= room


def test_lengths_that_requests_chose_themselves_are_rated_like_others():
    load = load_of(World(0.9).costs(), 1)
    [request], useless = World(0.9).requests(), decoding(rightness=0.01)
    assert rate_of({}, [request], load) == load.plain_rate
    assert rate_of({request.request_id: 8}, [request], load) > load.plain_rate
    assert rate_of({useless.request_id: 8}, [useless], load) == load.plain_rate


@pytest.mark.parametrize(("good", "number"), [(4, 16), (1, 8)])
def test_good_requests_are_drafted_for_beside_bad_ones(good, number):
    rights = [0.95] * good + [0.05] * (number - good)
    requests = [decoding(rightness=one) for one in rights]
    load = load_of(cost_model((0.02, 5e-4), (0.005, 5e-5)), number)
    lengths, rate = choose_lengths(requests, load)
    assert lengths.keys() == {one.request_id for one in requests[:good]}
    accepted = good * requests[0].prospects.at(16)
    [seconds] = load.seconds([16 * good], [16 * good])
    assert rate > 0.95 * (number + accepted) / seconds


# ---- exploration


@pytest.mark.parametrize(
    ("interference", "num_unread", "steps"),
    [
        (1.0, 0, (0.04 + 8 * 0.001) / 0.104),  # all wait, and verify eight rows more
        (0.0, 0, (0.104 / 4 + 8 * 0.001) / 0.104),  # one skips a step
        (1.0, 4000, (0.04 + 0.4 + 8 * 0.001) / 0.104),  # its prompt is read
    ],
)
def test_a_draft_explores_once_one_percent_of_the_time_is_its_expected_loss(
    interference, num_unread, steps
):
    costs = cost_model((0.1, 0.001), (0.04, 1e-4), interference)
    request = decoding(rightness=1e-3)
    load = replace(load_of(costs, 4), num_unread={request.request_id: num_unread})
    guard = after_plain_steps(measured_guard(costs), 4, round(80 * steps))
    assert size([request], load, guard).explored is None
    guard = after_plain_steps(guard, 4, round(20 * steps) + 1)
    assert size([request], load, guard).explored == request.request_id


# ---- how much to verify


@st.composite
def a_tree(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(1, 9))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    confidences = tuple(draw(st.floats(-4, 0)) for _ in range(size))
    return Draft(DraftTree(tuple(range(size)), parents), confidences, size)


@settings(max_examples=60)
@given(a_tree(), st.floats(1e-3, 0.2), st.floats(0.1, 100.0))
def test_the_verified_part_of_a_draft_is_worth_most_of_all_its_parts(draft, seconds, rate):
    reach = Acceptance(SharedAcceptance(32)).reach(draft)
    costs = cost_model((0.01, seconds))
    [number] = nodes_to_verify([reach], 1, costs, rate)

    def worth(nodes: list[int]) -> float:
        return sum(reach[node] for node in nodes) - rate * seconds * len(nodes)

    best = -math.inf
    for subset in range(2**draft.tree.num_nodes):
        nodes = [node for node in range(draft.tree.num_nodes) if subset >> node & 1]
        if all(draft.tree.parents[node] in (-1, *nodes) for node in nodes):
            best = max(best, worth(nodes))
    likeliest = sorted(range(len(reach)), key=lambda node: -reach[node])[:number]
    assert worth(likeliest) == pytest.approx(best, abs=1e-9)


# ---- how much to draft ahead


OUTCOMES = [Ahead(0.3, 8)] * 3 + [Ahead(0.05, 8)] * 10
QUICK = cost_model(draft=(0.001, 1e-4), interference=0.0).drafters[NAME]


@pytest.mark.parametrize("seconds_left", [0.0, 0.0005])
def test_nothing_is_drafted_ahead_if_even_a_certain_outcome_would_not_pay(seconds_left):
    assert not num_ahead([Ahead(1.0, 8)], seconds_left, QUICK, (), num_verifying=4)


def test_as_many_outcomes_are_drafted_ahead_as_fit_behind_the_verification():
    numbers = [num_ahead(OUTCOMES, left, QUICK, (), 1) for left in (0.002, 0.005, 0.1)]
    assert numbers == sorted(numbers) and numbers[0] < 4 and numbers[2] == len(OUTCOMES)


def test_roles_that_share_a_processor_draft_nothing_ahead():
    shared = replace(QUICK, interference=Interference.assumed(1.0))
    assert not num_ahead(OUTCOMES, 0.1, shared, (), num_verifying=1)


def test_requests_that_wait_for_a_draft_pay_for_those_made_ahead_in_their_call():
    alone = num_ahead(OUTCOMES, 0.1, QUICK, (), num_verifying=1)
    assert num_ahead(OUTCOMES, 0.1, QUICK, (8, 8, 8), num_verifying=1) < alone
