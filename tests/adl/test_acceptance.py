"""What is expected of drafts, and how much of one is worth verifying."""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings, strategies as st

from diffuspec.adl.acceptance import Expectation, SharedExpectation, best_num_nodes
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import Draft, DraftTree, Verdict


def draft_of(length: int, confidence: float = -0.1) -> Draft:
    return Draft(chain(range(length)), (confidence,) * length, length)


def verdict(num_accepted: int) -> Verdict:
    return Verdict((1,) * (num_accepted + 1), tuple(range(num_accepted)))


def after(num_steps: int, num_accepted: int, length: int = 8) -> Expectation:
    """What is expected by the last of as many requests, whose drafts were alike."""
    shared = SharedExpectation(32)
    for _ in range(num_steps):
        one = Expectation(shared)
        one.observe_draft(draft_of(length), length)
        one.observe_verdict(draft_of(length), verdict(num_accepted))
    return Expectation(shared)


# ---- tokens expected of a draft


@pytest.mark.parametrize("max_draft_tokens", [1, 20, 30, 128])
def test_expectations_rise_with_the_length_up_to_the_longest(max_draft_tokens):
    one = Expectation(SharedExpectation(max_draft_tokens))
    found = [one.at(k) for k in range(max_draft_tokens + 1)]
    assert found[0] == 0 and all(a < b for a, b in pairwise(found))
    assert one.at(10 * max_draft_tokens) == found[-1]


def test_verdicts_move_expectations_whatever_the_drafter_thinks_of_its_tokens():
    useless, right = after(100, num_accepted=0), after(100, num_accepted=8)
    assert useless.at(8) < 0.5 < 6 < right.at(8)
    assert right.at(32) > 20, "it would have gone on like this"


def test_a_request_that_differs_from_the_others_is_expected_to_go_on_so():
    one = after(100, num_accepted=8)
    for _ in range(12):
        one.observe_draft(draft_of(8), 8)
        one.observe_verdict(draft_of(8), verdict(0))
    assert one.at(8) < 2


def test_without_drafts_what_was_seen_lately_gives_way_to_what_is_usual():
    one = after(100, num_accepted=6)
    for _ in range(12):
        one.observe_draft(draft_of(8), 8)
    usual = one.at(8)
    one.observe_draft(draft_of(8, confidence=-9.0), 8)
    low = one.at(8)
    for _ in range(40):
        one.observe_no_draft()
    assert low < one.at(8) < usual and one.chance_of_change > 0.9


def usual_after_a_poor_draft(differ: bool) -> tuple[float, float]:
    """What a request with one poor draft is expected to have in the end, and what others are.

    Either half of the requests before had poor drafts all the time, or all had every other one.
    """
    shared = SharedExpectation(32)
    for number in range(40):
        one = Expectation(shared)
        for place in range(6):
            draft = draft_of(16, -2.0 if (number if differ else place) % 2 else -0.05)
            one.observe_draft(draft, 16)
    one = Expectation(shared)
    one.observe_draft(draft_of(16, -2.0), 16)
    for _ in range(60):
        one.observe_no_draft()
    return one.at(16), Expectation(shared).at(16)


def test_a_poor_draft_says_the_more_of_a_request_the_more_requests_differ():
    poor, others = usual_after_a_poor_draft(differ=True)
    assert poor < 0.4 * others
    poor, others = usual_after_a_poor_draft(differ=False)
    assert poor > 0.8 * others


def test_a_draft_that_its_end_cut_short_is_not_expected_to_go_on():
    ended, going_on = Expectation(SharedExpectation(32)), Expectation(SharedExpectation(32))
    ended.observe_draft(Draft(chain(range(4)), (-0.01,) * 4, 4), 16)
    going_on.observe_draft(draft_of(16, confidence=-0.01), 16)
    assert ended.at(32) < going_on.at(32)
    assert ended.at(4) == pytest.approx(going_on.at(4))


