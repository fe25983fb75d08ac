"""A request: its states, its drafts, and the prompt chunks it is read in."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.errors import InvalidRequestError, VerifierError
from diffuspec.core.interfaces import TargetInfo
from diffuspec.core.params import PLAIN, SamplingParams, SpeculationParams
from diffuspec.core.types import EMPTY_DRAFT, EMPTY_TREE, Draft, FinishReason, Verdict
from diffuspec.scheduler.calls import DraftCall, DraftJob, Lane
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDrafts
from diffuspec.speculation.outcomes import Outcome
from diffuspec.speculation.values import DraftTicket
from tests.support.fakes import EOS, make_draft
from tests.support.stage import fake_drafter, make_request

pytestmark = pytest.mark.virtual_time

TARGET = TargetInfo(vocab_size=258, max_model_len=64, max_sequences=2, eos_token_ids=(EOS,))


def make(*, length: int | None = 4, max_tokens: int = 16, **speculation: Any) -> Request:
    """Return a request with drafts of a fixed length, or of one that the scheduler chooses."""
    params = SpeculationParams(**{"num_outcomes": 0, **speculation})
    return make_request([1, 2, 3], SamplingParams(max_tokens=max_tokens), params, length)


def ticket(length: int, outcome: Outcome | None = None) -> DraftTicket:
    return DraftTicket("a", length, outcome)


def commit(request: Request, *token_ids: int) -> tuple[int, ...]:
    kept, pieces = request.commit(Verdict(token_ids, ()))
    assert len(kept) == len(pieces)
    return kept


# ---- tokens


def test_a_verdict_is_kept_up_to_the_token_that_ends_the_request():
    request = make()
    assert commit(request, 7, 8) == (7, 8) and request.finish_reason is None
    assert commit(request, 9, EOS, 5) == (9, EOS)
    assert request.prefix.tolist() == [1, 2, 3, 7, 8, 9, EOS]
    assert (request.num_output_tokens, request.num_steps) == (4, 2)
    assert request.finish_reason is FinishReason.STOP


def test_the_room_for_drafts_leaves_a_place_for_the_target_s_own_token():
    request, rooms = make(max_tokens=4), []
    for _ in range(4):
        rooms.append(request.room)
        commit(request, 7)
    assert rooms == [3, 2, 1, 0]


def test_after_tokens_that_end_a_request_there_is_no_room():
    request = make(max_tokens=8)
    assert [request.room_after(tokens) for tokens in ([], [7, 8], [7, EOS], [7] * 9)] == [
        7,
        5,
        0,
        0,
    ]


# ---- states


async def test_the_seconds_of_a_state_add_up_over_its_visits(caplog):
    caplog.set_level(logging.INFO)
    request = make()
    await asyncio.sleep(1)
    request.progress.enter("drafting", "a draft")
    await asyncio.sleep(2)
    request.progress.enter("verifying", "the verifier")
    await asyncio.sleep(4)
    request.progress.enter("drafting", "another draft")
    await asyncio.sleep(8)
    request.close("length")
    spent = "(waiting 1.000 s, drafting 10.000 s, verifying 4.000 s)"
    assert caplog.messages == [f"request a: 3 prompt tokens, 0 output tokens, length {spent}"]


async def test_a_status_tells_the_state_and_for_how_long():
    request = make()
    request.progress.enter("drafting", "a draft")
    await asyncio.sleep(2)
    request.progress.enter("drafting", "drafter 1")
    status = request.status(time.monotonic())
    assert (status.state, status.waits_for, status.seconds_in_state) == ("drafting", "drafter 1", 2)


async def test_a_finished_request_stays_finished():
    request = make()
    request.close("length")
    await asyncio.sleep(1)
    request.progress.enter("verifying", "the verifier")
    status = request.status(time.monotonic())
    assert (status.state, status.waits_for, status.seconds_in_state) == ("finished", "nothing", 1)
    assert request.is_finished


# ---- reading the prefix


def read(request: Request, limit: int, *num_unread: int) -> list[bool]:
    """Take a verdict for each number of unread tokens; return whether it verified the draft."""
    return [
        request.prefill.take(request.verify_request(limit), Verdict((5,), (), num_unread_tokens=n))
        for n in num_unread
    ]


def test_a_long_prompt_is_read_within_the_limit_and_the_rest_with_the_first_step():
    request = make()
    asked = request.verify_request(1)
    assert asked.prefix.tolist() == [1, 2, 3] and asked.max_read_tokens == 1
    assert read(request, 1, 2, 1, 0) == [False, False, True]
    assert request.prefill.num_read == 2


def test_a_verifier_that_reads_no_further_is_asked_without_a_limit():
    request = make()
    read(request, 1, 2, 1)
    assert request.verify_request(1).max_read_tokens == 1
    read(request, 1, 2)
    assert request.verify_request(1).max_read_tokens is None
    read(request, 1, 0)
    assert request.verify_request(1).max_read_tokens == 1


@pytest.mark.parametrize("num_unread", [3, 7])
def test_a_verdict_that_leaves_the_whole_prefix_unread_is_refused(num_unread):
    with pytest.raises(VerifierError, match=f"left {num_unread} tokens unread of 3"):
        read(make(), 1, num_unread)


def test_what_was_cached_is_told_by_the_first_verdict():
    request = make()
    for number in (1, 2):
        asked = request.verify_request(1)
        request.prefill.take(asked, Verdict((5,), (), num_cached_tokens=number))
    assert request.prefill.num_cached_tokens == 1


@pytest.mark.parametrize(("salt", "counted"), [(None, 130), ("x", 128)])
def test_cached_tokens_of_a_request_with_a_salt_are_counted_in_blocks(salt, counted):
    request = make_request(range(3, 143), SamplingParams(cache_salt=salt), PLAIN)
    verdict = Verdict((5,), (), num_cached_tokens=130)
    request.prefill.take(request.verify_request(200), verdict)
    assert request.prefill.num_cached_tokens == counted


def test_committed_tokens_count_as_read_until_the_cache_is_lost():
    request = make()
    assert request.prefill.num_unread == 3
    commit(request, 7, 8)
    assert request.prefill.num_unread == 1
    request.prefill.num_read = 0
    assert read(request, 2, 3, 1) == [False, False] and request.prefill.num_unread == 1


# ---- drafts


def test_a_draft_deeper_than_asked_is_cut():
    request = make()
    draft = Draft(chain([5, 6, 7, 8]), (-0.1, -0.2, -0.3, -0.4), 4, (5, 6, 7, 8), (5, 6, 7, 8))
    request.take_draft(draft, ticket(2), TARGET)
    assert request.step.draft.tree == chain([5, 6])
    assert request.step.draft.confidences == (-0.1, -0.2)
    assert request.step.draft.drafter_choices == (5, 6)
    assert request.step.is_settled and request.step.num_draft_tokens == 2


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (make_draft(chain(range(5))), "at most 4 nodes"),
        (Draft(chain([1, 2]), (0.0,), 2), "as many confidences, got 2 and 1"),
        (make_draft(chain([258])), "below 258, got 258"),
        (make_draft(chain([-1])), "0 or more"),
    ],
)
def test_a_wrong_draft_is_refused(draft, message):
    request = make(max_nodes=4)
    with pytest.raises(InvalidRequestError, match=message):
        request.take_draft(draft, ticket(4), TARGET)
    assert request.step.draft is EMPTY_DRAFT and not request.step.is_settled


def test_a_step_that_skips_its_draft_says_why():
    request = make()
    request.take_draft(make_draft(chain([5, 6])), ticket(2), TARGET)
    request.step.skip("drafter_error")
    assert request.verify_request(8).tree == EMPTY_TREE
    assert (request.step.num_draft_tokens, request.step.fallback) == (0, "drafter_error")


def test_only_the_likeliest_nodes_of_a_draft_are_verified():
    request = make(length=None)
    request.take_draft(make_draft(chain([5, 6, 7])), ticket(3), TARGET)
    request.keep_nodes(2)
    assert request.verify_request(8).tree == chain([5, 6])


def test_a_draft_of_which_no_node_is_worth_its_row_is_not_verified():
    request = make(length=None)
    request.take_draft(make_draft(chain([5, 6, 7])), ticket(3), TARGET)
    request.keep_nodes(0)
    assert request.verify_request(8).tree == EMPTY_TREE


def test_a_draft_for_an_outcome_is_asked_for_behind_its_tokens():
    request = make(num_outcomes=4)
    request.take_draft(make_draft(chain([7, 9])), ticket(2), TARGET)
    asked = request.draft_request(ticket(4, Outcome(0, 8)))
    assert asked.prefix.tolist() == [1, 2, 3, 7, 8]
    assert asked.num_draft_tokens == 4 + 1, "the token after a full acceptance is one of them"
    assert asked.num_alternatives > 0


def test_outcomes_of_a_draft_that_was_dropped_are_not_drafted_for():
    request = make(num_outcomes=4)
    draft = replace(make_draft(chain([7, 9])), alternatives=(((8, -0.1),),) * 3)
    request.take_draft(draft, ticket(2), TARGET)
    request.expect_outcomes()
    request.state = "verifying"
    assert request.view(0, ()).outcomes
    request.step.skip(None)  # after an outage the verifier has read only a part of the prefix
    assert not request.view(0, ()).outcomes


def test_a_request_at_which_drafters_were_lost_is_not_drafted_for_ahead(caplog):
    caplog.set_level(logging.CRITICAL)
    request = make(num_outcomes=4)
    draft = replace(make_draft(chain([7, 9])), alternatives=(((8, -0.1),),) * 3)
    request.take_draft(draft, ticket(2), TARGET)
    request.expect_outcomes()
    request.state = "verifying"
    for _ in range(2):
        assert request.view(0, ()).outcomes
        request.on_draft_loss()
    assert not request.view(0, ()).outcomes


def test_a_request_that_waits_for_a_pre_draft_waits_for_one_draft_of_its_call():
    request = make(num_outcomes=4)
    tickets = [ticket(4, Outcome(-1, token)) for token in (7, 8)]
    ahead = request.pre_drafts = PreDrafts(())
    jobs = [DraftJob(request, one, ahead, ahead.send(one)) for one in tickets]
    ahead.happened = tickets[1].outcome
    call = DraftCall(Lane(fake_drafter(), "drafter"), jobs, awaited={request})
    assert call.view.awaited == tickets[1:]


def test_an_adaptive_drafter_weight_follows_the_side_that_was_right():
    draft = Draft(chain([5]), (0.0,), 1, (5,), (6,))
    for weight, expected in (("adaptive", True), (0.3, False)):
        request = make(drafter_weight=weight)
        before = request.draft_request(ticket(1)).drafter_weight
        request.take_draft(draft, ticket(1), TARGET)
        request.adapt(Verdict((5, 7), (0,)))
        assert (request.draft_request(ticket(1)).drafter_weight > before) is expected


def test_a_step_without_a_draft_leaves_the_drafter_weight_alone():
    request = make(drafter_weight="adaptive")
    before = request.draft_request(ticket(1)).drafter_weight
    request.adapt(Verdict((5,), ()))
    assert request.draft_request(ticket(1)).drafter_weight == before
