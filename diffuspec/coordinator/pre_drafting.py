"""PreDrafting: plans each drafter's pre-drafts, beside the drafts that requests wait for.

A bug in it is logged and costs pre-drafts, never a request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from diffuspec.control.costs import StepCosts
from diffuspec.coordinator.draft_lane import DraftLane
from diffuspec.coordinator.pre_draft_planner import PreDraftJob, PreDraftPlanner
from diffuspec.coordinator.request import Request
from diffuspec.coordinator.verify_batch import VerifyBatch
from diffuspec.core.types import Verdict

logger = logging.getLogger(__name__)


class PreDrafting:
    """Has a planner for each name of drafters; `costs` are by these names."""

    def __init__(self, costs: Mapping[str, StepCosts]) -> None:
        self._costs = costs
        self.planners = {name: PreDraftPlanner(one) for name, one in costs.items()}

    def look_ahead(self, batch: VerifyBatch) -> None:
        """Note that a batch is being verified, and wake the drafters that may pre-draft for it."""
        try:
            decoding = [request for request in batch.decoding if request.num_outcomes != 0]
            if decoding:
                self._begin(decoding, batch.num_rows)
        except Exception:
            logger.exception("a verification begins without pre-drafts")

    def _begin(self, decoding: Collection[Request], num_rows: int) -> None:
        now = time.monotonic()
        for request in decoding:
            ends_at = now + self._costs[request.drafter].verify.at(num_rows)
            if self.planners[request.drafter].begin(request, ends_at) and request.lane is not None:
                request.lane.has_work.set()

    def plan(self, lane: DraftLane, urgent: Collection[Request]) -> list[PreDraftJob]:
        """Return what a free drafter should pre-draft in one call with urgent drafts."""
        planner, breaker = self.planners[lane.chosen_by], lane.pre_draft_breaker
        if planner.is_idle:
            return []
        if not lane.breaker.is_closed or not (breaker.is_closed or breaker.take_trial()):
            return []
        try:
            now = time.monotonic()
            jobs = planner.take(urgent, now, lambda request: request.lane is lane)
        except Exception:
            logger.exception("planning pre-drafts failed; none are made for a while")
            breaker.failed()
            return []
        if not jobs:
            breaker.give_up_trial()
        return jobs

    def resolve(self, request: Request, verdict: Verdict) -> None:
        """Match a verdict, before it is committed, with the pre-drafts made for it."""
        try:
            self.planners[request.drafter].resolve(request, verdict)
        except Exception:
            logger.exception(
                "the pre-drafts of %s are dropped", request.request_id, extra=request.about
            )
            self.forget(request)
            request.pre_drafts = None

    def forget(self, request: Request) -> None:
        """Stop pre-drafting for a request."""
        self.planners[request.drafter].forget(request)
