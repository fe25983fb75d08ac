"""The schedule as tables: a state of the coordinator in, a plan out, without a clock."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diffuspec.adl.baseline import Baseline
from diffuspec.adl.cost_model import DraftCosts
from diffuspec.algorithm.draft_tree import chain
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Draft, Verdict
from diffuspec.scheduler.calls import UNNAMED
from diffuspec.scheduler.plan import Plan, Snapshot
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.schedule import plain_plan, schedule
from tests.support.snapshots import (
    NOW,
    cost_model,
    decoding,
    drafted,
    drafting_call,
    in_verification,
    measured_baseline,
    pool_of_names,
    reading,
    save_up_for_trials,
    snapshot,
    stop_drafts,
    verifying_call,
)
from tests.support.stage import PROMPT

OFF = SpeculationParams(policy="off", num_outcomes=0)
FIXED = SpeculationParams(policy="fixed", num_draft_tokens=4, num_outcomes=0)


def drafted_for(plan: Plan) -> list[Request]:
    return [request for call in plan.drafts for request in call.lengths]


def lengths_of(plan: Plan) -> list[int]:
    return [length for call in plan.drafts for length in call.lengths.values()]


def trials_in(plan: Plan) -> list[Request]:
    return [request for call in plan.drafts for request in call.trial_steps]


def num_ahead(plan: Plan) -> int:
    return sum([len(call.jobs) for call in plan.drafts])


def figures_of(plan: Plan) -> dict[str, Any]:
    """Return all that a plan says, to compare it with another."""
    return {
        "verify": [*plan.verify],
        "nodes": plan.num_nodes,
        "drafts": [(one.lane, one.lengths, one.ends_at, len(one.jobs)) for one in plan.drafts],
        "trials": [one.trial_steps for one in plan.drafts],
        "wait_until": plan.wait_until,
        "rate": plan.rate,
        "considered": [*plan.considered],
    }


# ---- whether to draft


def test_without_a_ready_request_nothing_begins_until_the_next_event() -> None:
    plan = schedule(snapshot([]))
    assert not plan.verify and not plan.drafts and plan.wait_until == math.inf


def test_nothing_begins_while_a_client_may_be_about_to_ask_again() -> None:
    plan = schedule(snapshot([decoding(), drafted()], may_begin=False))
    assert not plan.verify and not plan.drafts and plan.wait_until == NOW


def test_where_drafts_pay_all_undrafted_requests_are_drafted_for_in_one_call() -> None:
    requests = [decoding() for _ in range(3)]
    plan = schedule(snapshot(requests))
    assert not plan.verify and len(plan.drafts) == 1
    assert drafted_for(plan) == requests


@pytest.mark.parametrize("rightness", [0.05, 0.3])
def test_where_plain_decoding_is_faster_all_requests_go_without_drafts(rightness) -> None:
    requests = [decoding(rightness=rightness) for _ in range(3)]
    plan = schedule(snapshot(requests, cost_model(verify=(0.02, 0.015), draft=(0.02, 0.001))))
    assert plan.verify == requests and not plan.drafts


def test_drafts_are_the_longer_the_more_tokens_are_accepted_of_them() -> None:
    costs = cost_model(verify=(0.02, 0.001), draft=(0.01, 0.0005))
    lengths = [
        lengths_of(schedule(snapshot([decoding(rightness=one)], costs)))[0]
        for one in (0.6, 0.8, 0.95)
    ]
    assert lengths == sorted({*lengths})


def test_requests_that_want_no_drafts_are_verified_at_once() -> None:
    requests = [decoding(OFF) for _ in range(2)]
    plan = schedule(snapshot(requests))
    assert plan.verify == requests and not plan.drafts


def test_a_fixed_length_is_drafted_even_if_plain_decoding_is_faster() -> None:
    plan = schedule(snapshot([decoding(FIXED, rightness=0.1)], cost_model(verify=(0.02, 0.1))))
    assert not plan.verify and lengths_of(plan) == [4]


@pytest.mark.parametrize("speculation", [FIXED, SpeculationParams(num_outcomes=0)])
def test_without_an_available_drafter_requests_go_without_drafts(speculation) -> None:
    requests, pool = [decoding(speculation) for _ in range(2)], pool_of_names()
    pool.lanes[0].breaker.failed(NOW)
    plan = schedule(snapshot(requests, pool=pool))
    assert plan.verify == requests and not plan.drafts


def test_the_first_steps_under_a_load_are_plain_to_measure_them() -> None:
    request = decoding()
    plan = schedule(snapshot([request], baseline=Baseline([UNNAMED])))
    assert plan.verify == [request] and not plan.drafts


def test_a_guard_that_stopped_one_drafter_stops_the_drafts_of_its_requests_only() -> None:
    pool, costs = pool_of_names("good", "bad"), cost_model(names=("good", "bad"))
    baseline = measured_baseline(costs)
    stop_drafts(baseline, "bad", 2)
    good, bad = decoding(drafter="good"), decoding(drafter="bad")
    plan = schedule(snapshot([good, bad], costs, pool, baseline=baseline))
    assert drafted_for(plan) == [good]


@pytest.mark.parametrize("has_saved", [False, True])
def test_drafts_that_do_not_pay_are_tried_once_the_time_for_it_is_saved_up(has_saved) -> None:
    costs = cost_model(verify=(0.02, 0.004))
    baseline = measured_baseline(costs)
    if has_saved:
        save_up_for_trials(baseline, 2)
    requests = [decoding(rightness=0.05) for _ in range(2)]
    plan = schedule(snapshot(requests, costs, baseline=baseline))
    assert len(trials_in(plan)) == len(drafted_for(plan)) == has_saved
    assert trials_in(plan) == drafted_for(plan)


def test_a_trial_is_made_of_the_request_without_drafts_that_has_the_most_tokens_to_come() -> None:
    costs = cost_model(verify=(0.02, 0.004))
    baseline = measured_baseline(costs)
    save_up_for_trials(baseline, 4)
    requests = [decoding(rightness=0.05) for _ in range(4)]
    for request, num_tokens in zip(requests, (160, 1, 110, 190), strict=True):
        for _ in range(num_tokens):
            request.commit(Verdict((1,), ()))
            request.expectation.observe_no_draft()
    assert trials_in(schedule(snapshot(requests, costs, baseline=baseline))) == [requests[1]]


def test_a_request_without_a_draft_so_far_gets_its_trial_before_one_with_a_recent_draft() -> None:
    costs = cost_model(verify=(0.02, 0.004))
    tried, new = decoding(rightness=0.05), decoding(rightness=0.05)
    tried.expectation.observe_draft(Draft(chain([5]), (-9.0,), 1), 1)
    for _ in range(9):
        tried.expectation.observe_no_draft()
    baseline = measured_baseline(costs)
    save_up_for_trials(baseline, 2)
    assert trials_in(schedule(snapshot([tried, new], costs, baseline=baseline))) == [new]


# ---- what waits for what


@pytest.mark.parametrize(
    ("seconds_left", "rate", "waits"),
    [
        (0.002, 400, True),  # one verification instead of two
        (0.5, 25, False),  # where drafts take so long, a second is worth fewer tokens
        (-0.02, 400, False),  # it has taken more than twice as long as expected
    ],
)
def test_a_draft_waits_for_those_under_way_if_verifying_all_together_saves_time(
    seconds_left, rate, waits
) -> None:
    ready, pool = drafted(8), pool_of_names()
    drafting_call(pool.lanes[0], [decoding()], seconds_left)
    plan = schedule(snapshot([ready], pool=pool, rate=rate))
    assert [*plan.verify] == ([] if waits else [ready])
    assert plan.wait_until == pytest.approx(NOW + seconds_left if waits else math.inf)


@pytest.mark.parametrize(
    ("interference", "waits"),
    [(1.0, True), (0.0, False)],  # one processor; or each role has its own
)
def test_a_request_without_a_draft_waits_for_drafts_that_its_verification_would_hold_up(
    interference, waits
) -> None:
    plain, pool = decoding(OFF), pool_of_names()
    drafting_call(pool.lanes[0], [decoding()], 0.02)
    plan = schedule(snapshot([plain], cost_model(interference=interference), pool))
    assert [*plan.verify] == ([] if waits else [plain])


@pytest.mark.parametrize(("seconds_left", "waits"), [(0.008, True), (0.03, False)])
def test_requests_wait_for_a_busy_drafter_to_draft_beside_the_verification_of_its_drafts(
    seconds_left, waits
) -> None:
    costs = cost_model(verify=(0.02, 0.0002), draft=(0.012, 0.0), interference=0.0)
    pool, idle = pool_of_names(), [decoding() for _ in range(8)]
    drafting_call(pool.lanes[0], [decoding() for _ in range(8)], seconds_left)
    plan = schedule(snapshot(idle, costs, pool))
    assert [*plan.verify] == ([] if waits else idle)


def test_drafts_begin_beside_a_verification_under_way() -> None:
    request, call = decoding(), verifying_call([drafted(8)], 0.015)
    plan = schedule(snapshot([request], cost_model(interference=0.0), verification=call))
    assert drafted_for(plan) == [request]
    assert not plan.verify, "there is one verification at a time"


def test_an_unavailable_verifier_is_waited_for_while_drafts_are_made() -> None:
    request = decoding()
    plan = schedule(snapshot([drafted(8), request], verifier_at=NOW + 1))
    assert not plan.verify and plan.wait_until == NOW + 1
    assert drafted_for(plan) == [request]


def test_requests_of_a_failed_verification_go_by_themselves() -> None:
    isolated = [decoding()]
    plan = schedule(snapshot([decoding(), drafted()], isolated=isolated))
    assert plan.verify is isolated and not plan.drafts
    busy = schedule(snapshot([], isolated=isolated, verification=verifying_call([drafted()], 0.01)))
    assert not busy.verify


# ---- the nodes that are verified


def num_kept(*others: Request, **changes: Any) -> int:
    """Return how many nodes of a draft of 20 less and less likely ones are verified."""
    request = drafted(20, confidence=-0.08)
    plan = schedule(
        snapshot([request, *others], cost_model(verify=(0.02, 0.003)), rate=100, **changes)
    )
    assert request in plan.verify
    return plan.num_nodes[request]


def test_a_draft_is_cut_to_the_nodes_that_are_worth_their_rows() -> None:
    assert 1 <= num_kept() < 20


@pytest.mark.parametrize(("trial_steps", "num_nodes"), [(0.0, 0), (0.5, 1)])
def test_of_a_trial_at_least_one_node_is_verified(trial_steps: float, num_nodes: int) -> None:
    request = drafted(4, confidence=-4.0)
    request.step.trial_steps = trial_steps
    plan = schedule(snapshot([request], cost_model(verify=(0.02, 0.003)), rate=100))
    assert plan.num_nodes == {request: num_nodes}


def test_the_dearer_a_first_token_the_fewer_nodes_are_verified_beside_its_prompt() -> None:
    prices = (0, 0.1, 0.2)
    kept = [num_kept(reading(20), first_token_price=price) for price in prices]
    assert kept[0] == num_kept() and kept == sorted({*kept}, reverse=True)


def test_a_draft_that_would_delay_a_first_token_too_long_waits_for_it() -> None:
    prompt, draft = reading(20), drafted(20)
    costs = cost_model(verify=(0.02, 0.002))
    plan = schedule(snapshot([prompt, draft], costs, first_token_price=10, rate=100))
    assert plan.verify == [prompt]


def test_all_of_a_draft_is_verified_where_rows_cost_nothing() -> None:
    request = drafted(20)
    assert schedule(snapshot([request])).num_nodes == {request: 20}


# ---- first tokens


@pytest.mark.parametrize(("price", "is_read_first"), [(0, False), (10, True)])
def test_a_prompt_is_read_before_a_draft_call_if_its_first_token_is_worth_the_delay(
    price, is_read_first
) -> None:
    prompt = reading(100)
    requests = [prompt, decoding(), decoding()]
    plan = schedule(snapshot(requests, first_token_price=price))
    assert (prompt in plan.verify) is is_read_first
    assert bool(plan.drafts) is not is_read_first


@pytest.mark.parametrize(
    ("seconds_per_row", "sizes", "read"),
    [
        (0.0, [400, 20, 30], [20, 30, 400]),  # a target that reads 450 tokens as fast as 20
        (0.1, [400, 20, 30], [20, 30]),
        (0.001, [20, 40], [20, 40]),  # 40 ms more, where a verification takes at least a second
        (0.1, [500, 20, 100, 200, 300, 400], [20, 100, 200]),
    ],
)
def test_short_prompts_do_not_wait_for_much_longer_ones(seconds_per_row, sizes, read) -> None:
    requests = [reading(size) for size in sizes]
    plan = schedule(snapshot(requests, cost_model(verify=(1.0, seconds_per_row))))
    assert sorted(one.num_tokens for one in plan.verify) == read


def test_without_a_price_of_first_tokens_all_prompts_are_read_together() -> None:
    requests = [reading(size) for size in (400, 20, 30)]
    plan = schedule(snapshot(requests, cost_model(verify=(1.0, 0.1)), first_token_price=0))
    assert {*plan.verify} == {*requests}


@pytest.mark.parametrize(("waited_seconds", "is_read"), [(1.0, False), (100.0, True)])
def test_no_prompt_waits_for_longer_than_it_takes_to_read_it(waited_seconds, is_read) -> None:
    long, short = reading(400), reading(20)
    long.step.started_at = NOW - waited_seconds
    plan = schedule(snapshot([short, long], cost_model(verify=(1.0, 0.1))))
    assert (long in plan.verify) is is_read


def test_requests_without_drafts_are_verified_beside_prompts() -> None:
    requests = [reading(100), decoding(OFF), decoding(rightness=0.05)]
    costs = cost_model(verify=(0.02, 0.01))
    assert {*schedule(snapshot(requests, costs, first_token_price=10)).verify} == {*requests}


@pytest.mark.parametrize(("interference", "begins"), [(1.0, False), (0.0, True)])
def test_drafts_begin_together_with_the_reading_of_a_prompt_if_they_do_not_delay_it(
    interference, begins
) -> None:
    prompt, request = reading(100), decoding()
    costs = cost_model(interference=interference)
    plan = schedule(snapshot([prompt, request], costs, first_token_price=10))
    assert prompt in plan.verify
    assert drafted_for(plan) == ([request] if begins else [])


@pytest.mark.parametrize("price", [1, 10])
def test_a_drafter_of_its_own_drafts_beside_the_verification_of_a_prompt(price) -> None:
    request, call = decoding(), verifying_call([reading(100)], 0.015)
    costs = cost_model(interference=0.0)
    plan = schedule(snapshot([request], costs, verification=call, first_token_price=price))
    assert drafted_for(plan) == [request]


def test_prompts_are_read_together_although_no_plan_has_had_a_rate_yet() -> None:
    requests = [reading(30) for _ in range(4)]
    assert {*schedule(snapshot(requests, rate=0.0)).verify} == {*requests}


def test_a_draft_is_not_put_off_for_prompts_for_ever() -> None:
    request = drafted(20)
    request.step.started_at = NOW - 100
    costs = cost_model(verify=(0.02, 0.002))
    plan = schedule(snapshot([reading(20), request], costs, first_token_price=10, rate=100))
    assert request in plan.verify


@pytest.mark.parametrize(("max_draft_seconds", "number"), [(10.0, 1), (60.0, 2), (1e4, 3)])
def test_a_draft_call_reads_no_more_prompts_than_it_has_time_for(max_draft_seconds, number) -> None:
    requests = [decoding() for _ in range(3)]
    seconds_per_prompt = 6.0
    costs = cost_model(verify=(100.0, 0.0), draft=(0.01, seconds_per_prompt / len(PROMPT)))
    state = snapshot(requests, costs, max_draft_seconds=max_draft_seconds)
    for lane in state.lanes:
        lane.known.clear()
    assert len(drafted_for(schedule(state))) == number


@pytest.mark.parametrize(("max_prefill_tokens", "number"), [(2, 1), (10, 2), (256, 3)])
def test_a_drafter_of_unknown_costs_reads_no_more_than_the_target(
    max_prefill_tokens, number
) -> None:
    requests = [decoding() for _ in range(3)]
    costs = cost_model()
    costs.drafters[UNNAMED] = DraftCosts(1.0)
    state = snapshot(requests, costs, max_prefill_tokens=max_prefill_tokens)
    for lane in state.lanes:
        lane.known.clear()
    assert len(drafted_for(schedule(state))) == number


@pytest.mark.parametrize(("speculation", "number"), [(SpeculationParams(), 2), (FIXED, 4)])
def test_a_draft_call_reads_no_more_prompts_than_the_guard_could_bear(speculation, number) -> None:
    requests = [decoding(speculation) for _ in range(4)]
    costs = cost_model()
    for num_prompts in (1, 100):
        costs.drafters[UNNAMED].reading.observe(num_prompts * len(PROMPT), num_prompts * 0.045)
    state = snapshot(requests, costs)
    for lane in state.lanes:
        lane.known.clear()
    assert len(drafted_for(schedule(state))) == number


# ---- drafts ahead


def verifying(num_outcomes: Any = "auto", seconds_left: float = 0.05, **changes: Any) -> Snapshot:
    call = verifying_call([in_verification(num_outcomes)], seconds_left)
    costs = cost_model(interference=0.0)
    return snapshot([], costs, verification=call, **{"overlap": True, **changes})


def test_an_idle_drafter_drafts_ahead_while_a_verification_is_in_flight() -> None:
    plan = schedule(verifying())
    assert num_ahead(plan) > 0 and not drafted_for(plan)


def test_nothing_is_drafted_ahead_of_a_trial_that_may_tell_that_drafts_do_not_pay() -> None:
    state = verifying()
    assert state.verification is not None
    state.verification.requests[0].step.trial_steps = 0.5
    assert not schedule(state).drafts


def test_nothing_is_drafted_ahead_without_overlap() -> None:
    assert not schedule(verifying(overlap=False)).drafts


def test_nothing_is_drafted_ahead_of_a_verification_that_is_yet_to_begin() -> None:
    request = in_verification()
    plan = schedule(snapshot([request], cost_model(interference=0.0), overlap=True))
    assert plan.verify == [request] and not plan.drafts
    assert plan.wait_until == NOW, "they are looked for once it has begun"


def test_the_drafts_of_a_plan_begin_once_its_verification_has() -> None:
    requests = [decoding(rightness=0.9 + n / 100) for n in range(6)]
    costs, pool = cost_model(draft=(0.018, 0.0), interference=0.0), pool_of_names()
    drafts = [drafted() for _ in range(6)]
    before = schedule(snapshot([*drafts, *requests], costs, pool, overlap=True))
    assert before.verify and not before.drafts and before.wait_until == NOW
    call = verifying_call(before.verify, 0.02)
    left = [one for one in requests if one not in before.verify]
    state = snapshot(left, costs, pool, verification=call, overlap=True)
    assert left and drafted_for(schedule(state)) == left
    state.home = lambda _: None
    assert not schedule(state).drafts, "their drafter is gone"


def test_no_outcome_is_drafted_ahead_that_the_verification_would_not_outlast() -> None:
    assert not schedule(verifying(seconds_left=0.0)).drafts
    assert num_ahead(schedule(verifying(4, seconds_left=0.0))) == 4, "those asked for are"


def test_drafts_and_drafts_ahead_share_a_call() -> None:
    request, call = decoding(), verifying_call([in_verification()], 0.05)
    costs = cost_model(interference=0.0)
    plan = schedule(snapshot([request], costs, verification=call, overlap=True))
    assert len(plan.drafts) == 1 and drafted_for(plan) == [request] and num_ahead(plan) > 0


def test_a_drafter_that_failed_at_drafts_ahead_makes_no_more_of_them_for_a_while() -> None:
    pool = pool_of_names()
    pool.lanes[0].pre_draft_breaker.failed(NOW)
    assert not schedule(verifying(pool=pool)).drafts


@pytest.mark.parametrize(("num_tokens", "begins"), [(100, True), (300, False)])
def test_an_idle_drafter_reads_a_prompt_beside_the_last_part_that_the_target_reads(
    num_tokens, begins
) -> None:
    request = reading(num_tokens)
    costs = cost_model(interference=0.0)
    call = verifying_call([request], 0.02)
    plan = schedule(snapshot([], costs, verification=call, overlap=True))
    assert drafted_for(plan) == ([request] if begins else [])
    assert not any(one.awaited for one in plan.drafts)


# ---- the plan itself


def test_a_plain_plan_verifies_all_requests_and_asks_no_model() -> None:
    requests = [decoding(), drafted(), reading(100)]
    state = snapshot(requests)
    state.costs = state.baseline = None  # type: ignore[assignment]
    plan = plain_plan(state)
    assert plan.verify == requests and not plan.drafts


def test_a_plain_plan_waits_for_an_unavailable_verifier() -> None:
    plan = plain_plan(snapshot([decoding()], verifier_at=NOW + 1))
    assert not plan.verify and plan.wait_until == NOW + 1


@pytest.mark.parametrize("overlap", [False, True])
def test_scheduling_changes_nothing_so_that_the_same_state_gives_the_same_plan(overlap) -> None:
    pool = pool_of_names("a", "b")
    costs = cost_model(verify=(0.02, 0.0005), names=("a", "b"), interference=0.5)
    baseline = measured_baseline(costs)
    save_up_for_trials(baseline, 8)
    ahead = verifying_call([in_verification()], 0.05)
    ahead.requests[0].drafter = "a"
    ready = [drafted(8, drafter="a"), decoding(drafter="b"), decoding(OFF), reading(100)]
    for verification in (None, ahead):
        state = snapshot(
            ready, costs, pool, baseline=baseline, verification=verification, overlap=overlap
        )
        assert figures_of(schedule(state)) == figures_of(schedule(state))


def test_a_request_whose_long_prompt_no_drafter_has_read_gets_a_trial_all_the_same():
    costs = cost_model(verify=(0.02, 0.004))
    for _ in range(5):
        costs.drafters[UNNAMED].observe(8, 1, 5, 0.01 + 0.5)  # 25 plain steps for its prompt
    baseline = measured_baseline(costs)
    for _ in range(10):
        save_up_for_trials(baseline, 2)
    state = snapshot([decoding(rightness=0.05) for _ in range(2)], costs, baseline=baseline)
    state.lanes[0].known.clear()  # the drafter has read neither
    assert trials_in(schedule(state))
