"""The work of idle drafters while the target verifies: reading its prompts, and pre-drafts.

Pre-drafts are made for those outcomes of the verification whose drafts save more time than they
cost, given their probability and the drafter's costs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from diffuspec.adl.cost_model import DraftCosts
from diffuspec.algorithm.outcomes import RankedOutcome
from diffuspec.core.params import MAX_OUTCOMES
from diffuspec.core.types import MAX_PRE_DRAFTS
from diffuspec.scheduler.calls import PreDraftJob
from diffuspec.scheduler.draft_calls import load_of, new_call, sized
from diffuspec.scheduler.plan import Plan, Snapshot
from diffuspec.scheduler.request import Request
from diffuspec.scheduler.step import PreDraft, PreDrafts


def add_early_drafts(s: Snapshot, plan: Plan) -> None:
    """Let idle drafters read prompts while the target does, so that drafts are ready."""
    call = s.verification
    verifying = plan.verify or (call.requests if call is not None else ())
    taken = {one.lane for one in plan.drafts}
    for request in [one for one in verifying if _may_draft_early(s, one)]:
        lane = s.home(request)
        if lane is None or not lane.is_idle or lane in taken:
            continue
        load = load_of(s, request.drafter, [request])
        load.is_early = True
        trials: dict[Request, float] = {}
        lengths, _ = sized(s, [request], load, trials)
        if lengths:
            early = new_call(s, lane, lengths)
            early.awaited, early.trial_steps = {}, trials
            plan.drafts.append(early)
            taken.add(lane)


def _may_draft_early(s: Snapshot, request: Request) -> bool:
    prefill = request.prefill
    is_last_chunk = prefill.is_long and prefill.num_unread <= s.prefill_chunk_tokens
    is_wanted = request.policy.num_draft_tokens != 0 and request.room > 0
    return is_last_chunk and is_wanted and request.early is None and not request.is_finished


def _goes_on(s: Snapshot, request: Request) -> bool:
    """Return whether a request is expected to draft after this step; unknown after a trial."""
    is_free = request.policy.num_draft_tokens is None and request.speculation.num_outcomes == "auto"
    return not request.step.trial_steps and not (is_free and s.baseline.wants_plain(s.num_running))


def add_pre_drafts(s: Snapshot, plan: Plan) -> None:
    """Let idle drafters draft for the likeliest outcomes of the verification in flight."""
    call = s.verification
    if call is None:
        if plan.verify:  # drafts begin in the next plan, in one call with the outcomes
            plan.drafts, plan.wait_until = [], s.now
        return
    begun = {one.lane: one for one in plan.drafts}
    for lane in s.lanes:
        breaker = lane.pre_draft_breaker
        is_well = breaker.is_closed or breaker.is_trial_due(s.now)
        if not (lane.is_idle and lane.is_available and is_well):
            continue
        verifying = [one for one in call.requests if s.home(one) is lane and _goes_on(s, one)]
        draft = begun.get(lane)
        costs, waiting = s.costs.drafters[lane.chosen_by], draft.lengths if draft else {}
        left = max(call.ends_at - s.now, 0.0)
        jobs = choose_outcomes(verifying, left, costs, waiting) if verifying else []
        if jobs:
            if draft is None:
                draft = new_call(s, lane, {})
                plan.drafts.append(draft)
            draft.jobs = jobs
            seconds = costs.seconds(draft.num_positions, len(draft.lengths) + len(jobs))
            draft.ends_at = s.now + seconds


# ---- outcomes


class _Candidate(NamedTuple):
    ranked: RankedOutcome
    request: Request
    pre_drafts: PreDrafts
    num_draft_tokens: int


def choose_outcomes(
    verifying: Collection[Request],
    seconds_left: float,
    costs: DraftCosts,
    waiting: dict[Request, int],
) -> list[PreDraftJob]:
    """Return the pre-drafts for requests that are being verified, in one call of a drafter.

    The call also has the drafts of `waiting` requests. An outcome is drafted if the time that a hit
    would save, times its probability, exceeds its cost to all requests.
    """
    known = costs.seconds(1, 1)
    is_priced = all([one.speculation.num_outcomes == "auto" for one in verifying])
    if is_priced and len(verifying) * max(known - seconds_left, 0.0) >= known > 0:
        return []  # even a certain outcome would not pay
    chosen: list[_Candidate] = []
    priced: list[_Candidate] = []
    for request in verifying:
        found = _candidates(request)
        (priced if request.speculation.num_outcomes == "auto" else chosen).extend(found)
    priced.sort(key=lambda one: one.ranked.probability, reverse=True)
    left = max(MAX_PRE_DRAFTS - len(chosen), 0)
    offers = [(one.ranked.probability, one.num_draft_tokens) for one in priced[:left]]
    num_priced = num_worth_it(offers, seconds_left, costs, [*waiting.values()], len(verifying))
    return [_job(one) for one in [*chosen, *priced[:num_priced]][:MAX_PRE_DRAFTS]]


def _candidates(request: Request) -> list[_Candidate]:
    pre_drafts, draft = request.pre_drafts, request.step.draft
    length = request.last_length
    if pre_drafts is None or not length:
        return []
    allowed = request.speculation.num_outcomes
    limit = MAX_OUTCOMES if allowed == "auto" else allowed
    ranked = pre_drafts.rank(draft, request.prefix, request.room_after)
    return [
        _Candidate(one, request, pre_drafts, length)
        for one in ranked[: max(limit - pre_drafts.num_sent, 0)]
    ]


def num_worth_it(
    outcomes: Sequence[tuple[float, int]],
    seconds_left: float,
    costs: DraftCosts,
    waiting: Sequence[int],
    num_verifying: int,
) -> int:
    """Return how many of the outcomes, likeliest first, to pre-draft.

    Each outcome has a probability and a length. waiting: lengths of awaited drafts in the same
    call. Every request being verified pays for the time that the call takes beyond the end of the
    verification, and for slowing it down; the waiting ones pay for the longer call.
    """
    sizes = [*accumulate([length for _, length in outcomes], initial=sum(waiting))]
    takes = [costs.seconds(size, len(waiting) + n) for n, size in enumerate(sizes)]
    alone = takes[0] if waiting else 0.0
    best, most, saved = 0, 0.0, 0.0
    for number, (probability, length) in enumerate(outcomes, start=1):
        saved += probability * costs.seconds(length, 1)
        late = max(takes[number] - seconds_left, 0.0) - max(alone - seconds_left, 0.0)
        slower = costs.interference.value * min(takes[number] - alone, seconds_left)
        spent = num_verifying * (late + slower) + len(waiting) * (takes[number] - alone)
        if saved - spent > most:
            best, most = number, saved - spent
    return best


def _job(candidate: _Candidate) -> PreDraftJob:
    ranked, request, pre_drafts, length = candidate
    token_ids = ranked.outcome.committed(request.step.draft.tree)
    length = min(length, request.room_after(token_ids))
    wanted = request.draft_request_after(token_ids, length)
    return PreDraftJob(request, pre_drafts, PreDraft(ranked.outcome, length, wanted))
