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
from typing import NamedTuple

from diffuspec.speculation.curve import (
    MAX_JUMP,
    MIN_SECONDS,
    SMOOTHING,
    CostCurve,
    bucket_of,
    surprise_of,
)

# weight of a new measurement in what the machine's speed does not change: relations of costs
OWN_SMOOTHING = SMOOTHING / 5
_LEAST_ROWS = 64  # rows that prompts may always add to a verification
# measurements of a plain step for which a drafted step of as many rows counts
_MEASURED_COUNT = 3
# Share of a plain step's unexpected seconds that its size explains; the machine explains the rest.
_PLAIN_SHARE = 0.5


class _PlainSteps(NamedTuple):
    """The mean time of plain steps of about one number of requests, at a factor of 1."""

    seconds: float
    num_measured: int


@dataclass(frozen=True, slots=True)
class SlowDown:
    """How slow a machine is: a factor in everything that is measured on it.

    It is learnt from plain steps only, each compared with earlier ones of about as many requests.
    Costs of sizes are learnt for a given factor: neither can take over what the other explains.
    """

    factor: float = 1.0
    num_unmeasured: int = 0  # steps since the latest measurement
    _plain: Mapping[int, _PlainSteps] = field(default_factory=dict)  # keys: ranges of requests

    def expect(self, num_requests: int, seconds: float, count: int = 1) -> SlowDown:
        """Set the seconds with which steps are compared first, as the mean of `count` measurements.

        Has no effect once there is a time for about as many requests.
        """
        bucket = bucket_of(num_requests)
        if bucket in self._plain:
            return self
        steps = _PlainSteps(max(seconds, MIN_SECONDS) / self.factor, count)
        return replace(self, _plain={**self._plain, bucket: steps})

    def observe(self, num_requests: int, seconds: float) -> SlowDown:
        """Learn from a plain step, which also represents the steps since the latest measurement.

        A share of the unexpected seconds is attributed to plain steps of about as many requests,
        the rest to the machine. The share falls with the number of these steps.
        """
        expected = self.expect(num_requests, seconds)  # after this, a first step is as expected
        bucket = bucket_of(num_requests)
        mean, number = expected._plain[bucket]
        weight = 1 - (1 - SMOOTHING) ** (1 + self.num_unmeasured)
        surprise = weight * surprise_of(seconds, mean * self.factor)
        share = max(OWN_SMOOTHING, 1 / (1 + number))
        steps = _PlainSteps(mean * math.exp(share * surprise), number + 1)
        factor = self.factor * math.exp((1 - share) * surprise)
        return SlowDown(factor, 0, {**expected._plain, bucket: steps})

    def follow(self, surprise: float) -> SlowDown:
        """Learn from a drafted step whose time the machine changed by a factor exp(surprise)."""
        return replace(self, factor=self.factor * math.exp(SMOOTHING * surprise))


class _Usual(NamedTuple):
    """Averages over the calls of about one size."""

    others: float  # requests after the first
    seconds: float


@dataclass(frozen=True, slots=True)
class _RequestTerm:
    """The seconds of a request in a batch: the slope of time over requests in calls of one size.

    It is a regression over deviations from the averages of calls of about the same size, so a load
    that does not change teaches nothing. It depends on measured times only, not on the curve.
    """

    _usual: Mapping[int, _Usual] = field(default_factory=dict)  # keys: buckets of sizes
    _products: float = 0.0  # decayed sum of deviations of requests times deviations of seconds
    _squares: float = 0.0  # decayed sum of squared deviations of requests

    @property
    def seconds(self) -> float:
        """Seconds for each request after the first."""
        return max(self._products / self._squares, 0.0) if self._squares else 0.0

    def observe(self, size: int, others: int, seconds: float) -> _RequestTerm:
        """Learn from a call with `others` requests after the first."""
        bucket = bucket_of(size)
        usual = self._usual.get(bucket, _Usual(others, seconds))
        longest = max(MAX_JUMP, (1 + others) / (1 + usual.others)) * usual.seconds
        seconds = min(max(seconds, usual.seconds / MAX_JUMP), longest)
        more, slower = others - usual.others, seconds - usual.seconds
        products, squares = self._products, self._squares
        if abs(more) >= 0.5:  # a smaller difference is the tail of the moving average
            # Small deviations among many requests say little, and so replace little.
            decay = 1 - OWN_SMOOTHING * (more / (others + usual.others)) ** 2
            products, squares = decay * products + more * slower, decay * squares + more * more
        usual = _Usual(usual.others + SMOOTHING * more, usual.seconds + SMOOTHING * slower)
        return _RequestTerm({**self._usual, bucket: usual}, products, squares)


