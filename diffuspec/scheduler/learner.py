"""The learner: owns the cost model and the guard, and replaces them as calls end.

A failure while deciding or learning costs one decision, never a request: the models are reset, and
the next plan is plain decoding.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from diffuspec.core.types import Verdict
from diffuspec.scheduler.calls import DraftCall, VerifyCall
from diffuspec.speculation.costs import CostModel
from diffuspec.speculation.guard import Interval, SpeculationGuard
from diffuspec.telemetry.busy_time import BusyTime

logger = logging.getLogger(__name__)


class Learner:
    """Learns the costs of calls and the gains of drafts from finished calls."""

    def __init__(
        self,
        costs: CostModel,
        busy: Mapping[str, BusyTime],
        count_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`busy`: by drafter, a timer that runs while it drafts.

        count_failure: called for each failure, with the name of the attempt that failed.
        """
        self.costs = costs
        self.guard = SpeculationGuard(tuple(costs.drafters))
        self.busy = busy
        self.must_decode_plainly = False  # the next plan has to be plain decoding
        self._start = costs, self.guard  # the models after a failure
        self._count_failure = count_failure
        self._logged: set[tuple[str, type[Exception]]] = set()
        self._ended_at = 0.0  # end of the latest verification, by time.monotonic()
        # seconds in which drafters have read prompts since then
        self._reading_seconds = 0.0
        self._busy_at_end: dict[str, float] = {}  # the drafters' total busy seconds at that time

    def keep(self) -> None:
        """Make the present models those to which a failure resets: called after a profile."""
        self._start = self.costs, self.guard

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Run code that only decides or learns; an exception in it is passed to `fail`."""
        try:
            yield
        except Exception as error:
            self.fail(what, error)

    def fail(self, what: str, error: Exception) -> None:
        """Count a failure, and reset the models. Each type of error is logged once for `what`."""
        if (what, type(error)) not in self._logged:
            self._logged.add((what, type(error)))
            logger.error("%s failed; requests go on without it", what, exc_info=error)
        self._count_failure(what)
        self.costs, self.guard = self._start
        self.must_decode_plainly = True
        self.pause()

    def busy_seconds(self, now: float) -> dict[str, float]:
        """Total seconds with a draft call in flight, by drafter."""
        return {name: timer.seconds(now) for name, timer in self.busy.items()}

    def pause(self) -> None:
        """Exclude the time since the latest verification, for example an outage."""
        self._reading_seconds = 0.0
        self._ended_at = now = time.monotonic()
        self._busy_at_end = self.busy_seconds(now)

    def skip(self, call: VerifyCall) -> None:
        """Exclude a verification that reveals nothing about the gain of drafts."""
        self.pause()
        if call.num_running:
            self.guard = self.guard.skip(call.num_running)

    def explore(self, drafter: str, num_running: int) -> None:
        """Record that an exploration step begins."""
        self.guard = self.guard.explore(drafter, num_running)

    def on_drafts(self, call: DraftCall, beside: float, num_refreshed: int = 0) -> None:
        """Learn from a finished draft call; `beside`: its seconds during a verification.

        num_refreshed: see `DraftCosts.observe`.
        """
        name, number, unread = call.lane.chosen_by, len(call.jobs), call.num_unread
        costs = self.costs.drafters[name]
        seconds = call.ended_at - call.started_at
        seconds -= costs.interference.lost_seconds(min(beside, seconds))
        sizes = call.num_positions, number
        self.costs = self.costs.observe_draft(name, *sizes, unread, seconds, num_refreshed)
        if unread and call.awaited:
            reading = self.costs.drafters[name].reading_seconds(unread, *sizes)
            self._reading_seconds += min(reading, seconds)

    def on_verdicts(self, call: VerifyCall, verdicts: Sequence[Verdict]) -> None:
        """Learn from a verification, before its verdicts are committed."""
        busy, number = self.busy_seconds(call.ended_at), len(call.requests)
        num_rows, num_read = call.rows_fed(verdicts)
        beside = _growth(busy, call.draft_busy_seconds)
        seconds = call.ended_at - call.started_at
        surprise = self.costs.surprise(num_rows, number, seconds, beside)
        begun = min([request.step.started_at for request in call.requests])
        interval_seconds = call.ended_at - max(self._ended_at, begun)
        drafting = _growth(busy, self._busy_at_end)
        self._ended_at, self._busy_at_end = call.ended_at, busy
        drafted = [request for request in call.requests if request.step.draft.tree.num_nodes]
        is_measured = False
        if drafted and all([request.policy.num_draft_tokens is not None for request in drafted]):
            self.skip(call)  # clients chose these lengths, not the schedule
        elif call.num_running:
            interval = self._interval(
                call, verdicts, interval_seconds, drafting, num_read, surprise
            )
            self.guard, is_measured = self.guard.observe(interval)
        # In the first plain steps after drafts, the caches hold the drafter's weights: not typical.
        is_plain = num_rows == call.num_running and not beside
        if is_measured:
            self.costs = self.costs.observe_plain(number, seconds, interval_seconds)
        elif not is_plain or not self.costs.is_known_near(num_rows):
            self.costs = self.costs.observe_verification(
                num_rows, number, seconds, beside, reads=num_read > 0
            )

    def _interval(
        self,
        call: VerifyCall,
        verdicts: Sequence[Verdict],
        seconds: float,
        drafting: Mapping[str, float],
        num_read: int,
        surprise: float,
    ) -> Interval:
        """Return what all requests have committed since the verdicts before, and at what cost."""
        number, costs, rows = call.num_running, self.costs, call.num_rows
        accepted: dict[str, float] = {}
        nodes: dict[str, int] = {}
        for request, verdict in zip(call.requests, verdicts, strict=True):
            if num_nodes := request.step.draft.tree.num_nodes:
                name, right = request.drafter, verdict.num_accepted_tokens
                nodes[name] = nodes.get(name, 0) + num_nodes
                accepted[name] = accepted.get(name, 0.0) + right
        spent = {
            name: drafting.get(name, 0.0)
            + costs.verify_seconds(rows, number)
            - costs.verify_seconds(max(rows - nodes.get(name, 0), 1), number)
            for name in {*drafting, *nodes}
        }
        plain = base = costs.plain_seconds(number)
        if spent and num_read:
            base += costs.verify_seconds(number + num_read, len(call.requests))
            base -= costs.verify_seconds(number, number)
        if spent:  # reading a prompt is paid by all drafts to come, not by the first
            base, self._reading_seconds = base + self._reading_seconds, 0.0
        tickets = [request.step.ticket for request in call.requests]
        return Interval(
            number,
            seconds,
            plain,
            base,
            spent,
            accepted,
            num_missing=max(number - call.num_decoding, 0),
            is_whole=call.num_decoding == number == len(call.requests),
            surprise=surprise,
            explores=any([ticket is not None and ticket.is_exploration for ticket in tickets]),
        )


def _growth(totals: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of each total that has grown."""
    return {
        name: grown
        for name, total in totals.items()
        if (grown := total - before.get(name, 0.0)) > 0
    }
