"""Sharing pages among requests: who goes on, who drafts less, and who gives way."""

from __future__ import annotations

from typing import Any

from diffuspec.core.pages import PAGE_SIZE
from diffuspec.scheduler.room import share_pages
from diffuspec.scheduler.schedule import plain_plan, schedule
from diffuspec.speculation.values import RequestView
from tests.support.snapshots import NOW, decoding, drafted, reading, snapshot


def full(num_pages: int = 2, **changes: Any) -> RequestView:
    """Return a decoding request whose next token needs one more page."""
    return decoding(num_tokens=num_pages * PAGE_SIZE + 1, **changes)


def with_slack(num_rows: int, **changes: Any) -> RequestView:
    """Return a decoding request whose last page has so many rows left after its prefix."""
    return decoding(num_tokens=2 * PAGE_SIZE - num_rows, **changes)


def room_of(*requests: RequestView, num_free_pages: float, **changes: Any) -> Any:
    return share_pages(snapshot(requests, num_free_pages=num_free_pages, **changes))


def test_with_enough_pages_for_the_widest_trees_nobody_is_limited() -> None:
    room = room_of(full(), full(), reading(200), num_free_pages=1 + 1 + 4)
    assert not (room.waiting or room.max_nodes or room.preempted)


def test_a_verifier_without_pages_limits_nobody() -> None:
    assert not room_of(full(), num_free_pages=float("inf")).waiting


def test_drafts_get_shorter_then_stop_before_a_request_gives_way() -> None:
    first, second, third = with_slack(3), with_slack(2), full()
    room = room_of(first, second, third, num_free_pages=2)
    assert room.max_nodes == {second.request_id: 2}  # the page that is left goes to the oldest
    assert not (room.waiting or room.preempted)
    room = room_of(first, second, third, num_free_pages=1)
    assert room.max_nodes == {first.request_id: 3, second.request_id: 2}
    exact = with_slack(0)
    room = room_of(exact, num_free_pages=0)
    assert room.max_nodes == {exact.request_id: 0} and not room.waiting


def test_the_youngest_gives_way_and_only_as_many_as_are_needed() -> None:
    old, middle, young = full(), full(), full(num_pages=3)
    room = room_of(old, middle, young, num_free_pages=1)
    assert room.preempted == [young.request_id] and room.waiting == {young.request_id}


def test_an_old_request_is_never_preempted_for_a_younger_one() -> None:
    old, young = decoding(num_tokens=100), full(num_pages=9)
    room = room_of(old, young, num_free_pages=0)
    assert (room.preempted, room.waiting) == ([], {young.request_id})


def test_requests_that_wait_for_their_readers_give_way_first() -> None:
    old, young = full(), full()
    room = room_of(old, young, num_free_pages=1, paused={"slow": 3, "slowest": 2})
    assert room.preempted == ["slowest"] and not room.waiting


def test_a_request_starts_once_its_whole_prefix_and_the_widest_trees_of_all_have_pages() -> None:
    running, new = with_slack(0), reading(100)
    assert room_of(running, new, num_free_pages=2).waiting == {new.request_id}
    assert not room_of(running, new, num_free_pages=4).waiting


def test_no_request_starts_before_an_older_one_that_waits() -> None:
    running, large, small = full(), reading(1000), reading(10)
    room = room_of(running, large, small, num_free_pages=10)
    assert room.waiting == {large.request_id, small.request_id}


def test_an_older_request_that_has_lost_its_pages_takes_those_of_younger_ones() -> None:
    lost, young = reading(200), decoding(num_tokens=300)
    room = room_of(lost, young, num_free_pages=0)
    assert room.preempted == [young.request_id] and room.waiting == {young.request_id}


def test_the_oldest_goes_on_even_if_the_count_is_out_of_date() -> None:
    oldest, other = reading(200), reading(100)
    assert room_of(oldest, other, num_free_pages=1).waiting == {other.request_id}


def test_a_suspect_that_runs_alone_is_served_before_older_ones() -> None:
    old, suspect = decoding(num_tokens=300), full(is_suspect=True)
    state = snapshot([old, suspect], num_free_pages=0)
    room = share_pages(state, alone=suspect.request_id)
    assert room.preempted == [old.request_id]


def test_a_suspect_that_may_not_run_keeps_no_pages_from_others() -> None:
    suspect, other = reading(300, is_suspect=True), reading(200)
    state = snapshot([suspect, other], num_free_pages=5)
    assert share_pages(state).waiting == {suspect.request_id}
    assert schedule(state).verify == [other.request_id]


def test_requests_without_drafts_need_no_pages_for_trees() -> None:
    assert not room_of(with_slack(0, fixed_length=0, max_nodes=0), num_free_pages=0).max_nodes


def test_padded_rows_count() -> None:
    request = decoding(num_tokens=64, max_nodes=0)
    assert not room_of(request, num_free_pages=0).waiting
    other = decoding(num_tokens=10, max_nodes=0)
    room = room_of(other, request, num_free_pages=1, row_multiple=65)
    assert room.waiting == {request.request_id}  # both write 65 rows


# ---- the plan


def test_preemption_is_a_part_of_the_plan_that_verifies() -> None:
    old, young = full(fixed_length=0), full(fixed_length=0)
    state = snapshot([old, young], num_free_pages=0)
    for plan in (schedule(state), plain_plan(state)):
        assert plan.verify == [old.request_id]
        assert (plan.preempted, plan.waiting) == ([young.request_id], {young.request_id})
    busy = snapshot([old, young], num_free_pages=0, verification_ends_at=NOW + 1)
    assert not schedule(busy).preempted


def test_a_draft_that_has_arrived_is_cut_to_the_pages_that_are_there() -> None:
    request = drafted(num_nodes=8, num_tokens=2 * PAGE_SIZE - 5)
    state = snapshot([request], num_free_pages=0)
    for plan in (schedule(state), plain_plan(state)):
        assert plan.num_nodes == {request.request_id: 5}


def test_drafts_are_requested_only_as_long_as_there_are_pages() -> None:
    request = with_slack(5, fixed_length=8)
    state = snapshot([request], num_free_pages=0)
    assert [ticket.length for call in schedule(state).drafts for ticket in call.tickets] == [5]
    none = with_slack(0, fixed_length=8)
    plan = schedule(snapshot([none], num_free_pages=0))
    assert plan.verify == [none.request_id] and not plan.drafts
