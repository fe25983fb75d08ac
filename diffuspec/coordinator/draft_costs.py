"""What a call of a drafter costs: how long it should take, and what is learnt from it."""

from __future__ import annotations

import math
from collections.abc import Collection

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.pre_draft_planner import PreDraftJob
from diffuspec.coordinator.request import Request


def expected_seconds(
    costs: StepCosts, requests: Collection[Request], jobs: Collection[PreDraftJob]
) -> float:
    """Return what a call should take; infinity where a prompt is read, or nothing is known."""
    if not costs.draft.is_known or not all(one.is_known_to_drafter for one in requests):
        return math.inf
    return costs.draft.at(_num_positions(requests, jobs))


def learn_costs(
    costs: StepCosts,
    requests: Collection[Request],
    jobs: Collection[PreDraftJob],
    seconds: float,
) -> None:
    """Learn from a call: what drafting takes, or reading where there are requests' first drafts."""
    num_positions = _num_positions(requests, jobs)
    num_read = sum(one.num_tokens for one in requests if not one.is_known_to_drafter)
    if num_read:
        costs.observe_reading(num_read, num_positions, seconds)
    elif jobs:
        costs.observe_pre_drafts(num_positions, seconds)
    else:
        costs.observe_draft(num_positions, len(requests), seconds)


def _num_positions(requests: Collection[Request], jobs: Collection[PreDraftJob]) -> int:
    """Return the masked positions of a call."""
    of_pre_drafts = sum(job.pre_draft.num_draft_tokens for job in jobs)
    return sum(request.num_draft_tokens for request in requests) + of_pre_drafts
