"""What a draft server knows of one request: verdicts, and what earlier drafts are still worth."""

from __future__ import annotations

from typing import Literal

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.params import GREEDY
from diffuspec.core.types import Draft, DraftTree
from diffuspec.draft_server.request import EngineRequest
from diffuspec.speculation.acceptance import SharedAcceptance


@pytest.fixture
def request_() -> EngineRequest:
    return make_request(0.5)


def make_request(drafter_weight: float | Literal["adaptive"]) -> EngineRequest:
    request = EngineRequest("e/a", 3, SharedAcceptance(16), drafter_weight, GREEDY)
    request.advance(0, [1, 2, 3])
    return request


def draft_of(*token_ids: int) -> Draft:
    return Draft(chain(token_ids), (-0.1,) * len(token_ids), len(token_ids))


@pytest.mark.parametrize(
    ("committed", "accepted"), [([9], 0), ([5, 9], 1), ([5, 6, 7], 2), ([5, 6, 7, 8], 3)]
)
def test_the_tokens_of_a_step_tell_what_was_accepted(
    request_: EngineRequest, committed: list[int], accepted: int
):
    request_.send(draft_of(5, 6, 7))
    verdict = request_.advance(3, committed)
    assert verdict is not None and verdict.num_accepted_tokens == accepted
    assert verdict.token_ids == tuple(committed)
    assert request_.prefix.tolist() == [1, 2, 3, *committed]


def test_the_branch_of_a_tree_that_was_accepted_is_found(request_: EngineRequest):
    request_.send(Draft(DraftTree((5, 6, 7), (-1, -1, 1)), (-1.0, -1.0, -1.0), 2))
    verdict = request_.advance(3, [6, 7, 4])
    assert verdict is not None and verdict.accepted_nodes == (1, 2)


@pytest.mark.parametrize(
    ("committed", "left"),
    [([5], (6, 7, 8)), ([5, 6], (7, 8)), ([5, 6, 7, 8], ()), ([9], ()), ([5, 9], ())],
)
def test_the_rest_of_a_draft_holds_where_the_engine_goes_on_as_it_said(
    request_: EngineRequest, committed: list[int], left: tuple[int, ...]
):
    request_.keep(3, (), draft_of(5, 6, 7, 8), 4)
    request_.advance(3, committed)
    made, worth = request_.best()
    assert (made.draft.tree.token_ids if made is not None else ()) == left
    assert (made is None or made.is_rest) and (worth > 0) == bool(left)


def test_a_draft_for_an_outcome_is_the_next_draft_if_it_happens(request_: EngineRequest):
    request_.keep(3, (5, 9), draft_of(4, 4), 2)
    assert request_.best()[0] is None
    request_.advance(3, [5, 9])
    made, _ = request_.best()
    assert made is not None and not made.is_rest and made.draft.tree.token_ids == (4, 4)


def test_a_draft_that_comes_late_is_worth_what_is_left_of_it(request_: EngineRequest):
    request_.advance(3, [5, 6])
    request_.keep(3, (), draft_of(5, 6, 7), 3)
    request_.keep(3, (5,), draft_of(8, 8), 2)
    made, _ = request_.best()
    assert made is not None and made.draft.tree.token_ids == (7,)


def test_an_engine_that_goes_back_has_no_drafts_of_before(request_: EngineRequest):
    held = request_.prefix
    request_.keep(3, (), draft_of(5, 6), 2)
    request_.advance(2, [8, 8])
    assert request_.prefix.tolist() == [1, 2, 8, 8] and request_.best()[0] is None
    assert held.tolist() == [1, 2, 3]  # workers may hold it still


def test_prefixes_are_read_only_and_stay_as_they_were(request_: EngineRequest):
    before = request_.prefix
    for number in range(300):
        request_.advance(request_.num_tokens, [number % 7])
    assert before.tolist() == [1, 2, 3] and request_.num_tokens == 303
    with pytest.raises(ValueError, match="read-only"):
        request_.prefix[0] = 1


def test_an_adaptive_weight_moves_to_the_side_that_was_right():
    request = make_request("adaptive")
    before = request.draft_request((), 4).drafter_weight
    request.send(Draft(chain([5]), (-0.1,), 1, (6,), (5,)))
    request.advance(3, [5, 9])
    assert request.draft_request((), 4).drafter_weight < before


def test_outcomes_that_are_drafted_for_are_not_named_again(request_: EngineRequest):
    sent = Draft(
        chain([5]), (-0.1,), 1, alternatives=(((6, -1.0), (7, -2.0)), ((8, -0.5), (9, -3.0)))
    )
    request_.send(sent)
    found = {tokens for _, tokens in request_.outcomes()}
    assert {(6,), (7,), (5, 8), (5, 9)} == found
    request_.keep(3, (5, 8), draft_of(1), 1)
    assert {tokens for _, tokens in request_.outcomes()} == {(6,), (7,), (5, 9)}


@pytest.mark.parametrize(("left", "limit", "room"), [(10, 4, 4), (3, 8, 2), (1, 8, 0), (0, 8, 0)])
def test_a_draft_leaves_room_for_the_target_s_own_token(
    request_: EngineRequest, left: int, limit: int, room: int
):
    request_.num_left, request_.max_draft_tokens = left, limit
    assert request_.room == room
    assert request_.room_after(1) == max(min(left - 2, limit), 0)
