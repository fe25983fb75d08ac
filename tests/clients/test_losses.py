"""Requests at which draft servers are lost get no drafts after the second loss."""

from __future__ import annotations

from diffuspec_client.losses import Losses


def test_requests_that_were_drafted_for_at_two_losses_are_barred_until_they_end():
    losses = Losses()
    losses.report(["a", "b"])
    losses.count(1)
    assert not losses.bars("a")
    losses.report(["b", "c"])
    losses.count(2)
    assert [losses.bars(name) for name in "abc"] == [False, True, False]
    losses.end(["b"])
    assert not losses.bars("b")


def test_a_connection_that_ends_on_purpose_and_requests_that_were_not_reported_count_for_nothing():
    losses = Losses()
    for _ in range(5):
        losses.report(["a"])
        losses.count(0)
    losses.report(["a"])
    losses.count(1)
    losses.count(2)
    assert not losses.bars("a")
