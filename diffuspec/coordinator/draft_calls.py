"""DraftCalls: asks drafters for batches and trials, and draws each call in the trace."""

from __future__ import annotations

import logging
import time

from diffuspec.control.costs import BusyTime
from diffuspec.coordinator.draft_batch import DraftBatch
from diffuspec.coordinator.draft_lane import DraftLane, Trial
from diffuspec.coordinator.spans import trace_drafts, trace_failure, trace_trial
from diffuspec.core.types import Draft, StateRows
from diffuspec.telemetry.trace import Tracer

logger = logging.getLogger(__name__)


class DraftCalls:
    """The calls of all drafters. `busy` runs while drafts are being made; trials do not count."""

    def __init__(self, max_seconds: float, busy: BusyTime, tracer: Tracer | None) -> None:
        self._max_seconds = max_seconds  # of one call
        self._busy = busy
        self._tracer = tracer

    async def draft(self, lane: DraftLane, batch: DraftBatch) -> list[Draft] | None:
        """Return the drafts of a batch, the pre-drafts last; None: no request wants them any more.

        Raises what `DraftLane.draft` raises.
        """
        share = StateRows.MAX_BYTES // max(1, len(batch.requests))
        draft_requests = [request.draft_request(share) for request in batch.requests]
        draft_requests += [job.draft_request for job in batch.jobs]
        wanted_by = {*batch.requests, *[job.request for job in batch.jobs]}
        lane.under_way, started = batch, batch.started_at
        self._busy.begin(started)
        try:
            drafts = await lane.draft(draft_requests, wanted_by, self._max_seconds)
        except Exception:
            trace_failure(self._tracer, lane.name, started)
            raise
        finally:
            self._busy.end(time.monotonic())
            lane.under_way = None
            lane.pre_draft_breaker.give_up_trial()
        if drafts is not None:
            trace_drafts(self._tracer, lane.name, drafts, started, len(batch.jobs))
        return drafts

    async def make_trial(self, lane: DraftLane, trial: Trial) -> None:
        """Let a drafter that failed draft once; the draft is thrown away."""
        lane.trial = None
        started = time.monotonic()
        try:
            if not trial.request.is_finished:
                drafts = await lane.draft([trial.draft_request], {trial.request}, self._max_seconds)
                trace_trial(self._tracer, lane.name, started)
                if drafts is not None:
                    lane.breaker.succeeded()
        except Exception as error:
            trace_failure(self._tracer, lane.name, started)
            logger.warning("%s is not well yet: %s", lane.name, error)
            lane.breaker.failed()
        finally:
            lane.breaker.give_up_trial()
