"""What finished calls teach the cost model and the guard."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from diffuspec.adl.baseline import Baseline
from diffuspec.adl.cost_model import CostModel
from diffuspec.core.params import SpeculationParams
from diffuspec.core.types import Verdict
from diffuspec.scheduler.calls import UNNAMED, DraftCall, VerifyCall
from diffuspec.scheduler.learner import Learner
from diffuspec.scheduler.request import Request
from diffuspec.telemetry.busy_time import BusyTime
from tests.support.snapshots import NOW, cost_model, decoding, drafted, pool_of_names, reading

FIXED = SpeculationParams(policy="fixed", num_draft_tokens=8)
NAME = "dream"


def learner_of(costs: CostModel) -> tuple[Learner, Baseline]:
    baseline = Baseline([NAME])
    return Learner(costs, baseline, {UNNAMED: BusyTime()}), baseline


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


def test_a_draft_call_teaches_what_it_would_have_taken_with_no_verification_beside_it():
    costs = CostModel([UNNAMED], interference=1.0)
    learner, _ = learner_of(costs)
    [lane] = pool_of_names().lanes
    call = DraftCall(lane, {decoding(): 8}, started_at=NOW, ended_at=NOW + 0.03)
    learner.on_drafts(call, beside=0.02)
    assert costs.drafters[UNNAMED].seconds(8, 1) == pytest.approx(0.02)


@pytest.mark.parametrize(("num_running", "is_measured"), [(2, True), (3, False)])
def test_the_third_step_in_a_row_of_all_requests_without_drafts_measures_plain_decoding(
    num_running, is_measured
):
    learner, baseline = learner_of(CostModel([UNNAMED], interference=1.0))
    requests, wanted = [decoding(), decoding()], []
    for number in range(3):
        begins_at = NOW + 0.02 * number
        verify(learner, requests, Verdict((7,), ()), begins_at=begins_at, num_running=num_running)
        wanted.append(baseline.wants_plain(num_running))
    assert wanted == [True, True, not is_measured]


def test_plain_steps_tell_the_speed_of_the_machine_from_the_third_on():
    costs = CostModel([UNNAMED], interference=0.0)
    for num_rows in (2, 18):
        costs.observe_verification(num_rows, 2, 0.01, {})
    learner, _ = learner_of(costs)
    for number in range(3):
        assert costs.verify_seconds(2, 2) == pytest.approx(0.01)
        verify(learner, [decoding(), decoding()], Verdict((7,), ()), begins_at=NOW + 0.02 * number)
    assert costs.verify_seconds(2, 2) > 0.0105 and costs.verify_seconds(18, 2) > 0.0105


def test_plain_steps_that_take_longer_than_expected_are_not_counted_twice():
    costs = CostModel([UNNAMED], interference=0.0)
    costs.observe_verification(1, 1, 0.01, {})
    learner, _ = learner_of(costs)
    for number in range(3):
        verify(learner, [decoding()], Verdict((7,), ()), begins_at=NOW + 0.02 * number)
    assert costs.verify_seconds(1, 1) > 0.0105, "the machine is slower"
    assert costs.plain_seconds(1) == pytest.approx(0.02), "as measured"


def test_prompt_tokens_that_were_cached_are_no_rows_of_a_verification():
    costs = CostModel([UNNAMED], interference=1.0)
    verify(learner_of(costs)[0], [reading(100)], Verdict((7,), (), num_cached_tokens=70))
    curve = costs.verification.curve
    assert curve.is_known_near(30) and not curve.is_known_near(100)


@pytest.mark.parametrize(("num_accepted", "is_allowed"), [(0, False), (8, True)])
def test_drafts_go_on_if_as_many_are_accepted_as_the_time_is_worth(num_accepted, is_allowed):
    learner, baseline = learner_of(cost_model(verify=(0.02, 0.0)))
    verdict = Verdict((7,) * (1 + num_accepted), tuple(range(num_accepted)))
    for number in range(60):
        verify(learner, [drafted(8)], verdict, begins_at=NOW + 0.04 * number, seconds=0.04)
    assert baseline.allows(UNNAMED, 1) is is_allowed


def test_the_reading_of_a_prompt_is_not_held_against_its_first_draft_alone():
    costs = cost_model(verify=(0.02, 0.0), draft=(0.01, 0.001))
    learner, baseline = learner_of(costs)
    [lane], request = pool_of_names().lanes, drafted(8)
    call = DraftCall(lane, {request: 8}, {request: 8}, started_at=NOW, ended_at=NOW + 0.518)
    call.num_unread = 500
    learner.on_drafts(call, beside=0.0)
    verify(learner, [request], Verdict((7,), ()), begins_at=NOW + 0.52)
    assert baseline.allows(UNNAMED, 1)


def test_drafts_of_lengths_that_clients_chose_are_not_held_against_the_drafter():
    learner, baseline = learner_of(cost_model(verify=(0.02, 0.0)))
    for number in range(60):
        asked = [drafted(8, FIXED)]
        verify(learner, asked, Verdict((7,), ()), begins_at=NOW + 0.04 * number, seconds=0.04)
    assert baseline.allows(UNNAMED, 1)


def test_plain_steps_on_either_side_of_a_chosen_draft_are_not_in_a_row():
    learner, baseline = learner_of(CostModel([UNNAMED], interference=1.0))
    for number, one in enumerate([decoding(), decoding(), drafted(8, FIXED), decoding()]):
        verify(learner, [one], Verdict((7,), ()), begins_at=NOW + 0.02 * number)
    assert baseline.wants_plain(1)