@dataclass(frozen=True, slots=True)
class CallCosts:
    """Seconds of one kind of call at a factor of 1: a curve by size, and a term for each request.

    A request after the first never costs more than a call of the same size.
    """

    curve: CostCurve = field(default_factory=CostCurve)
    _term: _RequestTerm = field(default_factory=_RequestTerm)

    def seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of calls of several sizes for `num_requests` requests."""
        each, others = self._term.seconds, max(num_requests - 1, 0)
        return [seconds + others * min(each, seconds) for seconds in self.curve.at_each(sizes)]

    def observe(
        self, size: int, num_requests: int, seconds: float, share: float, *, reads: bool
    ) -> tuple[CallCosts, float]:
        """Learn from a call: the curve gets what the term of its requests does not explain.

        share, and the returned surprise: see CostCurve. reads: most of the seconds may be for
        prompts, so the term of requests learns nothing.
        """
        others, term = num_requests - 1, self._term
        if not reads:
            term = term.observe(size, others, seconds)
        seconds = max(seconds - term.seconds * others, seconds / num_requests)
        curve, surprise = self.curve.observe(size, seconds, share)
        return CallCosts(curve, term), surprise


@dataclass(frozen=True, slots=True)
class Interference:
    """How much draft calls of one drafter and concurrent verifier calls slow each other down.

    Calls that were shorter than expected count, too. An average of only the longer calls would be
    above 0 because of noise, and would keep a drafter idle that slows no verification down.
    """

    _lost: float  # seconds lost in each second in which both run
    _num_measured: float = 4.0  # the assumed value counts as this many measurements

    @classmethod
    def assumed(cls, value: float) -> Interference:
        """Begin with a value that was not measured."""
        return cls(value / (1 + value))

    @property
    def value(self) -> float:
        """Seconds by which one second of either call lengthens the other: 0 to 1.

        0 on separate hardware, about 1 on one shared processor.
        """
        lost = min(max(self._lost, 0.0), 0.5)
        return lost / (1 - lost)

    def observe(self, seconds: float, expected: float, beside: float) -> Interference:
        """Learn from a verification of `seconds`, of which `beside` overlapped with drafting."""
        if beside <= 0 or expected <= 0:
            return self
        share = beside / max(seconds, beside)  # short overlaps say little
        number = self._num_measured + share
        rate = share * max(OWN_SMOOTHING, 1 / number)
        lost = min(max((seconds - expected) / beside, -1.0), 1.0)
        return Interference(self._lost + rate * (lost - self._lost), number)

    def lost_seconds(self, beside: float) -> float:
        """Seconds that a call loses by overlapping with the other role for `beside` seconds."""
        return beside * self.value / (1 + self.value)

    def ends(self, first: float, second: float) -> tuple[float, float]:
        """Return when two calls that begin together end, given the seconds that each takes alone.

        While both run, each progresses at 1 / (1 + value) of its speed.
        """
        shorter = self.value * min(first, second)
        return first + shorter, second + shorter


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """The costs of one drafter's drafts."""

    interference: Interference
    factor: float = 1.0  # the machine's slow-down
    _calls: CallCosts = field(default_factory=CallCosts)  # size: drafted positions
    # seconds added to a call; size: prompt tokens it reads
    _reading: CostCurve = field(default_factory=CostCurve)

    @property
    def is_known(self) -> bool:
        return self._calls.curve.is_known

    def seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of calls of several numbers of positions, which read no prompts."""
        return [self.factor * one for one in self._calls.seconds_of(sizes, num_requests)]

    def seconds(self, num_positions: float, num_requests: float, num_unread: int = 0) -> float:
        """Expected seconds of a call that also reads `num_unread` prompt tokens."""
        [seconds] = self.seconds_of([num_positions], num_requests)
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
        without, whole = self.seconds_of(sizes, num_requests)
        return whole - without

    def observe(
        self, num_positions: int, num_requests: int, num_unread: int, seconds: float
    ) -> DraftCosts:
        """Learn from a call, given its seconds without a concurrent verification."""
        if num_unread and not self.is_known:
            return self
        if num_unread:
            added = max(seconds - self.seconds(num_positions, num_requests), 0.0)
            reading, _ = self._reading.observe(num_unread, added / self.factor)
            return replace(self, _reading=reading)
        alone = seconds / self.factor
        calls, _ = self._calls.observe(num_positions, num_requests, alone, 1.0, reads=False)
        return replace(self, _calls=calls)


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
        [seconds] = self.verify_seconds_of([num_rows], num_requests)
        return seconds

    def verify_seconds_of(self, sizes: Iterable[float], num_requests: float) -> list[float]:
        """Expected seconds of verifications of several sizes."""
        factor = self._slow_down.factor
        return [factor * one for one in self._verification.seconds_of(sizes, num_requests)]

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
        alone = max(seconds - self._lost_seconds(beside), MIN_SECONDS)
        return math.log(alone / expected) if expected > 0 else 0.0

    def _lost_seconds(self, beside: Mapping[str, float]) -> float:
        """Seconds by which concurrent draft calls lengthen a verification, by drafter."""
        return sum([self.drafters[name].interference.lost_seconds(t) for name, t in beside.items()])

    def observe_draft(
        self, name: str, num_positions: int, num_requests: int, num_unread: int, seconds: float
    ) -> CostModel:
        """Learn from a draft call, given its seconds without a concurrent verification."""
        costs = self.drafters[name].observe(num_positions, num_requests, num_unread, seconds)
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
        expected = self.verify_seconds(num_rows, num_requests)
        without = seconds - self._lost_seconds(beside)
        drafters = dict(self.drafters)
        for name, together in beside.items():
            own = drafters[name].interference
            new = own.observe(without + own.lost_seconds(together), expected, together)
            drafters[name] = replace(drafters[name], interference=new)
        model = replace(self, drafters=drafters)
        seconds = max(seconds - model._lost_seconds(beside), 0.0)  # by what has just been learnt
        slow_down = replace(self._slow_down, num_unmeasured=self._slow_down.num_unmeasured + 1)
        if num_rows == num_requests and not beside:
            slow_down = slow_down.expect(num_requests, seconds, _MEASURED_COUNT)
        share = 1 / (1 + slow_down.num_unmeasured / self.same_speed_steps)
        verification, surprise = self._verification.observe(
            num_rows, num_requests, seconds / slow_down.factor, share, reads=reads
        )
        if share < 1:
            slow_down = slow_down.follow((1 - share) * surprise)
        return model._with(slow_down, verification)

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
        return replace(self._with(slow_down, verification), _plain=plain)

    def _with(self, slow_down: SlowDown, verification: CallCosts) -> CostModel:
        """Return the model with another speed of the machine, which its drafters share."""
        drafters: Mapping[str, DraftCosts] = self.drafters
        if slow_down.factor != self._slow_down.factor:
            drafters = {
                name: replace(costs, factor=slow_down.factor) for name, costs in drafters.items()
            }
        return replace(self, drafters=drafters, _slow_down=slow_down, _verification=verification)
