"""The schedule is a pure function: a state of the coordinator in, what happens next out."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from diffuspec.scheduler.schedule import plain_plan, schedule
from diffuspec.speculation.values import Plan, RequestView, Snapshot
from tests.support.snapshots import (
    NOW,
    after_plain_steps,
    cost_model,
    decoding,
    drafted,
    drafter_view,
    drafting,
    in_verification,
    measured_guard,
    reading,
    snapshot,
    stopped,
    unknown_costs,
)

BESIDE: dict[str, Any] = {
    "overlap": True,
    "verification_ends_at": NOW + 0.02,
}  # a verification is in flight
ROWS_COST = cost_model(verify=(0.02, 0.0005))
OWN_DEVICE = cost_model(draft=(0.001, 0.0), interference=0.0)


def plan_of(state: Snapshot) -> Plan:
    """Return the plan of a state. Making it must not change the state."""
    before = copy.deepcopy(state)
    plan = schedule(state)
    assert state == before
    return plan


def ids(requests: Sequence[RequestView]) -> list[str]:
    return [request.request_id for request in requests]


def lengths_of(plan: Plan) -> dict[str, int]:
    return {one.request_id: one.length for call in plan.drafts for one in call.tickets}


# ---- whether to draft


def test_without_a_ready_request_nothing_begins_until_the_next_event():
    plan = plan_of(snapshot([]))
    assert not (plan.verify or plan.drafts) and plan.wait_until == math.inf


def test_where_drafts_pay_all_undrafted_requests_are_drafted_for_in_one_call():
    requests = [decoding(), decoding()]
    plan = plan_of(snapshot(requests))
    assert [[*lengths_of(plan)], plan.verify] == [ids(requests), ()] and len(plan.drafts) == 1


@pytest.mark.parametrize("rightness", [0.02, 0.2])
def test_where_plain_decoding_is_faster_all_requests_go_without_drafts(rightness):
    requests = [decoding(rightness), decoding(rightness)]
    plan = plan_of(snapshot(requests, cost_model(draft=(0.05, 0.001))))
    assert plan.verify == ids(requests) and not plan.drafts
    assert str(plan).endswith("2 x no draft pays")


def test_drafts_are_the_longer_the_more_tokens_are_accepted_of_them():
    poor, good = decoding(0.5), decoding(0.95)
    lengths = lengths_of(plan_of(snapshot([poor, good], cost_model(draft=(0.01, 1e-4)))))
    assert lengths[poor.request_id] < lengths[good.request_id]


def test_costs_that_are_unknown_are_found_out_by_drafts_of_a_middle_length():
    request = decoding()
    plan = plan_of(snapshot([request], unknown_costs()))
    assert lengths_of(plan) == {request.request_id: 10}


@pytest.mark.parametrize(
    ("request_", "changes", "reason"),
    [
        (decoding(fixed_length=0), {}, "speculation is off"),
        (decoding(room=0), {}, "no draft fits: one token is left"),
        (decoding(is_settled=True), {}, "its draft was empty"),
        (decoding(home=None), {"drafters": [drafter_view(is_available=False)]}, "is available"),
        (
            decoding(),
            {"drafters": [drafter_view(call=drafting([decoding()], -1.0))]},
            "its drafter is busy",
        ),
    ],
)
def test_a_request_that_cannot_be_drafted_for_is_verified_with_a_reason(request_, changes, reason):
    plan = plan_of(snapshot([request_], **changes))
    assert plan.verify == [request_.request_id] and str(plan).endswith(reason)


def test_a_fixed_length_is_drafted_even_if_plain_decoding_is_faster():
    request = decoding(0.01, fixed_length=7)
    plan = plan_of(snapshot([request], cost_model(draft=(1.0, 0.0))))
    assert lengths_of(plan) == {request.request_id: 7} and not plan.verify


def test_the_first_steps_under_a_load_are_plain_to_measure_them():
    requests = [decoding() for _ in range(32)]  # a load that was never measured
    plan = plan_of(snapshot(requests))
    assert plan.verify == ids(requests)
    assert str(plan).endswith("32 x plain decoding is measured")


def test_a_guard_that_stopped_one_drafter_stops_the_drafts_of_its_requests_only():
    costs = cost_model(names=("a", "b"))
    guard = stopped(measured_guard(costs), "a", 2)
    lost, going = decoding(drafter="a"), decoding(drafter="b", home=1, held_by=(1,))
    plan = plan_of(snapshot([lost, going], costs, guard=guard))
    assert [*lengths_of(plan)] == [going.request_id]
    assert plan.reasons[lost.request_id].startswith("drafts have lost: none for")


@pytest.mark.parametrize("num_plain", [10, 400])
def test_drafts_that_do_not_pay_are_explored_in_one_percent_of_the_time(num_plain):
    costs = cost_model(draft=(0.05, 0.0))
    guard = after_plain_steps(measured_guard(costs), 1, num_plain)
    request = decoding(0.01)
    plan = plan_of(snapshot([request], costs, guard=guard))
    explores = [ticket.is_exploration for call in plan.drafts for ticket in call.tickets]
    assert explores == ([True] if num_plain == 400 else [])


@pytest.mark.parametrize(
    ("least", "most"),
    [
        ({"room": 20}, {"room": 100}),
        ({"prospects": replace(decoding(0.01).prospects, chance_of_change=0.0)}, {}),
    ],
)
def test_explored_is_the_request_of_which_a_draft_reveals_most(least, most):
    costs = cost_model(draft=(0.05, 0.0))
    guard = after_plain_steps(measured_guard(costs), 2)
    requests = [decoding(0.01, **least), decoding(0.01, **most)]
    plan = plan_of(snapshot(requests, costs, guard=guard))
    assert lengths_of(plan) == {requests[1].request_id: 8}


def test_a_prompt_is_not_read_by_the_drafter_for_the_few_tokens_left():
    costs = cost_model(verify=(0.02, 0.0), draft=(0.01, 1e-3))
    for room, is_drafted in ((3, False), (190, True)):
        request = decoding(held_by=(), num_tokens=1000, room=room)
        assert bool(plan_of(snapshot([request], costs)).drafts) == is_drafted


def test_a_draft_call_reads_no_more_prompts_than_it_has_time_for():
    costs = cost_model(verify=(0.2, 0.0), draft=(0.01, 1e-3), interference=0.0)
    requests = [decoding(held_by=(), num_tokens=100, fixed_length=8) for _ in range(4)]
    for seconds, number in ((math.inf, 4), (0.25, 2), (0.0, 1)):
        plan = plan_of(snapshot(requests, costs, max_reading_seconds=seconds))
        assert len(lengths_of(plan)) == number


# ---- with which drafter


def test_a_request_goes_to_the_drafter_that_holds_its_prefix_else_to_the_idlest():
    drafters = [drafter_view(0), drafter_view(1, num_held=1), drafter_view(2)]
    placed = decoding()
    known, new = decoding(home=None, held_by=(1,)), decoding(home=None, held_by=())
    plan = plan_of(snapshot([placed, known, new], drafters=drafters))
    assert plan.homes == {known.request_id: 1, new.request_id: 2}


def test_a_failed_drafter_is_checked_beside_a_verification_with_a_copy_of_a_draft_request():
    sick = drafter_view(is_available=False, is_check_due=True)
    off, wanting = decoding(fixed_length=0), decoding(home=None)
    plan = plan_of(snapshot([off, wanting], drafters=[sick]))
    assert plan.health_checks == [(0, wanting.request_id)] and not plan.drafts
    assert "check drafter 0" in str(plan)
    assert not plan_of(snapshot([off], drafters=[sick])).health_checks


# ---- verify or wait


@pytest.mark.parametrize(("seconds_left", "waits"), [(0.002, True), (0.05, False)])
def test_a_draft_waits_for_those_under_way_if_verifying_all_together_saves_time(
    seconds_left, waits
):
    request, other = drafted(8), decoding(state="drafting")
    busy = drafter_view(call=drafting([other], seconds_left))
    costs = cost_model(interference=0.0)
    plan = plan_of(snapshot([request, other], costs, drafters=[busy]))
    assert (not plan.verify) == waits
    assert plan.wait_until == (NOW + seconds_left if waits else math.inf)
    values = [score.value for score in plan.considered]
    assert len(values) == 2 and values == sorted(values, reverse=True)
    assert "\n" not in str(plan) and str(plan.considered[0]) in str(plan)


def test_a_call_that_is_overdue_is_not_waited_for():
    request, other = drafted(8), decoding(state="drafting")
    busy = drafter_view(call=drafting([other], -0.008))
    assert plan_of(snapshot([request, other], drafters=[busy])).verify == [request.request_id]


def test_drafts_begin_beside_a_verification_in_flight():
    request, other = decoding(), drafted()._replace(state="verifying")
    plan = plan_of(snapshot([request, other], verification_ends_at=NOW + 0.01))
    assert [*lengths_of(plan)] == [request.request_id] and not plan.verify


def test_a_drafter_of_its_own_drafts_beside_the_verification_of_a_prompt():
    prompt, request = reading(100), decoding()
    costs = cost_model(draft=(0.02, 0.0), interference=0.0)
    plan = plan_of(snapshot([prompt, request], costs))
    assert plan.verify == [prompt.request_id] and [*lengths_of(plan)] == [request.request_id]


def test_an_unavailable_verifier_is_waited_for_while_drafts_are_made():
    request = decoding()
    plan = plan_of(snapshot([request, drafted()], verifier_at=NOW + 5.0))
    assert plan.wait_until == NOW + 5.0 and not plan.verify
    assert [*lengths_of(plan)] == [request.request_id]


def test_requests_of_a_failed_verification_go_by_themselves():
    request, other = drafted(), drafted()
    state = snapshot([request, other], isolated=[[other.request_id]])
    assert plan_of(state).verify == [other.request_id]


# ---- suspects


def test_a_suspect_waits_for_others_and_then_runs_alone_until_it_ends():
    innocent = drafted()
    first, second = drafted(is_suspect=True), drafted(is_suspect=True)
    assert plan_of(snapshot([first, innocent, second])).verify == [innocent.request_id]
    busy = innocent._replace(state="verifying")
    assert not plan_of(snapshot([first, busy, second], verification_ends_at=NOW)).drafts
    plan = plan_of(snapshot([first, second]))
    assert (plan.verify, plan.alone) == ([first.request_id], first.request_id)
    state = snapshot([first._replace(state="verifying"), innocent], alone=first.request_id)
    assert not plan_of(state).verify
    assert plan_of(replace(state, requests=[innocent])).verify == [innocent.request_id]


def test_a_suspect_runs_alone_even_without_models():
    innocent, suspect = drafted(), drafted(is_suspect=True)
    assert plain_plan(snapshot([suspect, innocent])).verify == [innocent.request_id]
    plan = plain_plan(snapshot([suspect, drafted(is_suspect=True)]))
    assert (plan.verify, plan.alone) == ([suspect.request_id], suspect.request_id)
    assert plan.num_running == 1
    assert plain_plan(snapshot([suspect, innocent], alone=suspect.request_id)) == plan


# ---- prompts


def test_prompts_share_the_rows_that_fit_into_the_time_the_oldest_first():
    costs = cost_model(verify=(0.02, 0.001))
    prompts = [reading(50), reading(70), reading(80)]
    plan = plan_of(snapshot(prompts, costs, max_prefill_seconds=0.1))
    assert plan.max_read == {prompts[0].request_id: 50, prompts[1].request_id: 52}
    assert plan.verify == ids(prompts[:2])


def test_no_more_of_a_prompt_is_read_at_once_than_is_allowed():
    prompt = reading(1000)
    assert plan_of(snapshot([prompt])).max_read == {prompt.request_id: 256}


# ---- how much to verify


def test_a_draft_is_cut_to_the_nodes_that_are_worth_their_rows():
    request = drafted(16, reach=0.7)
    plan = plan_of(snapshot([request], ROWS_COST))
    assert 0 < plan.num_nodes[request.request_id] < 16
    assert plan_of(snapshot([request])).num_nodes == {request.request_id: 16}


def test_of_an_exploring_draft_at_least_one_node_is_verified():
    request = drafted(8, reach=0.05)
    assert request.ticket is not None
    exploring = request._replace(ticket=request.ticket._replace(is_exploration=True))
    costs = cost_model(verify=(0.02, 0.1))
    for view, number in ((request, 0), (exploring, 1)):
        assert plan_of(snapshot([view], costs)).num_nodes == {view.request_id: number}


def test_the_dearer_a_first_token_the_fewer_nodes_are_verified_beside_its_prompt():
    request, prompt = drafted(16, reach=0.9), reading(20)
    kept = [
        plan_of(snapshot([request, prompt], ROWS_COST, first_token_price=price)).num_nodes
        for price in (0.0, 5.0)
    ]
    assert kept[0][request.request_id] > kept[1][request.request_id]


# ---- pre-drafts


def test_an_idle_drafter_drafts_ahead_for_the_likeliest_outcomes():
    request = in_verification([0.6, 0.2, 0.001])
    [call] = plan_of(snapshot([request], OWN_DEVICE, **BESIDE)).drafts
    assert [ticket.outcome for ticket in call.tickets] == [
        possible.outcome for possible in request.outcomes
    ]
    assert {ticket.length for ticket in call.tickets} == {8}


@pytest.mark.parametrize(
    ("costs", "changes"),
    [
        (OWN_DEVICE, {"overlap": False}),
        (cost_model(draft=(0.05, 0.0), interference=0.0), {}),  # longer than the verification
        (cost_model(draft=(0.001, 0.0), interference=1.0), {}),  # a shared processor
        (OWN_DEVICE, {"drafters": [drafter_view(may_pre_draft=False)]}),
        (OWN_DEVICE, {"drafters": [drafter_view(is_available=False)]}),
    ],
)
def test_nothing_is_drafted_ahead_where_it_does_not_pay_or_cannot_be(costs, changes):
    request = in_verification([0.3])
    assert not plan_of(snapshot([request], costs, **{**BESIDE, **changes})).drafts


def test_outcomes_that_a_client_asked_for_are_drafted_whatever_they_cost():
    request = in_verification([0.01, 0.001], is_priced=False)
    costs = cost_model(draft=(1.0, 0.0))
    [call] = plan_of(snapshot([request], costs, **BESIDE)).drafts
    assert len(call.tickets) == 2


def test_a_pre_draft_is_no_longer_than_the_room_after_its_outcome():
    request = in_verification([0.9])
    outcomes = [request.outcomes[0]._replace(room=3)]
    state = snapshot([request._replace(outcomes=outcomes)], OWN_DEVICE, **BESIDE)
    assert [ticket.length for ticket in plan_of(state).drafts[0].tickets] == [3]


def test_nothing_is_drafted_ahead_of_a_draft_that_may_tell_that_drafts_do_not_pay():
    request = in_verification()
    assert request.ticket is not None
    exploring = request._replace(ticket=request.ticket._replace(is_exploration=True))
    assert not plan_of(snapshot([exploring], OWN_DEVICE, **BESIDE)).drafts


def test_drafts_and_drafts_ahead_share_a_call():
    waiting, request = decoding(), in_verification()
    [call] = plan_of(snapshot([waiting, request], OWN_DEVICE, **BESIDE)).drafts
    assert [ticket.is_awaited for ticket in call.tickets] == [True, False, False]


def test_with_overlap_the_drafts_of_a_plan_begin_once_its_verification_has():
    prompt, request = reading(100), decoding()
    costs = cost_model(draft=(0.02, 0.0), interference=0.0)
    plan = plan_of(snapshot([prompt, request], costs, overlap=True))
    assert plan.verify == [prompt.request_id]
    assert (plan.drafts, plan.wait_until) == ((), NOW)


# ---- without models


def test_a_plain_plan_verifies_all_requests_and_asks_no_model():
    requests = [decoding(), drafted(), reading(100)]
    assert plain_plan(snapshot(requests)).verify == ids(requests)
    assert not plain_plan(snapshot(requests, **BESIDE)).verify
    state = snapshot(requests, isolated=[ids(requests[:1])])
    assert plain_plan(state).verify == ids(requests[:1])
    assert plain_plan(snapshot(requests, verifier_at=NOW + 1)).wait_until == NOW + 1
