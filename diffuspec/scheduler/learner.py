"""The learner: owns the cost model and the guard, and updates them from finished calls.

A failure while deciding or learning costs one decision, never a request: the models start anew, and
the next plan is plain decoding.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from diffuspec.adl.baseline import Baseline, Interval
from diffuspec.adl.cost_model import CostModel
from diffuspec.core.types import Verdict
from diffuspec.scheduler.calls import DraftCall, VerifyCall
from diffuspec.telemetry.busy_time import BusyTime

logger = logging.getLogger(__name__)


class Learner:
    """Learns the costs of calls and the gains of drafts from finished calls."""

    def __init__(
        self,
        costs: CostModel,
        baseline: Baseline,
        busy: Mapping[str, BusyTime],
        count_failure: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`busy`: by drafter, a timer that runs while it drafts.

        count_failure: called for each failure, with the name of the attempt that failed.
        """
        self.costs = costs
        self.baseline = baseline
        self.busy = busy
        self.must_decode_plainly = False  # the next plan has to be plain decoding
        self._start = copy.deepcopy((costs, baseline))  # the models after a failure
        self._count_failure = count_failure
        self._logged: set[tuple[str, type[Exception]]] = set()
        self._ended_at = 0.0  # end of the latest verification, by time.monotonic()
        self._reading: dict[str, float] = {}  # seconds of prompts read since then, by drafter
        self._busy_at_end: dict[str, float] = {}  # the drafters' total busy seconds at that time

    def keep(self) -> None:
        """Make the present models those to which a failure resets: called after a profile."""
        self._start = copy.deepcopy((self.costs, self.baseline))

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
        self.costs, self.baseline = copy.deepcopy(self._start)
        self.must_decode_plainly = True
        self.pause()

    def busy_seconds(self, now: float) -> dict[str, float]:
        """Total seconds with a draft call in flight, by drafter."""
        return {name: one.seconds(now) for name, one in self.busy.items()}

    def pause(self) -> None:
        """Exclude the time since the latest verification, for example an outage."""
        self._reading = {}
        self._ended_at = now = time.monotonic()
        self._busy_at_end = self.busy_seconds(now)

    def skip(self, call: VerifyCall) -> None:
        """Exclude a verification that reveals nothing about the gain of drafts."""
        self.pause()
        if call.num_running:
            self.baseline.skip(call.num_running)

    def on_drafts(self, call: DraftCall, beside: float) -> None:
        """Learn from a finished draft call; `beside`: its seconds during a verification."""
        costs = self.costs.drafters[call.lane.chosen_by]
        seconds = call.ended_at - call.started_at
        seconds -= costs.interference.lost_seconds(min(beside, seconds))
        number = len(call.lengths) + len(call.jobs)
        costs.observe(call.num_positions, number, call.num_unread, seconds)
        if call.num_unread and call.awaited:
            name = call.lane.chosen_by
            reading = costs.reading_seconds(call.num_unread, call.num_positions, number)
            self._reading[name] = self._reading.get(name, 0.0) + min(reading, seconds)

    def on_verdicts(self, call: VerifyCall, verdicts: Sequence[Verdict]) -> None:
        """Learn from a verification, before its verdicts are committed."""
        busy = self.busy_seconds(call.ended_at)
        num_rows, num_read = call.rows_fed(verdicts)
        beside = _growth(busy, call.draft_busy_seconds)
        seconds = call.ended_at - call.started_at
        sizes = num_rows, len(call.requests)
        call.surprise = self.costs.surprise(*sizes, seconds, beside)
        begun = min([one.step.started_at for one in call.requests])
        interval_seconds = call.ended_at - max(self._ended_at, begun)
        drafting = _growth(busy, self._busy_at_end)
        self._ended_at, self._busy_at_end = call.ended_at, busy
        drafted = [one for one in call.requests if one.step.draft.tree.num_nodes]
        is_measured = False
        if drafted and all([one.policy.num_draft_tokens is not None for one in drafted]):
            self.skip(call)  # clients chose these lengths, not the schedule
        elif call.num_running:
            is_measured = self._account(call, verdicts, interval_seconds, drafting, num_read)
        # In the first plain steps after drafts, the caches hold the drafter's weights: not typical.
        is_plain = num_rows == call.num_running and not beside
        if is_measured or not is_plain or not self.costs.verification.curve.is_known_near(num_rows):
            how = {"is_plain": is_measured, "reads": num_read > 0}
            self.costs.observe_verification(*sizes, seconds, beside, **how)
        if is_measured:  # after the machine's speed, which explains most of a surprise
            self.costs.plain.observe(call.num_running, interval_seconds)

    def _account(
        self,
        call: VerifyCall,
        verdicts: Sequence[Verdict],
        seconds: float,
        drafting: dict[str, float],
        num_read: int,
    ) -> bool:
        """Compare what all requests have committed with plain decoding, or measure the latter.

        Returns whether plain decoding was measured.
        """
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
        interval = Interval(number, seconds, plain, base, spent, accepted)
        if spent:
            interval.reading, self._reading = self._reading, {}
        interval.surprise = call.surprise
        interval.num_missing = max(number - call.num_decoding, 0)
        interval.is_whole = call.num_decoding == number == len(call.requests)
        return self.baseline.observe(interval)


def _growth(totals: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of each total that has grown."""
    return {
        name: grown
        for name, total in totals.items()
        if (grown := total - before.get(name, 0.0)) > 0
    }
