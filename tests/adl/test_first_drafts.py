"""A change of the traffic is told from its spread by requests' first drafts."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from diffuspec.adl.first_drafts import FirstDrafts


def after(*tokens: float, times: int = 100) -> FirstDrafts:
    found = FirstDrafts(5.0, 32.0, 0.04)
    for one in islice(cycle(tokens), times):
        found.observe(one)
    return found


@pytest.mark.parametrize(("before", "draft"), [((0.2, 0.4), 8.0), ((6.0, 12.0), 0.3)])
def test_a_draft_unlike_all_before_it_is_a_change(before, draft):
    assert after(*before).observe(draft) > 0.5


@pytest.mark.parametrize("before", [(0.2, 0.4), (6.0, 12.0), (0.2, 8.0), (0.3, 0.3, 0.3, 9.0)])
def test_drafts_like_some_of_those_before_them_are_none(before):
    found = after(*before)
    assert max([found.observe(one) for one in before]) < 0.2


def test_after_a_change_another_is_not_seen_in_the_next_drafts():
    found = after(0.3)
    assert found.observe(8.0) > 0.5
    assert max([found.observe(one) for one in (0.3, 8.0, 6.0, 0.2)]) < 0.5


def test_drafts_that_have_always_been_the_same_may_differ_a_little():
    assert after(5.0, times=100_000).observe(6.0) < 0.1


@pytest.mark.parametrize("tokens", [0.0, 100.0])
def test_the_first_draft_of_all_is_no_change(tokens):
    assert FirstDrafts(5.0, 32.0, 0.04).observe(tokens) < 0.5
