"""DraftBatch: the drafts made in one call of a drafter, their expected time, and its lessons."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.pre_draft_planner import PreDraftJob
from diffuspec.coordinator.request import Request


class DraftBatch:
    """The drafts that requests wait for, and pre-drafts, of a call that begins now."""

    def __init__(
        self, requests: Sequence[Request], jobs: Sequence[PreDraftJob], costs: StepCosts
    ) -> None:
        self.requests = requests
        self.jobs = jobs
        self.started_at = time.monotonic()
        self._costs = costs
        self.num_positions = sum([request.num_draft_tokens for request in requests])  # masked
        self.num_positions += sum([job.pre_draft.num_draft_tokens for job in jobs])

    @property
    def ends_at(self) -> float:
        """Expected end of the call, by time.monotonic(); infinity if it is not known."""
        return self.started_at + self.seconds

    @property
    def seconds(self) -> float:
        """Expected seconds of the call; infinity if it reads a prompt, or costs are unknown."""
        if not self._costs.draft.is_known or not all(
            one.is_known_to_drafter for one in self.requests
        ):
            return math.inf
        return self._costs.draft.at(self.num_positions)

    def learn(self, seconds: float) -> None:
        """Learn the cost of drafting from the call; with first drafts, that of reading prompts."""
        num_read = sum([one.num_tokens for one in self.requests if not one.is_known_to_drafter])
        if num_read:
            self._costs.observe_reading(num_read, self.num_positions, seconds)
        elif self.jobs:
            self._costs.observe_pre_drafts(self.num_positions, seconds)
        else:
            self._costs.observe_draft(self.num_positions, len(self.requests), seconds)
