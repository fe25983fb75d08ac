"""What is expected of drafts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import Draft, Verdict
from diffuspec.speculation.acceptance import Acceptance, SharedAcceptance


def draft_of(length: int, confidence: float = -0.1) -> Draft:
    return Draft(chain(range(length)), (confidence,) * length, length)


def verdict(num_accepted: int) -> Verdict:
    return Verdict((1,) * (num_accepted + 1), tuple(range(num_accepted)))


def after(num_steps: int, num_accepted: int, length: int = 8) -> Acceptance:
    """What is expected by the last of as many requests, whose drafts were alike."""
    shared = SharedAcceptance(32)
    for _ in range(num_steps):
        one = Acceptance(shared)
        one.observe_draft(draft_of(length), length)
        one.observe_verdict(draft_of(length), verdict(num_accepted))
    return Acceptance(shared)


# ---- tokens expected of a draft


@pytest.mark.parametrize("max_draft_tokens", [1, 20, 30, 128])
def test_expectations_rise_with_the_length_up_to_the_longest(max_draft_tokens):
    one = Acceptance(SharedAcceptance(max_draft_tokens))
    found = [one.prospects.at(k) for k in range(max_draft_tokens + 1)]
    assert found[0] == 0 and all(a < b for a, b in pairwise(found))
    assert one.prospects.at(10 * max_draft_tokens) == found[-1]


def test_verdicts_move_expectations_whatever_the_drafter_thinks_of_its_tokens():
    useless, right = after(100, num_accepted=0), after(100, num_accepted=8)
    assert useless.prospects.at(8) < 0.5 < 6 < right.prospects.at(8)
    assert right.prospects.at(32) > 20, "it would have gone on like this"


def test_a_request_that_differs_from_the_others_is_expected_to_go_on_so():
    one = after(100, num_accepted=8)
    for _ in range(12):
        one.observe_draft(draft_of(8), 8)
        one.observe_verdict(draft_of(8), verdict(0))
    assert one.prospects.at(8) < 2


def test_without_drafts_what_was_seen_lately_gives_way_to_what_is_usual():
    one = after(100, num_accepted=6)
    for _ in range(12):
        one.observe_draft(draft_of(8), 8)
    usual = one.prospects.at(8)
    one.observe_draft(draft_of(8, confidence=-9.0), 8)
    low = one.prospects.at(8)
    for _ in range(40):
        one.observe_no_draft()
    assert low < one.prospects.at(8) < usual and one.prospects.chance_of_change > 0.9


def test_after_many_steps_without_drafts_one_draft_counts_as_much_as_what_all_requests_have():
    shared = SharedAcceptance(32)
    for _ in range(60):
        Acceptance(shared).observe_draft(draft_of(16, -0.05), 16)
    one, usual = Acceptance(shared), Acceptance(shared).prospects.at(16)
    one.observe_draft(draft_of(16, -9.0), 16)
    for _ in range(60):
        one.observe_no_draft()
    assert one.prospects.at(16) == pytest.approx(usual / 2, rel=0.1)


def test_a_draft_that_its_end_cut_short_is_not_expected_to_go_on():
    ended, going_on = Acceptance(SharedAcceptance(32)), Acceptance(SharedAcceptance(32))
    ended.observe_draft(Draft(chain(range(4)), (-0.01,) * 4, 4), 16)
    going_on.observe_draft(draft_of(16, confidence=-0.01), 16)
    assert ended.prospects.at(32) < going_on.prospects.at(32)
    assert ended.prospects.at(4) == pytest.approx(going_on.prospects.at(4))


def test_what_cuts_leave_of_drafts_is_expected_of_the_next_ones():
    one = Acceptance(SharedAcceptance(32))
    for _ in range(50):
        one.observe_cut(num_nodes=3, tokens=1.5, whole=2.0)
    tokens, nodes = one.prospects.verified_at(8)
    assert tokens == pytest.approx(0.75 * one.prospects.at(8))
    assert nodes == pytest.approx(2 * tokens)
    choices = one.prospects.choices_within(32)
    assert choices.tokens == pytest.approx(
        [0.75 * one.prospects.at(length) for length in choices.lengths]
    )
    assert choices.rows == pytest.approx([2 * tokens for tokens in choices.tokens])
    cut_short = one.prospects.choices_within(5)  # the answer has room for five tokens
    most = 0.75 * one.prospects.at(5)
    assert cut_short.tokens == pytest.approx([min(tokens, most) for tokens in choices.tokens])


def test_drafts_are_the_longer_the_cheaper_a_position_is_and_end_with_the_request():
    one = Acceptance(SharedAcceptance(32))
    choices = one.prospects.choices_within(32)
    assert choices.lengths == sorted(choices.lengths) and choices.lengths[-1] == 32
    assert choices.tokens == pytest.approx([one.prospects.at(length) for length in choices.lengths])
    assert one.prospects.choices_within(5).lengths == [min(length, 5) for length in choices.lengths]


def test_other_lengths_than_those_kept_lie_between_them():
    one = Acceptance(SharedAcceptance(32))
    low, middle, high = one.prospects.at(16), one.prospects.at(18), one.prospects.at(20)
    assert middle == pytest.approx((low + high) / 2)


def test_the_first_drafts_of_a_drafter_tell_all_requests_what_it_is_worth():
    shared = SharedAcceptance(32)
    drafted, waiting = Acceptance(shared), Acceptance(shared)
    for _ in range(8):
        drafted.observe_draft(draft_of(16, confidence=-3.0), 16)
    before = waiting.prospects.at(8)
    for _ in range(20):
        waiting.observe_no_draft()
    assert waiting.prospects.at(8) < 0.5 * before


def test_the_first_draft_of_a_request_says_more_of_it_than_those_of_all_others():
    shared = SharedAcceptance(32)
    for _ in range(50):
        Acceptance(shared).observe_draft(draft_of(16, confidence=-3.0), 16)
    one = Acceptance(shared)
    before = one.prospects.at(16)
    one.observe_draft(draft_of(16, confidence=-0.01), 16)
    assert one.prospects.at(16) > 5 * before
