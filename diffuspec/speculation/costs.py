"""The cost model: seconds of a verification and of a draft call, and their interference.

A measured time is that of a role's whole answer: the forward, waiting for the worker, and
transport. Costs are profiled when an engine starts, and are moving averages while it decodes. A
machine's speed varies as other programs come and go, so all costs on one machine share a slow-down
factor: those not measured for a while follow plain decoding, and keep their ratio to it.

All classes are frozen values: what is observed yields a new value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat

from diffuspec.speculation.call_costs import CallCosts, Interference, SlowDown
from diffuspec.speculation.curve import MIN_SECONDS, SMOOTHING, CostCurve

_LEAST_ROWS = 64  # rows that prompts may always add to a verification
# measurements of a plain step for which a drafted step of as many rows counts
_MEASURED_COUNT = 3
# Share of a plain step's unexpected seconds that its size explains; the machine explains the rest.
_PLAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """The costs of one drafter's drafts."""

    interference: Interference
    factor: float = 1.0  # the machine's slow-down
    _calls: CallCosts = field(default_factory=CallCosts)  # size: drafted positions
    # seconds added to a call; size: prompt tokens it reads
    _reading: CostCurve = field(default_factory=CostCurve)
    # mean seconds of a request's share of a call in which cached tokens are computed again
    _refreshing: float = 0.0

    @property
    def is_known(self) -> bool:
        return self._calls.curve.is_known

    def seconds_of(
        self, num_positions: Iterable[float], num_requests: Iterable[float]
    ) -> list[float]:
        """Expected seconds of several calls, which read no prompts.

        They include the mean cost of cached tokens that are computed again.
        """
        return self._calls.seconds_of(
            num_positions, num_requests, self.factor, each=self._refreshing
        )

    def seconds(self, num_positions: float, num_requests: float, num_unread: int = 0) -> float:
        """Expected seconds of a call that also reads `num_unread` prompt tokens."""
        [seconds] = self.seconds_of((num_positions,), (num_requests,))
        return seconds + self.reading_seconds(num_unread, num_positions, num_requests)

    def reading_seconds(
        self, num_unread: int, num_positions: float = 1, num_requests: float = 1
    ) -> float:
        """Expected seconds that reading `num_unread` prompt tokens adds to a call."""
        if not num_unread:
            return 0.0
        if self._reading.is_known:
            return self.factor * self._reading.at(num_unread)
        sizes = num_positions, num_positions + num_unread
        without, whole = self._calls.seconds_of(sizes, repeat(num_requests), self.factor)
        return whole - without

    def observe(
        self,
        num_positions: int,
        num_requests: int,
        num_unread: int,
        seconds: float,
        num_refreshed: int = 0,
    ) -> DraftCosts:
        """Learn from a call, given its seconds without a concurrent verification.

        num_refreshed: cached prefix tokens that it has computed again.
        """
        reads = num_unread > 0 or num_refreshed > 0
        if reads and not self.is_known:
            return self
        [alone] = self._calls.seconds_of((num_positions,), (num_requests,), self.factor)
        added = max(seconds - alone, 0.0) / self.factor if reads else 0.0
        if num_unread:
            reading, _ = self._reading.observe(num_unread + num_refreshed, added)
            return replace(self, _reading=reading)
        change = SMOOTHING * (added / num_requests - self._refreshing)
        refreshing = self._refreshing + change
        if num_refreshed:
            return replace(self, _refreshing=refreshing)
        alone = seconds / self.factor
        calls, _ = self._calls.observe(num_positions, num_requests, alone, 1.0, reads=False)
        return replace(self, _calls=calls, _refreshing=refreshing)