def test_what_cuts_leave_of_drafts_is_expected_of_the_next_ones():
    one = Expectation(SharedExpectation(32))
    for _ in range(50):
        one.observe_cut(num_nodes=3, tokens=1.5, whole=2.0)
    tokens, nodes = one.verified_at(8)
    assert tokens == pytest.approx(0.75 * one.at(8))
    assert nodes == pytest.approx(2 * tokens)
    offers = one.offers(32)
    assert offers.tokens == pytest.approx([0.75 * one.at(length) for length in offers.lengths])
    assert offers.rows == pytest.approx([2 * tokens for tokens in offers.tokens])
    cut_short = one.offers(5)  # the answer has room for five tokens
    most = 0.75 * one.at(5)
    assert cut_short.tokens == pytest.approx([min(tokens, most) for tokens in offers.tokens])


def test_drafts_are_the_longer_the_cheaper_a_position_is_and_end_with_the_request():
    one = Expectation(SharedExpectation(32))
    offers = one.offers(32)
    assert offers.lengths == sorted(offers.lengths) and offers.lengths[-1] == 32
    assert offers.tokens == pytest.approx([one.at(length) for length in offers.lengths])
    assert one.offers(5).lengths == [min(length, 5) for length in offers.lengths]


def test_other_lengths_than_those_kept_lie_between_them():
    one = Expectation(SharedExpectation(32))
    low, middle, high = one.at(16), one.at(18), one.at(20)
    assert middle == pytest.approx((low + high) / 2)


# ---- the part of a draft to verify


@st.composite
def a_tree(draw: st.DrawFn) -> Draft:
    size = draw(st.integers(1, 9))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    confidences = tuple(draw(st.floats(-4, 0)) for _ in range(size))
    return Draft(DraftTree(tuple(range(size)), parents), confidences, size)


@settings(max_examples=60)
@given(
    a_tree(),
    st.lists(st.floats(1e-3, 1.0), min_size=10, max_size=10),
    st.floats(0.1, 100.0),
)
def test_the_verified_part_of_a_draft_is_worth_most_of_all_its_parts(draft, steps, rate):
    reach = Expectation(SharedExpectation(32)).observe_draft(draft, draft.tree.num_nodes)
    seconds = [*accumulate(steps)]
    number = best_num_nodes(sorted(reach, reverse=True), seconds, rate)

    def worth(nodes: list[int]) -> float:
        return sum(reach[node] for node in nodes) - rate * seconds[len(nodes)]

    best = -math.inf
    for subset in range(2**draft.tree.num_nodes):
        nodes = [node for node in range(draft.tree.num_nodes) if subset >> node & 1]
        if all(draft.tree.parents[node] in (-1, *nodes) for node in nodes):
            best = max(best, worth(nodes))
    likeliest = sorted(range(len(reach)), key=lambda node: -reach[node])[:number]
    assert worth(likeliest) == pytest.approx(best)


def test_the_first_drafts_of_a_drafter_tell_all_requests_what_it_is_worth():
    shared = SharedExpectation(32)
    drafted, waiting = Expectation(shared), Expectation(shared)
    for _ in range(8):
        drafted.observe_draft(draft_of(16, confidence=-3.0), 16)
    before = waiting.at(8)
    for _ in range(20):
        waiting.observe_no_draft()
    assert waiting.at(8) < 0.5 * before


def test_the_first_draft_of_a_request_says_more_of_it_than_those_of_all_others():
    shared = SharedExpectation(32)
    for _ in range(50):
        Expectation(shared).observe_draft(draft_of(16, confidence=-3.0), 16)
    one = Expectation(shared)
    before = one.at(16)
    one.observe_draft(draft_of(16, confidence=-0.01), 16)
    assert one.at(16) > 5 * before


def test_drafts_that_are_all_alike_have_a_credibility_after_any_number_of_them():
    shared = SharedExpectation(16)
    for _ in range(100_000):
        shared.observe_later(shared.tokens[-1], shared.tokens[-1])
    assert 0 < shared.credibility(3) < 1
