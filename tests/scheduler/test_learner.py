"""What finished calls teach the cost model and the guard."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.types import Verdict
from diffuspec.scheduler.calls import DraftCall, DraftJob, VerifyCall
from diffuspec.scheduler.drafters import DrafterPool
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.request import Request
from diffuspec.speculation.call_costs import Interference
from diffuspec.speculation.costs import CostModel, DraftCosts
from diffuspec.speculation.values import DraftTicket
from diffuspec.telemetry.busy_time import BusyTime
from tests.support.fakes import FAKE_TARGET, make_draft
from tests.support.snapshots import NAME, NOW, cost_model, unknown_costs
from tests.support.stage import fake_drafter, make_request


def learner_of(costs: CostModel) -> Learner:
    return Learner(costs, {NAME: BusyTime()})


def decoding(length: int | None = None) -> Request:
    """Return a request whose prompt is read; length: of its drafts, None: by cost."""
    request = make_request(length=length)
    request.prefill.num_read = request.num_tokens - 1
    request.step.started_at = NOW
    return request


def drafted(num_nodes: int, length: int | None = None) -> Request:
    request = decoding(length)
    draft = make_draft(chain([7] * num_nodes))
    request.take_draft(draft, DraftTicket("a", num_nodes), FAKE_TARGET)
    return request


def draft_call(request: Request, seconds: float, num_unread: int = 0) -> DraftCall:
    """Return a call that has made a draft of 8 tokens."""
    [lane] = DrafterPool.of(fake_drafter()).lanes
    jobs = [DraftJob(request, DraftTicket("a", 8))]
    call = DraftCall(lane, jobs, {request}, num_unread=num_unread)
    call.started_at, call.ended_at = NOW, NOW + seconds
    return call


def verify(
    learner: Learner,
    requests: Sequence[Request],
    verdict: Verdict,
    *,
    begins_at: float = NOW,
    seconds: float = 0.02,
    num_running: int | None = None,
) -> None:
    """Tell of a verification of these requests, by default of all that run."""
    asked = [one.verify_request(256) for one in requests]
    num_rows = sum(1 + one.step.draft.tree.num_nodes for one in requests)
    call = VerifyCall(requests, asked, num_rows, len(requests), num_running or len(requests))
    call.started_at, call.ended_at = begins_at, begins_at + seconds
    call.draft_busy_seconds = learner.busy_seconds(begins_at)
    learner.on_verdicts(call, [verdict] * len(requests))


def is_allowed(learner: Learner) -> bool:
    return not learner.guard.num_stopped_steps(NAME, 1)


def test_a_draft_call_teaches_what_it_would_have_taken_with_no_verification_beside_it():
    learner = learner_of(unknown_costs())
    learner.on_drafts(draft_call(decoding(), 0.03), beside=0.02)
    assert learner.costs.drafters[NAME].seconds(8, 1) == pytest.approx(0.02)


@pytest.mark.parametrize(("num_running", "is_measured"), [(2, True), (3, False)])
def test_the_third_step_in_a_row_of_all_requests_without_drafts_measures_plain_decoding(
    num_running, is_measured
):
    learner = learner_of(unknown_costs())
    requests, wanted = [decoding(), decoding()], []
    for number in range(3):
        begins_at = NOW + 0.02 * number
        verify(learner, requests, Verdict((7,), ()), begins_at=begins_at, num_running=num_running)
        wanted.append(learner.guard.wants_plain(num_running))
    assert wanted == [True, True, not is_measured]


def test_plain_steps_tell_the_speed_of_the_machine_from_the_third_on():
    costs = CostModel({NAME: DraftCosts(Interference.assumed(0.0))})
    for num_rows in (2, 18):
        costs = costs.observe_verification(num_rows, 2, 0.01, {})
    learner = learner_of(costs)
    for number in range(3):
        assert learner.costs.verify_seconds(2, 2) == pytest.approx(0.01)
        verify(learner, [decoding(), decoding()], Verdict((7,), ()), begins_at=NOW + 0.02 * number)
    both = learner.costs.verify_seconds_of((2, 18), 2)
    assert min(both) > 0.0105
    assert learner.costs.plain_seconds(2) == pytest.approx(0.02), "as measured: not counted twice"


def test_prompt_tokens_that_were_cached_are_no_rows_of_a_verification():
    learner = learner_of(unknown_costs())
    request = make_request([7] * 100)
    verify(learner, [request], Verdict((7,), (), num_cached_tokens=70))
    assert learner.costs.is_known_near(30) and not learner.costs.is_known_near(100)


@pytest.mark.parametrize(("num_accepted", "goes_on"), [(0, False), (8, True)])
def test_drafts_go_on_if_as_many_are_accepted_as_the_time_is_worth(num_accepted, goes_on):
    learner = learner_of(cost_model(verify=(0.02, 0.0)))
    verdict = Verdict((7,) * (1 + num_accepted), tuple(range(num_accepted)))
    for number in range(60):
        verify(learner, [drafted(8)], verdict, begins_at=NOW + 0.04 * number, seconds=0.04)
    assert is_allowed(learner) is goes_on


def test_the_reading_of_a_prompt_is_not_held_against_its_first_draft():
    learner = learner_of(cost_model(verify=(0.02, 0.0), draft=(0.01, 0.001)))
    request = drafted(8)
    learner.on_drafts(draft_call(request, 0.518, num_unread=500), beside=0.0)
    verify(learner, [request], Verdict((7,), ()), begins_at=NOW + 0.52)
    assert is_allowed(learner)


def test_drafts_of_lengths_that_clients_chose_are_not_held_against_the_drafter():
    learner = learner_of(cost_model(verify=(0.02, 0.0)))
    for number in range(60):
        asked = [drafted(8, length=8)]
        verify(learner, asked, Verdict((7,), ()), begins_at=NOW + 0.04 * number, seconds=0.04)
    assert is_allowed(learner)


def test_plain_steps_on_either_side_of_a_chosen_draft_are_not_in_a_row():
    learner = learner_of(unknown_costs())
    requests = [decoding(), decoding(), drafted(8, length=8), decoding()]
    for number, request in enumerate(requests):
        verify(learner, [request], Verdict((7,), ()), begins_at=NOW + 0.02 * number)
    assert learner.guard.wants_plain(1)