@dataclass(frozen=True, slots=True)
class CostModel:
    """The costs of one coordinator's calls, or of one engine's."""

    drafters: Mapping[str, DraftCosts]  # by name
    # steps since the last measurement of plain decoding after which half of the unexpected seconds
    # of a step is attributed to the machine; inf: always all of it to the size
    same_speed_steps: float = math.inf
    _slow_down: SlowDown = field(default_factory=SlowDown)
    # size: rows, which are tokens to read, roots and nodes
    _verification: CallCosts = field(default_factory=CallCosts)
    # verdict to verdict without drafts; size: requests
    _plain: CostCurve = field(default_factory=CostCurve)

    @property
    def is_known(self) -> bool:
        """Whether a verification has been measured."""
        return self._verification.curve.is_known

    def is_known_near(self, num_rows: int) -> bool:
        """Return whether verifications of about this size have been measured."""
        return self._verification.curve.is_known_near(num_rows)

    def verify_seconds(self, num_rows: float, num_requests: float) -> float:
        """Expected seconds of a verification without a concurrent draft call."""
        [seconds] = self.verify_seconds_of((num_rows,), num_requests)
        return seconds

    def verify_seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of verifications of several sizes."""
        number, factor = repeat(num_requests), self._slow_down.factor
        return self._verification.seconds_of(sizes, number, factor)

    def num_rows_within(self, seconds: float, most: int) -> int:
        """Return the largest number of rows, up to `most`, that adds `seconds` to a verification.

        Returns at least _LEAST_ROWS: with fewer, many short prompts would all be delayed.
        """
        curve, seconds = self._verification.curve, seconds / self._slow_down.factor
        if not curve.is_known:
            return most
        seconds += curve.at(1)
        if curve.at(most) <= seconds:
            return most
        return max(bisect_right(range(most), seconds, key=curve.at), min(_LEAST_ROWS, most))

    def plain_seconds(self, num_requests: int) -> float:
        """Expected seconds from verdict to verdict if none of these requests drafts."""
        if self._plain.is_known_near(num_requests):
            return self._slow_down.factor * self._plain.at(num_requests)
        return max(self.verify_seconds(num_requests, num_requests), MIN_SECONDS)

    def surprise(
        self, num_rows: int, num_requests: int, seconds: float, beside: Mapping[str, float]
    ) -> float:
        """Return the log ratio of a verification's actual to expected seconds; see below."""
        expected = self.verify_seconds(num_rows, num_requests)
        alone = max(seconds - _lost_seconds(self.drafters, beside), MIN_SECONDS)
        return math.log(alone / expected) if expected > 0 else 0.0

    def observe_draft(
        self,
        name: str,
        num_positions: int,
        num_requests: int,
        num_unread: int,
        seconds: float,
        num_refreshed: int = 0,
    ) -> CostModel:
        """Learn from a draft call, see `DraftCosts.observe`."""
        sizes = num_positions, num_requests, num_unread
        costs = self.drafters[name].observe(*sizes, seconds, num_refreshed)
        return replace(self, drafters={**self.drafters, name: costs})

    def observe_verification(
        self,
        num_rows: int,
        num_requests: int,
        seconds: float,
        beside: Mapping[str, float],
        *,
        reads: bool = False,
    ) -> CostModel:
        """Learn from a verification that is no plain step.

        beside: its seconds with a draft call, by drafter. reads: whether it reads prompts.
        """
        drafters = self._beside(num_rows, num_requests, seconds, beside)
        seconds = max(seconds - _lost_seconds(drafters, beside), 0.0)  # by what was just learnt
        slow_down = replace(self._slow_down, num_unmeasured=self._slow_down.num_unmeasured + 1)
        if num_rows == num_requests and not beside:
            slow_down = slow_down.expect(num_requests, seconds, _MEASURED_COUNT)
        share = 1 / (1 + slow_down.num_unmeasured / self.same_speed_steps)
        verification, surprise = self._verification.observe(
            num_rows, num_requests, seconds / slow_down.factor, share, reads=reads
        )
        if share < 1:
            slow_down = slow_down.follow((1 - share) * surprise)
        return self._with(drafters, slow_down, verification, self._plain)

    def _beside(
        self, num_rows: int, num_requests: int, seconds: float, beside: Mapping[str, float]
    ) -> Mapping[str, DraftCosts]:
        """Return the drafters after learning how they slowed a verification of `seconds` down."""
        if not beside:
            return self.drafters
        expected = self.verify_seconds(num_rows, num_requests)
        without = seconds - _lost_seconds(self.drafters, beside)
        drafters = dict(self.drafters)
        for name, together in beside.items():
            own = drafters[name].interference
            new = own.observe(without + own.lost_seconds(together), expected, together)
            drafters[name] = replace(drafters[name], interference=new)
        return drafters

    def observe_plain(self, num_requests: int, seconds: float, interval: float) -> CostModel:
        """Learn from a plain step, which reveals the machine's slow-down.

        seconds: of the verification. interval: from verdict to verdict.
        """
        slow_down = self._slow_down
        if self._verification.curve.is_known_near(num_requests):  # else there is no prediction
            slow_down = slow_down.expect(
                num_requests, self.verify_seconds(num_requests, num_requests)
            )
        slow_down = slow_down.observe(num_requests, seconds)
        verification, _ = self._verification.observe(
            num_requests, num_requests, seconds / slow_down.factor, _PLAIN_SHARE, reads=False
        )
        # after the machine's speed, which explains most of a surprise
        plain, _ = self._plain.observe(num_requests, interval / slow_down.factor)
        return self._with(self.drafters, slow_down, verification, plain)

    def _with(
        self,
        drafters: Mapping[str, DraftCosts],
        slow_down: SlowDown,
        verification: CallCosts,
        plain: CostCurve,
    ) -> CostModel:
        """Return the model after an observation. Its drafters share the machine's speed."""
        if slow_down.factor != self._slow_down.factor:
            drafters = {
                name: replace(costs, factor=slow_down.factor) for name, costs in drafters.items()
            }
        return CostModel(drafters, self.same_speed_steps, slow_down, verification, plain)


def _lost_seconds(drafters: Mapping[str, DraftCosts], beside: Mapping[str, float]) -> float:
    """Seconds by which concurrent draft calls lengthen a verification. beside: by drafter."""
    return sum([drafters[name].interference.lost_seconds(t) for name, t in beside.items()])
