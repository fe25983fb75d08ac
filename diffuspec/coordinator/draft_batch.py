"""What one call of a drafter is for, how long it should take, and what is learnt from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.pre_draft_planner import PreDraftJob
from diffuspec.coordinator.request import Request


class DraftBatch:
    """Drafts that requests wait for and pre-drafts, to be made in one call."""

    def __init__(self, requests: Sequence[Request], jobs: Sequence[PreDraftJob]) -> None:
        self.requests = requests
        self.jobs = jobs
        self.num_positions = sum([request.num_draft_tokens for request in requests])  # masked
        self.num_positions += sum([job.pre_draft.num_draft_tokens for job in jobs])

    def expected_seconds(self, costs: StepCosts) -> float:
        """Return what the call should take; infinity where a prompt is read, or without costs."""
        if costs.draft.is_known and all([one.is_known_to_drafter for one in self.requests]):
            return costs.draft.at(self.num_positions)
        return math.inf

    def learn(self, costs: StepCosts, seconds: float) -> None:
        """Learn what drafting takes, or reading where there are requests' first drafts."""
        num_read = sum([one.num_tokens for one in self.requests if not one.is_known_to_drafter])
        if num_read:
            costs.observe_reading(num_read, self.num_positions, seconds)
        elif self.jobs:
            costs.observe_pre_drafts(self.num_positions, seconds)
        else:
            costs.observe_draft(self.num_positions, len(self.requests), seconds)
