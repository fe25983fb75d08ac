"""Costs of one kind of call, the slow-down of a machine, and how calls slow each other down."""

from __future__ import annotations

import math
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

    def seconds_of(
        self,
        sizes: Iterable[float],
        num_requests: Iterable[float],
        factor: float = 1.0,
        each: float = 0.0,
    ) -> list[float]:
        """Expected seconds of several calls, given their sizes and their numbers of requests.

        factor: of the machine. each: seconds of a request that are not in these costs.
        """
        further = self._term.seconds
        return [
            factor * (seconds + max(number - 1, 0) * min(further, seconds) + number * each)
            for seconds, number in zip(self.curve.at_each(sizes), num_requests, strict=False)
        ]

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
