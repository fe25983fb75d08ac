"""A plan in one line: a state of the coordinator in, its explanation out."""

from __future__ import annotations

import pytest

from diffuspec.core.params import SpeculationParams
from diffuspec.scheduler.calls import UNNAMED, DraftCall
from diffuspec.scheduler.explain import explain
from diffuspec.scheduler.plan import Plan, Snapshot
from diffuspec.scheduler.schedule import schedule
from tests.support.snapshots import (
    cost_model,
    decoding,
    drafted,
    drafting_call,
    measured_baseline,
    pool_of_names,
    reading,
    snapshot,
    stop_drafts,
)

OFF = SpeculationParams(policy="off", num_outcomes=0)


def explained(state: Snapshot) -> str:
    return explain(schedule(state), state)


def test_the_candidates_are_listed_with_their_scores_in_one_line_the_winner_first() -> None:
    state = snapshot([reading(100), decoding(), drafted(8)])
    plan = schedule(state)
    scores, text = [*plan.considered], explain(plan, state)
    assert {one.name for one in scores} == {"verify", "prompts first", "draft", "draft beside"}
    places = [text.index(f" {one.name} {one.value:+.2f}") for one in scores]
    assert places == sorted(places) and "\n" not in text
    values = [one.value for one in scores]
    assert values == sorted(values, reverse=True)


def test_drafts_are_listed_by_length_with_the_number_of_those_made_ahead() -> None:
    state = snapshot([])
    lane, request = state.lanes[0], decoding()
    calls = [DraftCall(lane, {request: 8, decoding(): 3}), DraftCall(lane, {}, trial=request)]
    assert explain(Plan(drafts=calls, rate=50.0), state).startswith(
        "verify 0, draft ['8/3', 'trial of drafter'], at 50 tokens/s"
    )


def test_the_nodes_that_are_verified_are_counted() -> None:
    assert explained(snapshot([drafted(4), drafted(3)])).startswith("verify 2 (7 nodes), draft []")


def test_a_draft_that_does_not_pay_is_told_with_its_tokens_and_its_price() -> None:
    costs = cost_model(verify=(0.02, 0.0), draft=(0.1, 0.0))
    text = explained(snapshot([decoding(rightness=0.1)], costs))
    assert text.endswith("no draft pays: 0.1 of 8 tokens for 100.0 ms more")


def test_drafts_that_have_lost_are_stopped_for_a_number_of_plain_steps() -> None:
    costs = cost_model()
    baseline = measured_baseline(costs)
    stop_drafts(baseline, UNNAMED, 1)
    steps = baseline.num_stopped_steps(UNNAMED, 1)
    text = explained(snapshot([decoding()], costs, baseline=baseline))
    assert text.endswith(f"drafts have lost: none for {steps:.0f} more plain steps")


@pytest.mark.parametrize(
    ("requests", "changes", "reason"),
    [
        ([decoding(OFF), decoding(OFF)], {}, "2 x speculation is off"),
        ([reading(100)], {}, "its prompt is read"),
        ([decoding()], {"home": lambda _: None}, "no drafter is available"),
    ],
)
def test_a_request_without_a_draft_has_a_reason(requests, changes, reason) -> None:
    assert explained(snapshot(requests, **changes)).endswith(reason)


def test_a_request_whose_drafter_is_busy_says_so() -> None:
    costs, pool = cost_model(), pool_of_names()
    drafting_call(pool.lanes[0], [decoding()], -1.0)  # late: not waited for
    text = explained(snapshot([decoding()], costs, pool))
    assert text.endswith("its drafter is busy")


def test_drafts_are_held_back_while_plain_decoding_is_measured() -> None:
    state = snapshot([decoding() for _ in range(32)])  # a load that was never measured
    assert explained(state).endswith("32 x plain decoding is measured")
