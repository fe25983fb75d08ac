"""Hidden states reach a drafter in order and once, and again where it has lost them; by hand."""

from __future__ import annotations

from diffuspec.core import state_feed
from diffuspec.core.state_feed import StateFeed
from diffuspec.core.states import StateRows, StatesWanted

LAYERS = (1, 5)


def rows(first: int, end: int) -> StateRows:
    return StateRows(first, (end - first, 1), bytes(2 * (end - first)))


def span(states: StateRows | None) -> tuple[int, int] | None:
    return None if states is None else (states.first, states.end)


def test_a_drafter_that_wants_no_states_costs_nothing() -> None:
    feed = StateFeed()
    assert feed.wanted is None and feed.to_send(99) is None
    assert feed.answered(None) is None and feed.wanted is None


def test_states_are_wanted_from_the_verifier_until_there_and_sent_once() -> None:
    feed = StateFeed()
    feed.to_send(99)
    assert feed.answered(StatesWanted(LAYERS, 0)) == 0, "the target has read some without them"
    assert feed.wanted == StatesWanted(LAYERS, 0)
    feed.take(rows(0, 8))
    feed.take(rows(8, 9))
    feed.take(rows(20, 30))  # of another wish
    assert feed.wanted == StatesWanted(LAYERS, 9)
    assert span(feed.to_send(99)) == (0, 9)
    feed.take(rows(9, 12))  # meanwhile
    assert feed.answered(StatesWanted(LAYERS, 9)) is None
    assert span(feed.to_send(99)) == (9, 12)
    assert feed.answered(StatesWanted(LAYERS, 12)) is None
    assert feed.to_send(99) is None and feed.wanted == StatesWanted(LAYERS, 12)


def test_a_message_holds_as_many_rows_as_fit() -> None:
    feed = StateFeed()
    feed.expect(LAYERS)
    feed.take(rows(0, 10))
    assert span(feed.to_send(8)) == (0, 4)
    assert feed.answered(StatesWanted(LAYERS, 4)) is None
    assert span(feed.to_send(1)) == (4, 5), "at least one"
    assert feed.answered(StatesWanted(LAYERS, 5)) is None
    assert span(feed.to_send(99)) == (5, 10)


def test_what_a_drafter_has_lost_is_wanted_again() -> None:
    feed = StateFeed()
    feed.expect(LAYERS)
    feed.take(rows(0, 10))
    feed.to_send(99)
    feed.take(rows(10, 12))
    assert feed.answered(StatesWanted(LAYERS, 3)) == 3
    assert feed.wanted == StatesWanted(LAYERS, 3) and feed.to_send(99) is None
    feed.take(rows(10, 12))
    assert feed.wanted == StatesWanted(LAYERS, 3)


def test_states_that_nobody_takes_are_dropped(monkeypatch) -> None:
    monkeypatch.setattr(state_feed, "_MAX_STATE_BYTES", 8)
    feed = StateFeed()
    feed.expect(LAYERS)
    feed.take(rows(0, 4))
    feed.take(rows(4, 5))
    assert feed.wanted is None and feed.to_send(99) is None
    assert feed.answered(StatesWanted(LAYERS, 0)) == 0, "it is asked again, by the drafter"


def test_states_may_be_dropped_while_some_of_them_are_on_their_way(monkeypatch) -> None:
    monkeypatch.setattr(state_feed, "_MAX_STATE_BYTES", 8)
    feed = StateFeed()
    feed.expect(LAYERS)
    feed.take(rows(0, 4))
    assert feed.to_send(99) is not None
    feed.take(rows(4, 5))
    assert feed.answered(StatesWanted(LAYERS, 4)) == 4
